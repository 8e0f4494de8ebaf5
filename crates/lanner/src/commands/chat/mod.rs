//! `lanner chat`: a conversation in the terminal, or one turn per line of a pipe.

mod input;
mod saved;
mod slash;
mod tools;

use std::{io, path::Path};

use engine::RequestError;
use serde_json::{Value, json};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};

use self::{
    input::Input,
    saved::{Continued, Saved},
    slash::Slash,
    tools::{ChatTools, Steps},
};
use super::CommandError;
use crate::{
    config::{ChatConfig, ModelConfig},
    conversation,
    generate::{ChoiceEvent, Generation, Reason},
    mcp_tools::AnswerStep,
    model::{AnswerParams, Model},
    sampling::Overrides,
    terminal::{Printer, PromptProgress, say},
    thinking::ThinkingParams,
};

/// # Errors
/// The model does not load, or its engine stops; in a pipe, also a turn that fails.
pub fn chat(model: &ModelConfig, config: ChatConfig) -> Result<(), CommandError> {
    let input = Input::open(config.lines.clone())?;
    let saved = Saved::open(&config)?;
    let tools = ChatTools::new(config.mcp.clone(), input.is_terminal())?;
    Model::open(model)?.with(|model| converse(model, config, saved, tools, input))
}

fn converse(
    model: &Model,
    config: ChatConfig,
    (saved, continued): (Saved, Option<Continued>),
    tools: ChatTools,
    mut input: Input,
) -> Result<(), CommandError> {
    if input.is_terminal() {
        say(format_args!("{}: type a message, /help for commands, Ctrl-D to leave", model.name));
    }
    if let Some(Continued { title, turns, .. }) = &continued {
        say(format_args!("(continuing \"{title}\" after {} messages)", turns.len()));
    }
    let (stored_system, turns) = continued.map_or((None, vec![]), |stored| (stored.system, stored.turns));
    let mut session = Session {
        runtime: Builder::new_current_thread().enable_io().build()?,
        model,
        sampling: config.sampling,
        color: config.color,
        system: config.conversation.system.or(stored_system),
        think: config.conversation.think,
        turns,
        saved,
        tools,
        // In a pipe Ctrl-C ends the program.
        interruptible: input.is_terminal(),
    };
    while let Some(line) = input.next()? {
        let result = match Slash::parse(&line) {
            Some(Slash::Quit) => break,
            Some(command) => session.run(command),
            None => session.turn(&line),
        };
        match result {
            Err(error) if !input.is_terminal() => return Err(error),
            Err(error @ CommandError::Request(RequestError::EngineStopped)) => return Err(error),
            Err(error @ CommandError::Request(RequestError::PromptTooLong { .. })) => {
                say(format_args!("{error}\nhint: /clear forgets the conversation so far"));
            }
            Err(error) => say(error),
            Ok(()) => {}
        }
    }
    Ok(())
}

struct Session<'a> {
    runtime: Runtime,
    model: &'a Model,
    sampling: Overrides,
    color: bool,
    system: Option<String>,
    think: Option<bool>,
    /// Messages of the user and the assistant, alternating, with calls of tools between them.
    turns: Vec<Value>,
    saved: Saved,
    tools: ChatTools,
    interruptible: bool,
}

/// An answer as a message, and its figures.
struct Answer {
    message: Value,
    usage: Value,
}

/// A step of an answer, and the answer if it is the last one.
struct Streamed {
    written: AnswerStep,
    answer: Option<Answer>,
}

impl Session<'_> {
    fn turn(&mut self, text: &str) -> Result<(), CommandError> {
        let question = self.turns.len();
        self.turns.push(conversation::user(text));
        let answer = self.answer();
        let message = answer.as_ref().ok().and_then(|answer| Some(&answer.as_ref()?.message));
        finish_turn(&mut self.turns, question, message);
        if let Some(Answer { message, usage }) = answer? {
            let between = &self.turns[question + 1..self.turns.len() - 1];
            self.saved.add(&self.model.name, self.system.as_deref(), text, between, &message, usage);
        }
        Ok(())
    }

    /// All steps of an answer: the last one calls no tools. `None`: stopped before any content.
    fn answer(&mut self) -> Result<Option<Answer>, CommandError> {
        // From here on, also while the prompt is prepared, Ctrl-C only stops the answer.
        let mut interrupts = self.interruptible.then(|| self.interrupts()).transpose()?;
        let mut steps = Steps::default();
        self.tools.offer(self.model)?;
        loop {
            let (prompt, step) = self.step(&steps, &mut interrupts)?;
            let Streamed { written, answer } = step;
            let calls = self.tools.make_calls(&mut steps, &prompt, written, &mut interrupts);
            if !self.runtime.block_on(calls)? {
                return Ok(answer);
            }
            self.turns.append(&mut steps.messages);
        }
    }

    /// One step: a prompt and what the model writes.
    fn step(
        &self,
        steps: &Steps,
        interrupts: &mut Option<Signal>,
    ) -> Result<(Vec<u32>, Streamed), CommandError> {
        let conversation = conversation::prompt_for(self.messages(), self.think);
        let prompt = self.tools.prompt(self.model, conversation, steps)?;
        let params = AnswerParams {
            overrides: &self.sampling,
            thinking: &ThinkingParams::default(),
            ignore_eos: false,
            stop: vec![],
            kind: None,
            constraint: self.tools.constraint(self.model, &prompt)?,
            tools: self.tools.set(),
        };
        let generation = Generation::start(&self.model.engine, vec![self.model.answer(&prompt, params)?])?;
        let progress = PromptProgress::new(prompt.ids.len());
        let streamed = self.runtime.block_on(self.print(generation, progress, interrupts))?;
        Ok((prompt.ids, streamed))
    }

    fn interrupts(&self) -> io::Result<Signal> {
        let _entered = self.runtime.enter();
        signal(SignalKind::interrupt())
    }

    /// Streams the step's text, which may be an answer; Ctrl-C stops it.
    async fn print(
        &self,
        mut generation: Generation,
        mut progress: PromptProgress,
        interrupts: &mut Option<Signal>,
    ) -> Result<Streamed, CommandError> {
        let (mut written, mut usage) = (AnswerStep::default(), Value::Null);
        let mut stopped = false;
        let mut printer = Printer::new(self.color);
        loop {
            let step = tokio::select! {
                step = generation.next() => step,
                () = next_interrupt(interrupts) => {
                    generation.cancel();
                    continue;
                }
            };
            if !matches!(step, Some(Ok((_, ChoiceEvent::PromptProgress { .. })))) {
                progress.clear();
            }
            let step = step.transpose()?;
            step.iter().for_each(|(_, event)| written.record(event));
            match step {
                Some((_, ChoiceEvent::PromptProgress { processed, .. })) => progress.update(processed),
                Some((_, ChoiceEvent::Text { delta, .. })) => printer.print(&delta)?,
                Some((_, ChoiceEvent::Finished(finish))) => {
                    printer.end()?;
                    usage = json!({
                        "prompt_tokens": finish.prompt_tokens,
                        "completion_tokens": finish.completion_tokens,
                    });
                    match finish.reason {
                        Reason::Stop | Reason::ToolCalls => {}
                        Reason::Length => say("(cut off at --max-tokens, or because the context is full)"),
                        Reason::Cancelled => {
                            stopped = true;
                            let removed = is_unanswered(stopped, &written.content);
                            say(if removed { "(stopped; your message was removed)" } else { "(stopped)" });
                        }
                    }
                }
                Some((_, ChoiceEvent::Prompt(_) | ChoiceEvent::Logits { .. })) => {}
                None => {
                    let message = || conversation::assistant(&written.content, &written.reasoning);
                    let answer = || Answer { message: message(), usage };
                    let answer = (!is_unanswered(stopped, &written.content)).then(answer);
                    return Ok(Streamed { written, answer });
                }
            }
        }
    }

    fn run(&mut self, command: Slash) -> Result<(), CommandError> {
        match command {
            Slash::Help => say(slash::HELP),
            Slash::System(text) => self.system = (!text.is_empty()).then_some(text),
            Slash::Think(think) => self.think = Some(think),
            Slash::Clear => {
                self.turns.clear();
                self.saved.restart();
            }
            Slash::Save(path) => self.save(Path::new(&path))?,
            Slash::Invalid(message) => say(message),
            Slash::Quit => {}
        }
        Ok(())
    }

    /// Writes the conversation as a body of `POST /v1/chat/completions`.
    fn save(&self, path: &Path) -> Result<(), CommandError> {
        let conversation = json!({ "model": self.model.name, "messages": self.messages() });
        std::fs::write(path, format!("{conversation:#}\n"))
            .map_err(|error| CommandError::Write { path: path.to_path_buf(), error })
    }

    fn messages(&self) -> Vec<Value> {
        [conversation::opening(self.system.as_deref()), self.turns.clone()].concat()
    }
}

/// Never, without signals.
async fn next_interrupt(interrupts: &mut Option<Signal>) {
    match interrupts {
        Some(interrupts) => _ = interrupts.recv().await,
        None => std::future::pending().await,
    }
}

/// Whether a turn was stopped before any content; reasoning is not content.
fn is_unanswered(stopped: bool, content: &str) -> bool {
    stopped && content.trim().is_empty()
}

/// Adds the answer, or removes the user's message at `question` and all calls after it: templates
/// expect an answer to every message.
fn finish_turn(turns: &mut Vec<Value>, question: usize, answer: Option<&Value>) {
    match answer {
        Some(message) => turns.push(message.clone()),
        None => turns.truncate(question),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_stopped_before_its_answer_is_removed() {
        for (stopped, content, messages) in [(true, "", 0), (true, " \n", 0), (true, "So", 2), (false, "", 2)]
        {
            let mut turns = vec![conversation::user("why?")];
            let answer = conversation::assistant(content, "because");
            finish_turn(&mut turns, 0, (!is_unanswered(stopped, content)).then_some(&answer));
            assert_eq!(turns.len(), messages, "{stopped} {content:?}");
        }
    }
}

//! `lanner chat`: a conversation in the terminal, or one turn per line of a pipe.

mod input;
mod saved;
mod slash;

use std::{io, path::Path};

use chat::Delta;
use engine::RequestError;
use serde_json::{Value, json};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};

use self::{
    input::Input,
    saved::{Continued, Question, Saved},
    slash::Slash,
};
use super::CommandError;
use crate::{
    attach::{self, attach_image, dropped_image},
    config::{ChatConfig, ModelConfig},
    conversation,
    generate::{ChoiceEvent, Generation, Reason},
    image::Images,
    memory,
    model::{AnswerParams, Conversation, Model, PromptError},
    sampling::Overrides,
    terminal::{Printer, PromptProgress, say},
    thinking::ThinkingParams,
};

/// # Errors
/// The model does not load, or its engine stops; in a pipe, also a turn that fails.
pub fn chat(model: &ModelConfig, config: ChatConfig) -> Result<(), CommandError> {
    let input = Input::open(config.lines.clone())?;
    let saved = Saved::open(&config)?;
    super::say_memory_mode(model);
    let opened = Model::open(model)?;
    let _monitor = memory::watch(model.memory_mode, &model.options);
    opened.with(|model| converse(model, config, saved, input))
}

fn converse(
    model: &Model,
    config: ChatConfig,
    (saved, continued): (Saved, Option<Continued>),
    mut input: Input,
) -> Result<(), CommandError> {
    if input.is_terminal() {
        say(format_args!("{}: type a message, /help for commands, Ctrl-D to leave", model.name));
    }
    if let Some(Continued { title, turns, .. }) = &continued {
        say(format_args!("(continuing \"{title}\" after {} messages)", turns.len()));
    }
    let (stored_system, turns, images) = match continued {
        Some(stored) => (stored.system, stored.turns, stored.images),
        None => (None, vec![], Images::default()),
    };
    let mut session = Session {
        runtime: Builder::new_current_thread().enable_io().build()?,
        model,
        sampling: config.sampling,
        color: config.color,
        system: config.conversation.system.or(stored_system),
        think: config.conversation.think,
        turns,
        images,
        attached: vec![],
        saved,
        // In a pipe Ctrl-C ends the program.
        interruptible: input.is_terminal(),
    };
    while let Some(line) = input.next()? {
        let dropped = dropped_image(&line).map(|path| Slash::Image(path.display().to_string()));
        let result = match dropped.or_else(|| Slash::parse(&line)) {
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
    /// Messages of the user and the assistant, alternating.
    turns: Vec<Value>,
    images: Images,
    /// Parts for the next message.
    attached: Vec<Value>,
    saved: Saved,
    interruptible: bool,
}

/// An answer as a message, and its figures.
struct Answer {
    message: Value,
    usage: Value,
}

impl Session<'_> {
    fn turn(&mut self, text: &str) -> Result<(), CommandError> {
        let attached = std::mem::take(&mut self.attached);
        let images = attached.iter().filter_map(|part| self.images.data_uri(part)).collect();
        self.turns.push(attach::message(attached, text));
        let answer = self.answer();
        let message = answer.as_ref().ok().and_then(|answer| Some(&answer.as_ref()?.message));
        finish_turn(&mut self.turns, message);
        if let Some(Answer { message, usage }) = answer? {
            let question = Question { text, images };
            self.saved.add(&self.model.name, self.system.as_deref(), question, &message, usage);
        }
        Ok(())
    }

    /// `None`: stopped before any content.
    fn answer(&self) -> Result<Option<Answer>, CommandError> {
        // From here on, also while the prompt is prepared, Ctrl-C only stops the answer.
        let interrupts = self.interruptible.then(|| self.interrupts()).transpose()?;
        let conversation = conversation::prompt_for(self.messages(), self.think);
        let conversation = Conversation { images: self.images.clone(), ..conversation };
        let prompt = self.model.chat_prompt(&conversation)?;
        let images = self.model.load_images(&prompt)?;
        let params = AnswerParams {
            overrides: &self.sampling,
            images: &images,
            thinking: &ThinkingParams::default(),
            ignore_eos: false,
            stop: vec![],
            kind: None,
            constraint: None,
            tools: None,
        };
        let generation = Generation::start(&self.model.engine, vec![self.model.answer(&prompt, params)?])?;
        let progress = PromptProgress::new(prompt.ids.len());
        self.runtime.block_on(self.print(generation, progress, interrupts))
    }

    fn interrupts(&self) -> io::Result<Signal> {
        let _entered = self.runtime.enter();
        signal(SignalKind::interrupt())
    }

    /// Streams the answer and returns it as a message; Ctrl-C stops it.
    async fn print(
        &self,
        mut generation: Generation,
        mut progress: PromptProgress,
        mut interrupts: Option<Signal>,
    ) -> Result<Option<Answer>, CommandError> {
        let (mut content, mut reasoning, mut usage) = (String::new(), String::new(), Value::Null);
        let mut stopped = false;
        let mut printer = Printer::new(self.color);
        loop {
            let step = tokio::select! {
                step = generation.next() => step,
                () = next_interrupt(&mut interrupts) => {
                    generation.cancel();
                    continue;
                }
            };
            if !matches!(step, Some(Ok((_, ChoiceEvent::PromptProgress { .. })))) {
                progress.clear();
            }
            match step.transpose()? {
                Some((_, ChoiceEvent::PromptProgress { processed, .. })) => progress.update(processed),
                Some((_, ChoiceEvent::Text { delta, .. })) => {
                    printer.print(&delta)?;
                    match delta {
                        Delta::Content(text) => content.push_str(&text),
                        Delta::Reasoning(text) => reasoning.push_str(&text),
                        // The conversation has no tools.
                        Delta::ToolCall { .. } | Delta::ToolArguments { .. } => {}
                    }
                }
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
                            let removed = is_unanswered(stopped, &content);
                            say(if removed { "(stopped; your message was removed)" } else { "(stopped)" });
                        }
                    }
                }
                Some((_, ChoiceEvent::Prompt(_) | ChoiceEvent::Logits { .. })) => {}
                None => {
                    let message = || conversation::assistant(&content, &reasoning);
                    let answer = || Answer { message: message(), usage };
                    return Ok((!is_unanswered(stopped, &content)).then(answer));
                }
            }
        }
    }

    fn run(&mut self, command: Slash) -> Result<(), CommandError> {
        match command {
            Slash::Help => say(slash::HELP),
            Slash::System(text) => self.system = (!text.is_empty()).then_some(text),
            Slash::Think(think) => self.think = Some(think),
            Slash::Image(path) => self.attach(Path::new(&path))?,
            Slash::Clear => {
                self.turns.clear();
                (self.images, self.attached) = (Images::default(), vec![]);
                self.saved.restart();
            }
            Slash::Save(path) => self.save(Path::new(&path))?,
            Slash::Invalid(message) => say(message),
            Slash::Quit => {}
        }
        Ok(())
    }

    fn attach(&mut self, path: &Path) -> Result<(), CommandError> {
        // Before the user types a message in vain.
        if let Err(error) = &self.model.vision {
            return Err(PromptError::NoVision(error.clone()).into());
        }
        self.attached.push(attach_image(path, &mut self.images)?);
        say(format_args!("(attached {}; it goes with the next message)", path.display()));
        Ok(())
    }

    /// Writes the conversation as a body of `POST /v1/chat/completions`.
    fn save(&self, path: &Path) -> Result<(), CommandError> {
        let messages = attach::with_data_uris(self.messages(), &self.images);
        let conversation = json!({ "model": self.model.name, "messages": messages });
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

/// Adds the answer, or removes the user's message: templates expect an answer to every message.
fn finish_turn(turns: &mut Vec<Value>, answer: Option<&Value>) {
    match answer {
        Some(message) => turns.push(message.clone()),
        None => drop(turns.pop()),
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
            finish_turn(&mut turns, (!is_unanswered(stopped, content)).then_some(&answer));
            assert_eq!(turns.len(), messages, "{stopped} {content:?}");
        }
    }
}

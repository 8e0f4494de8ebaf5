//! The conversation with a model: turns, other answers, changed messages.

use std::{io, path::Path};

use serde_json::{Value, json};
use tokio::{
    runtime::{Builder, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};

use super::{
    branch::{Answer, Branch},
    loaded::Loaded,
    saved::{Continued, Saved},
    stats::{AnswerStats, Stats},
    tools::{ChatTools, Steps, next_interrupt},
};
use crate::{
    attach::{self, attach_image},
    commands::CommandError,
    config::ChatConfig,
    conversation,
    generate::{ChoiceEvent, Finish, Generation, Reason},
    image::Images,
    mcp_tools::AnswerStep,
    model::{AnswerParams, Conversation, DecodingLimits, PromptError},
    sampling::Overrides,
    terminal::{NoEcho, Printer, PromptProgress, say},
    thinking::ThinkingParams,
};

pub(super) struct Session {
    runtime: Runtime,
    pub(super) model: Loaded,
    pub(super) sampling: Overrides,
    color: bool,
    markdown: bool,
    pub(super) system: Option<String>,
    pub(super) think: Option<bool>,
    pub(super) branch: Branch,
    /// Pictures for the next message, as data URIs.
    pub(super) attached: Vec<String>,
    pub(super) saved: Saved,
    pub(super) stats: Stats,
    tools: ChatTools,
    /// Whether Ctrl-C stops an answer; in a pipe it ends the program.
    interruptible: bool,
}

/// The answer of a turn that was stopped after calls and before any text.
const STOPPED: &str = "(stopped)";

/// Output streamed in one step of an answer, and its figures.
struct Streamed {
    prompt: Vec<u32>,
    written: AnswerStep,
    finish: Finish,
}

impl Session {
    pub(super) fn new(
        model: Loaded,
        config: ChatConfig,
        (saved, continued): (Saved, Option<Continued>),
        tools: ChatTools,
        interruptible: bool,
    ) -> io::Result<Session> {
        let (stored_system, branch) =
            continued.map_or((None, Branch::default()), |stored| (stored.system, stored.branch));
        Ok(Session {
            runtime: Builder::new_current_thread().enable_io().build()?,
            model,
            sampling: config.sampling,
            color: config.color,
            markdown: config.markdown,
            system: config.conversation.system.or(stored_system),
            think: config.conversation.think,
            branch,
            attached: vec![],
            saved,
            stats: Stats::default(),
            tools,
            interruptible,
        })
    }

    /// Sends a message and prints the answer.
    ///
    /// # Errors
    /// The model refuses the conversation, or its engine fails; the message is removed then.
    pub(super) fn turn(&mut self, text: &str) -> Result<(), CommandError> {
        let before = self.branch.clone();
        self.branch.ask(text, std::mem::take(&mut self.attached));
        self.answer_or(before, "your message was removed")
    }

    /// Answers the last message again, beside the answers before.
    ///
    /// # Errors
    /// Those of [`turn`](Session::turn); the former answer stays then.
    pub(super) fn regenerate(&mut self) -> Result<(), CommandError> {
        let before = self.branch.clone();
        if !self.branch.rewind_to_question() {
            say("(there is no message to answer again)");
            return Ok(());
        }
        self.answer_or(before, "the former answer stays")
    }

    /// Replaces the last message and answers it, beside the message before.
    ///
    /// # Errors
    /// Those of [`turn`](Session::turn); the former message stays then.
    pub(super) fn edit(&mut self, text: &str) -> Result<(), CommandError> {
        let before = self.branch.clone();
        if text.trim().is_empty() || self.branch.question().is_none_or(|question| question == text) {
            say("(the message was not changed)");
            return Ok(());
        }
        let pictures = self.branch.pictures();
        self.branch.rewind_before_question();
        self.branch.ask(text, pictures);
        self.answer_or(before, "the former message stays")
    }

    /// Adds an answer to the branch; without one, `before` is the branch again.
    fn answer_or(&mut self, before: Branch, otherwise: &str) -> Result<(), CommandError> {
        match self.answer(otherwise) {
            Ok(Some(answer)) => {
                self.branch.answer(answer);
                self.saved.save(&mut self.branch, self.system.as_deref());
                Ok(())
            }
            Ok(None) => {
                self.branch = before;
                Ok(())
            }
            Err(error) => {
                self.branch = before;
                Err(error)
            }
        }
    }

    /// All steps of an answer: the last one calls no tools. The calls of those before it are added
    /// to the branch. `None`: stopped before any content.
    fn answer(&mut self, otherwise: &str) -> Result<Option<Answer>, CommandError> {
        // From here on, also while the prompt is prepared, Ctrl-C only stops the answer.
        let mut interrupts = self.interruptible.then(|| self.interrupts()).transpose()?;
        let mut steps = Steps::default();
        if !self.runtime.block_on(self.tools.offer(&self.model, &mut interrupts))? {
            say(format_args!("(stopped; {otherwise})"));
            return Ok(None);
        }
        loop {
            let Streamed { prompt, written, finish } = self.step(&steps, &mut interrupts)?;
            let stats = AnswerStats::new(&self.model, &prompt, &finish);
            let (usage, timings) = (stats.usage(), stats.timings());
            let (mut content, mut reasoning) = (written.content.clone(), written.reasoning.clone());
            let mut is_stopped = finish.reason == Reason::Cancelled;
            if finish.reason == Reason::ToolCalls {
                let calls = self.tools.make_calls(&mut steps, &prompt, written, &mut interrupts);
                let goes_on = self.runtime.block_on(calls)?;
                let messages = std::mem::take(&mut steps.messages);
                self.branch.call(&self.model.name, &messages);
                if goes_on {
                    self.stats.add_step(stats);
                    continue;
                }
                is_stopped = true;
                if !messages.is_empty() {
                    // They are in the message with the calls.
                    (content, reasoning) = (String::new(), String::new());
                }
            }
            self.stats.add(stats);
            if is_stopped && steps.has_calls() && content.trim().is_empty() {
                // The tools have acted, so the turn stays, and templates want an answer at its end.
                content = STOPPED.into();
            }
            let is_answered = !is_stopped || !content.trim().is_empty();
            match (is_stopped, is_answered) {
                (true, true) => say("(stopped)"),
                (true, false) => say(format_args!("(stopped; {otherwise})")),
                _ if finish.reason == Reason::Length => {
                    say("(cut off at --max-tokens, or because the context is full)");
                }
                _ => {}
            }
            let model = self.model.name.clone();
            return Ok(is_answered.then_some(Answer { model, content, reasoning, usage, timings }));
        }
    }

    /// One step: a prompt and what the model writes.
    fn step(&self, steps: &Steps, interrupts: &mut Option<Signal>) -> Result<Streamed, CommandError> {
        let (messages, images) = self.messages();
        let conversation = Conversation { images, ..conversation::prompt_for(messages, self.think) };
        let prompt = self.tools.prompt(&self.model, conversation, steps)?;
        let images = self.model.load_images(&prompt, &DecodingLimits::default())?;
        let params = AnswerParams {
            overrides: &self.sampling,
            images: &images,
            thinking: &ThinkingParams::default(),
            ignore_eos: false,
            stop: vec![],
            kind: None,
            constraint: self.tools.constraint(&self.model, &prompt)?,
            tools: self.tools.set(),
        };
        let generation = Generation::start(&self.model.engine, vec![self.model.answer(&prompt, params)?])?;
        let progress = PromptProgress::new(prompt.ids.len());
        let (written, finish) = self.runtime.block_on(self.print(generation, progress, interrupts))?;
        Ok(Streamed { prompt: prompt.ids, written, finish })
    }

    fn interrupts(&self) -> io::Result<Signal> {
        let _entered = self.runtime.enter();
        signal(SignalKind::interrupt())
    }

    /// Streams a step of the answer; Ctrl-C stops it.
    async fn print(
        &self,
        mut generation: Generation,
        mut progress: PromptProgress,
        interrupts: &mut Option<Signal>,
    ) -> Result<(AnswerStep, Finish), CommandError> {
        let mut written = AnswerStep::default();
        // Input typed meanwhile appears at the next prompt, not within the answer.
        let _quiet = self.interruptible.then(NoEcho::begin);
        let mut printer = Printer::new(self.color).with_markdown(self.markdown);
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
            let step = step.transpose();
            step.iter().flatten().for_each(|(_, event)| written.record(event));
            match step {
                Ok(Some((_, ChoiceEvent::PromptProgress { processed, .. }))) => progress.update(processed),
                Ok(Some((_, ChoiceEvent::Text { delta, .. }))) => printer.print(&delta)?,
                Ok(Some((_, ChoiceEvent::Finished(finish)))) => {
                    printer.end()?;
                    return Ok((written, finish));
                }
                Ok(Some((_, ChoiceEvent::Prompt(_) | ChoiceEvent::Logits { .. }))) => {}
                Ok(None) => return Err(engine::RequestError::EngineStopped.into()),
                Err(error) => {
                    printer.end()?;
                    return Err(error.into());
                }
            }
        }
    }

    /// Writes the conversation as a body of `POST /v1/chat/completions`.
    pub(super) fn write(&self, path: &Path) -> Result<(), CommandError> {
        let (messages, images) = self.messages();
        let messages = attach::with_data_uris(messages, &images);
        let conversation = json!({ "model": self.model.name, "messages": messages });
        std::fs::write(path, format!("{conversation:#}\n"))
            .map_err(|error| CommandError::Write { path: path.to_path_buf(), error })
    }

    /// Attaches the image file at `path` to the next message.
    ///
    /// # Errors
    /// The model has no vision tower, or the file is no image that it can see.
    pub(super) fn attach(&mut self, path: &Path) -> Result<(), CommandError> {
        // Before the user types a message in vain.
        if let Err(error) = &self.model.vision {
            return Err(PromptError::NoVision(error.clone()).into());
        }
        let mut images = Images::default();
        let part = attach_image(path, &mut images)?;
        self.attached.extend(images.data_uri(&part));
        say(format_args!("(attached {}; it goes with the next message)", path.display()));
        Ok(())
    }

    /// The conversation in OpenAI's format, and the pictures that its parts refer to.
    fn messages(&self) -> (Vec<Value>, Images) {
        let mut images = Images::default();
        let turns = self.branch.turns(&mut images);
        ([conversation::opening(self.system.as_deref()), turns].concat(), images)
    }
}

//! `lanner run`: answers one prompt on stdout, as text, JSON or token ids.

use std::{
    io::{Read, Write},
    time::Instant,
};

use chat::Delta;
use serde_json::{Value, json};

use super::{
    CommandError,
    ids::{continue_ids, dump_logits},
};
use crate::{
    attach::{self, AttachError, attach_image},
    config::{ModelConfig, PromptText, RunConfig, RunPrompt},
    conversation,
    generate::{ChoiceEvent, Finish, Generation},
    image::Images,
    loading, memory,
    model::{AnswerParams, Conversation, DecodingLimits, Model, Prompt, PromptError},
    server::openai::{
        self,
        usage::{self, SpeculationUsage},
    },
    terminal::{Printer, PromptProgress},
    thinking::ThinkingParams,
};

/// How the answer is printed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Output {
    /// Streamed.
    Text,
    /// One object at the end.
    Json,
}

/// # Errors
/// The model does not load, refuses the prompt or fails; or a file cannot be written.
pub fn run(model: &ModelConfig, config: RunConfig) -> Result<(), CommandError> {
    super::say_memory_mode(model);
    if let (RunPrompt::Ids(ids), false) = (&config.prompt, config.json) {
        return continue_ids(&loading::open_engine(model)?, ids.clone(), &config);
    }
    let output = if config.json { Output::Json } else { Output::Text };
    let prompt = RunInput::read(&config.prompt)?;
    let opened = Model::open(model)?;
    let _monitor = memory::watch(model.memory_mode, &model.options);
    opened.with(|model| answer(model, prompt, config, output))
}

fn answer(model: &Model, prompt: RunInput, config: RunConfig, output: Output) -> Result<(), CommandError> {
    let prompt = prompt.encode(model)?;
    let images = model.load_images(&prompt, &DecodingLimits::default())?;
    let params = AnswerParams {
        overrides: &config.sampling,
        images: &images,
        thinking: &ThinkingParams::default(),
        ignore_eos: config.ignore_eos,
        stop: config.stop,
        kind: None,
        constraint: None,
        tools: None,
    };
    let (mut request, decoder) = model.answer(&prompt, params)?;
    request.logits = config.dump_logits.is_some();

    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let started = Instant::now();
    let generation = Generation::start(&model.engine, vec![(request, decoder)])?;
    let mut printer = (output == Output::Text).then(|| Printer::new(config.color));
    let progress = PromptProgress::new(prompt.ids.len());
    let (answer, finish) =
        runtime.block_on(RunOutput::read(generation, started, printer.as_mut(), progress))?;
    match output {
        Output::Text => {}
        Output::Json => writeln!(std::io::stdout(), "{}", answer.json(&finish, &prompt, started))?,
    }
    match config.dump_logits {
        Some(path) => {
            let ids = [&prompt.ids[..], &answer.ids].concat();
            dump_logits(&path, &answer.logits, &ids, model.engine.info().vocab_size)
        }
        None => Ok(()),
    }
}

/// A prompt before encoding: standard input is read before a long load.
enum RunInput {
    Conversation(Conversation),
    Text(String),
    Ids(Vec<u32>),
}

impl RunInput {
    fn read(prompt: &RunPrompt) -> Result<RunInput, CommandError> {
        Ok(match prompt {
            RunPrompt::Turn { text, images: paths, conversation } => {
                let mut images = Images::default();
                let parts = paths.iter().map(|path| attach_image(path, &mut images));
                let parts = parts.collect::<Result<Vec<Value>, AttachError>>()?;
                let mut messages = conversation::opening(conversation.system.as_deref());
                messages.push(attach::message(parts, &read_text(text)?));
                let conversation = conversation::prompt_for(messages, conversation.think);
                RunInput::Conversation(Conversation { images, ..conversation })
            }
            RunPrompt::Raw(text) => RunInput::Text(read_text(text)?),
            RunPrompt::Ids(ids) => RunInput::Ids(ids.clone()),
        })
    }

    fn encode(self, model: &Model) -> Result<Prompt, PromptError> {
        match self {
            RunInput::Conversation(conversation) => model.chat_prompt(&conversation),
            RunInput::Text(text) => model.text_prompt(&text),
            RunInput::Ids(ids) => Ok(Prompt::from_ids(ids)),
        }
    }
}

fn read_text(text: &PromptText) -> std::io::Result<String> {
    let mut piped = String::new();
    if text.reads_stdin {
        std::io::stdin().read_to_string(&mut piped)?;
    }
    Ok(match &text.given {
        None => piped,
        Some(given) if piped.trim().is_empty() => given.clone(),
        Some(given) => format!("{}\n\n{given}", piped.trim_end()),
    })
}

/// The collected answer.
#[derive(Default)]
struct RunOutput {
    text: String,
    reasoning: String,
    ids: Vec<u32>,
    /// By position.
    logits: Vec<Vec<f32>>,
    first_token_seconds: Option<f64>,
}

impl RunOutput {
    async fn read(
        mut generation: Generation,
        started: Instant,
        mut printer: Option<&mut Printer>,
        mut progress: PromptProgress,
    ) -> Result<(RunOutput, Finish), CommandError> {
        let mut answer = RunOutput::default();
        while let Some(step) = generation.next().await {
            if !matches!(step, Ok((_, ChoiceEvent::PromptProgress { .. }))) {
                progress.clear();
            }
            match step?.1 {
                ChoiceEvent::PromptProgress { processed, .. } => progress.update(processed),
                ChoiceEvent::Text { delta, tokens } => {
                    answer.first_token_seconds.get_or_insert_with(|| started.elapsed().as_secs_f64());
                    answer.ids.extend(tokens.iter().map(|token| token.id));
                    printer.as_mut().map_or(Ok(()), |printer| printer.print(&delta))?;
                    answer.push(delta);
                }
                ChoiceEvent::Logits { values, .. } => answer.logits.push(values),
                ChoiceEvent::Prompt(_) => {}
                ChoiceEvent::Finished(finish) => {
                    printer.map_or(Ok(()), Printer::end)?;
                    answer.ids.extend(finish.tokens.iter().map(|token| token.id));
                    return Ok((answer, finish));
                }
            }
        }
        Err(engine::RequestError::EngineStopped.into())
    }

    fn push(&mut self, delta: Delta) {
        match delta {
            Delta::Content(text) => self.text.push_str(&text),
            Delta::Reasoning(text) => self.reasoning.push_str(&text),
            // The prompt has no tools.
            Delta::ToolCall { .. } | Delta::ToolArguments { .. } => {}
        }
    }

    fn json(&self, finish: &Finish, prompt: &Prompt, started: Instant) -> Value {
        let mut speculation = SpeculationUsage::default();
        finish.speculation.iter().for_each(|drafted| speculation.add(drafted));
        let mut object = json!({
            "text": self.text,
            "reasoning": self.reasoning,
            "prompt_ids": prompt.ids,
            "ids": self.ids,
            "finish_reason": openai::finish_reason(finish.reason),
            "usage": {
                "prompt_tokens": finish.prompt_tokens,
                "completion_tokens": finish.completion_tokens,
                "cached_tokens": finish.cache.reused,
                "reasoning_tokens": finish.reasoning_tokens,
                "speculation": speculation,
            },
            "timings": {
                "first_token_s": self.first_token_seconds,
                "total_s": started.elapsed().as_secs_f64(),
            },
        });
        if !finish.lossy.is_empty() {
            object["usage"]["lossy"] = finish.lossy.iter().map(|reason| usage::lossy(*reason)).collect();
        }
        object
    }
}

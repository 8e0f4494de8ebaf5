//! Settings of `lanner run` and `lanner chat`.

use std::path::PathBuf;

use super::error::ConfigError;
use crate::{
    cli::{ConversationArgs, ModelArgs, RunArgs},
    sampling::{Overrides, SamplingArgs},
};

pub struct ChatConfig {
    pub sampling: Overrides,
    pub conversation: ConversationConfig,
    pub color: bool,
    /// `None`: there is no home folder, and history ends with the program.
    pub history: Option<PathBuf>,
}

pub struct RunConfig {
    pub prompt: RunPrompt,
    pub sampling: Overrides,
    pub ignore_eos: bool,
    pub stop: Vec<String>,
    pub json: bool,
    pub dump_logits: Option<PathBuf>,
    pub color: bool,
}

pub enum RunPrompt {
    /// A user message for the chat template.
    Turn {
        text: PromptText,
        conversation: ConversationConfig,
    },
    /// Text to continue.
    Raw(PromptText),
    Ids(Vec<u32>),
}

pub enum PromptText {
    Given(String),
    Stdin,
}

pub struct ConversationConfig {
    pub system: Option<String>,
    /// `None` leaves it to the template.
    pub think: Option<bool>,
}

impl RunConfig {
    pub fn new(
        args: RunArgs,
        file: SamplingArgs,
        color: bool,
    ) -> Result<(ModelArgs, RunConfig), ConfigError> {
        let text = |prompt: Option<String>| match prompt.unwrap_or_default() {
            dash if dash == "-" => PromptText::Stdin,
            text => PromptText::Given(text),
        };
        let prompt = match args.ids {
            Some(ids) => RunPrompt::Ids(token_ids(&ids)?),
            None if args.raw => RunPrompt::Raw(text(args.prompt)),
            None => RunPrompt::Turn {
                text: text(args.prompt),
                conversation: ConversationConfig::new(args.conversation),
            },
        };
        let run = RunConfig {
            prompt,
            sampling: args.sampling.overrides(file).map_err(ConfigError::Sampling)?,
            ignore_eos: args.ignore_eos,
            stop: args.stop,
            json: args.json,
            dump_logits: args.dump_logits,
            color,
        };
        Ok((args.model, run))
    }
}

impl ConversationConfig {
    pub fn new(args: ConversationArgs) -> ConversationConfig {
        let think = match (args.think, args.no_think) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        };
        ConversationConfig { system: args.system, think }
    }
}

fn token_ids(text: &str) -> Result<Vec<u32>, ConfigError> {
    text.split_whitespace().map(|id| id.parse().map_err(|_| ConfigError::Ids(id.into()))).collect()
}

//! A validated request: what to generate and how to respond.

use std::{sync::Arc, time::Duration};

use chat::tools::ToolSet;
use engine::{ModelInfo, Priority, Speculate};

use super::constraint::AnswerFormat;
use crate::{keep_alive::KeepAlive, sampling::Overrides, thinking::ThinkingParams};

/// A request in which every field is valid.
#[derive(Debug, PartialEq)]
pub struct ValidRequest<P> {
    /// The requested model, if any.
    pub model: Option<String>,
    pub prompts: P,
    pub params: GenerateParams,
    pub idempotency: Option<Idempotency>,
    /// How long the model stays loaded afterwards; `None`: as before.
    pub keep_alive: Option<KeepAlive>,
}

impl<P> ValidRequest<P> {
    pub fn map<Q>(self, prompts: impl FnOnce(P) -> Q) -> ValidRequest<Q> {
        let ValidRequest { model, prompts: from, params, idempotency, keep_alive } = self;
        ValidRequest { model, prompts: prompts(from), params, idempotency, keep_alive }
    }
}

/// An idempotency key: the same request with the same key gets the same answer.
#[derive(Debug, PartialEq)]
pub struct Idempotency {
    pub key: String,
    /// How long the answer is stored.
    pub ttl: Duration,
}

/// Generation parameters of both routes.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerateParams {
    pub overrides: Overrides,
    /// Non-empty strings.
    pub stop: Vec<String>,
    /// Tokens that end the answer, besides the model's own.
    pub stop_token_ids: Vec<u32>,
    pub ignore_eos: bool,
    /// The format that the answer must match.
    pub format: Option<AnswerFormat>,
    /// Choices per prompt.
    pub n: usize,
    /// Report log-probabilities, with this many alternatives.
    pub logprobs: Option<usize>,
    /// Report the prompt's log-probabilities too.
    pub prompt_logprobs: bool,
    /// Report the prompt only; the one token that the engine must generate is dropped.
    pub prompt_only: bool,
    /// The tools that the model may call.
    pub tools: Option<Arc<ToolSet>>,
    pub priority: Priority,
    /// From the request's arrival to its end.
    pub timeout: Option<Duration>,
    /// `None`: the server's default.
    pub speculation: Option<Speculate>,
    pub reply: Reply,
    /// Report the prompt's progress in the stream.
    pub return_progress: bool,
    /// Prefixes, idempotency keys and responses are shared only under the same salt.
    pub cache_salt: Option<String>,
    pub thinking: ThinkingParams,
}

impl GenerateParams {
    /// Whether the same request always gets the same answer.
    pub fn is_repeatable(&self, info: &ModelInfo) -> bool {
        let sampling = self.overrides.sampling(&info.default_sampling);
        self.overrides.seed.is_some() || sampling.temperature == 0.0
    }
}

/// One JSON object, or server-sent events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    Whole,
    Stream { include_usage: bool },
}

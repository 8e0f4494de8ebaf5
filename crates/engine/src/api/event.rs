//! Results for callers: events, and the cost of a request.

use super::{cache::CacheReport, request_error::RequestError};

/// The events of a request, in order. `Finished` or `Failed` is the last one.
#[derive(Clone, Debug)]
pub enum Event {
    /// With `prompt_progress`: when the request starts, and after each step that computes a part of
    /// the prompt and not its end.
    PromptProgress {
        /// Prompt tokens whose state is computed or reused.
        processed: usize,
        /// Prompt tokens that were reused instead of computed.
        cached: usize,
    },
    /// With `prompt_logprobs`: one entry per prompt token, the first `None`; comes before any
    /// token.
    Prompt(Vec<Option<TokenLogprobs>>),
    /// With `logits`: float32 logits `[vocab_size]` that follow position `position` of prompt plus
    /// output.
    Logits {
        /// Position in prompt plus output.
        position: usize,
        /// One logit per token of the vocabulary.
        values: Vec<f32>,
    },
    /// With `pooling`, before `Finished`: `[hidden_size]`, of hidden states after the final norm,
    /// not normalised.
    Embedding(Vec<f32>),
    /// One new token. An end-of-sequence token is reported by `Finished` alone, unless
    /// `ignore_eos`.
    Token {
        /// Token id.
        id: u32,
        /// With `logprobs`.
        logprobs: Option<TokenLogprobs>,
    },
    /// The answer is complete; no event follows.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// Its cost.
        usage: Usage,
    },
    /// The request failed; no event follows.
    Failed(RequestError),
}

/// Log-probabilities (natural log, of the distribution before temperature, filters and penalties).
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Token id.
    pub id: u32,
    /// Its log-probability.
    pub logprob: f32,
    /// The likeliest tokens with their log-probabilities, likeliest first.
    pub top: Vec<(u32, f32)>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended its turn with this end-of-sequence token.
    Eos(u32),
    /// `max_tokens` or the context length was reached, or the prompt's end with `pooling`.
    Length,
    /// The [`RequestHandle`](crate::RequestHandle) was dropped or cancelled.
    Cancelled,
}

/// Cost of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Every generated token, the end-of-sequence token included.
    pub completion_tokens: usize,
    /// Prompt tokens whose state was reused instead of computed.
    pub cached_tokens: usize,
    /// How the prefix cache served the prompt.
    pub cache: CacheReport,
    /// One entry per drafter that drafted.
    pub speculation: Vec<Drafted>,
    /// Why the answer may differ from the model's own; empty unless an option allows that.
    pub lossy: Vec<Lossy>,
}

/// Why an answer is inexact. Options alone allow that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lossy {
    /// It resumed from state that was compressed on the disk, or computed from such state.
    CompressedCache,
    /// Some layers were skipped after the prompt.
    SkippedLayers,
}

/// Tokens of one drafter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drafted {
    /// Name of the drafter.
    pub drafter: &'static str,
    /// Proposed tokens.
    pub drafted: usize,
    /// Proposed tokens that were accepted: each saved a step.
    pub accepted: usize,
}

impl Drafted {
    /// Nothing yet.
    pub(crate) fn of(drafter: &'static str) -> Drafted {
        Drafted { drafter, drafted: 0, accepted: 0 }
    }
}

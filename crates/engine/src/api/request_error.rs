//! Why a request failed.

use std::time::Duration;

use super::bytes::megabytes;

/// Why one request failed; the engine and every other request continue.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
pub enum RequestError {
    /// The prompt has no token.
    #[error("the prompt is empty; send at least one token")]
    EmptyPrompt,
    /// `max_tokens` is 0.
    #[error("max_tokens is 0; ask for at least one token")]
    NoTokensAsked,
    /// The model is a text encoder.
    #[error("the model is a text encoder: it makes embeddings with mean pooling and cannot do anything else")]
    EncoderOnly,
    /// The request has images, and the model has a tower that this conversion lacks.
    #[error("this conversion of the model has no vision tower; load one that keeps it, or send no images")]
    NoVisionTower,
    /// The request has images, and the model is a text model.
    #[error("the model takes no images; send text, or load a model with vision")]
    NoVision,
    /// An image does not suit the model's tower or the prompt.
    #[error("image {} of the request: {message}", index + 1)]
    BadImage {
        /// Its index in the request.
        index: usize,
        /// The problem, in words.
        message: String,
    },
    /// The prompt leaves no room in the context for one new token.
    #[error(
        "the prompt has {prompt} tokens and the model's context holds {context}; shorten the prompt by {} or more",
        prompt + 1 - context
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// A cache breakpoint is past the prompt's end.
    #[error("cache breakpoint {position} is outside the prompt of {prompt} tokens")]
    BadCacheBreakpoint {
        /// The breakpoint.
        position: usize,
        /// Tokens of the prompt.
        prompt: usize,
    },
    /// A token id is not in the vocabulary.
    #[error("token id {id} is outside the model's vocabulary of {vocab_size}")]
    TokenOutOfRange {
        /// The token id.
        id: u32,
        /// Ids are below this.
        vocab_size: usize,
    },
    /// A sampling parameter is out of its range.
    #[error("{name} is {}; it must be {must}", short(*value))]
    BadSampling {
        /// Name of the parameter.
        name: &'static str,
        /// Its value.
        value: f64,
        /// The range in words.
        must: &'static str,
    },
    /// The model has no drafter of this name.
    #[error("there is no drafter `{name}` for this model; there are {known}{}", loaded_beside(name))]
    UnknownDrafter {
        /// The name.
        name: String,
        /// The model's drafters, in words.
        known: String,
    },
    /// A draft of this depth is not allowed.
    #[error("a draft of {depth} tokens is too long; it has at most {most}")]
    DraftTooLong {
        /// Tokens of the draft.
        depth: usize,
        /// Maximum tokens of a draft.
        most: usize,
    },
    /// The constraint excludes every token.
    #[error("the constraint on the answer allows no token after {generated} generated ones")]
    NothingAllowed {
        /// Tokens generated before.
        generated: usize,
    },
    /// The constraint failed, for example at its limits.
    #[error("the constraint on the answer failed after {generated} generated tokens: {message}")]
    Constraint {
        /// Tokens generated before.
        generated: usize,
        /// Its error.
        message: String,
    },
    /// Bias, penalties and constraint leave no token to choose.
    #[error(
        "no token can be chosen after {generated} generated ones: logit_bias, the penalties and the constraint on the \
         answer leave none with a finite logit; change them"
    )]
    NoCandidate {
        /// Tokens generated before.
        generated: usize,
    },
    /// A step or the engine failed on this request; the text is the message.
    #[error("the model failed on this request: {0}")]
    Step(String),
    /// A logit is infinite or not a number.
    #[error("the model computed logits that are not numbers; its weights are broken or its type too narrow")]
    NotFinite,
    /// The deadline passed.
    #[error("the request's time was up before it was answered")]
    TimeIsUp,
    /// The queue is full.
    #[error(
        "{waiting} requests wait already, and no more may; try again in {} s",
        retry_after.as_secs_f64().ceil()
    )]
    QueueFull {
        /// Requests that wait.
        waiting: usize,
        /// Time after which a permit is likely to be free.
        retry_after: Duration,
    },
    /// The request does not fit under the memory limit, even alone.
    #[error(
        "a prompt of {prompt} tokens and max_tokens {max_tokens} need up to {} of memory, and under the memory limit {} are left for \
         requests; ask for at most {most} tokens in all, or raise the limit",
        megabytes(*needs),
        megabytes(*room)
    )]
    NeverFits {
        /// Tokens of the prompt.
        prompt: usize,
        /// Maximum new tokens.
        max_tokens: usize,
        /// Bytes that the request may need.
        needs: usize,
        /// Bytes that the limit leaves for requests.
        room: usize,
        /// Tokens that fit, prompt and answer together.
        most: usize,
    },
    /// With [`WhenFull::Refuse`](crate::WhenFull::Refuse): other requests hold the memory.
    #[error(
        "the request needs up to {} of memory, and requests that run leave {} under the memory limit; try again later",
        megabytes(*needs),
        megabytes(*free)
    )]
    MemoryFull {
        /// Bytes that the request may need.
        needs: usize,
        /// Bytes that are free.
        free: usize,
    },
    /// A step of this request alone ran out of memory.
    #[error("there was no memory for a step of this request; try again later: {0}")]
    OutOfMemory(String),
    /// The caller does not read the events of the request.
    #[error("{} of the answer wait to be read; read it faster", megabytes(*bytes))]
    Unread {
        /// Bytes that wait to be read.
        bytes: usize,
    },
    /// The engine's thread has ended.
    #[error("the engine has stopped; restart the server")]
    EngineStopped,
}

/// A number without a long run of zeros.
fn short(value: f64) -> String {
    let plain = value == 0.0 || (1e-4..1e9).contains(&value.abs());
    if plain { value.to_string() } else { format!("{value:?}") }
}

/// Hint for drafters that are not part of the model.
fn loaded_beside(name: &str) -> &'static str {
    match name {
        "draft_model" | "block" => "; a draft model is loaded only if one is named when the model is loaded",
        _ => "",
    }
}

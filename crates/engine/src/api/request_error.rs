//! Why a request failed.

use std::time::Duration;

use super::bytes::megabytes;

/// Why one request failed; the engine and every other request go on.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
pub enum RequestError {
    #[error("the prompt is empty; send at least one token")]
    EmptyPrompt,
    #[error("max_tokens is 0; ask for at least one token")]
    NoTokensAsked,
    #[error(
        "the prompt has {prompt} tokens and the model's context holds {context}; shorten the prompt by {} or more",
        prompt + 1 - context
    )]
    PromptTooLong { prompt: usize, context: usize },
    #[error("cache breakpoint {position} is outside the prompt of {prompt} tokens")]
    BadCacheBreakpoint { position: usize, prompt: usize },
    #[error("token id {id} is outside the model's vocabulary of {vocab_size}")]
    TokenOutOfRange { id: u32, vocab_size: usize },
    #[error("{name} is {}; it must be {must}", short(*value))]
    BadSampling { name: &'static str, value: f64, must: &'static str },
    #[error("there is no drafter `{name}` for this model; there are {known}{}", loaded_beside(name))]
    UnknownDrafter { name: String, known: String },
    #[error("a draft of {depth} tokens is too long; it has at most {most}")]
    DraftTooLong { depth: usize, most: usize },
    #[error("the constraint on the answer allows no token after {generated} generated ones")]
    NothingAllowed { generated: usize },
    #[error("the constraint on the answer failed after {generated} generated tokens: {message}")]
    Constraint { generated: usize, message: String },
    #[error(
        "no token can be chosen after {generated} generated ones: logit_bias, the penalties and the constraint on the \
         answer leave none with a finite logit; change them"
    )]
    NoCandidate { generated: usize },
    #[error("the model failed on this request: {0}")]
    Step(String),
    #[error("the model computed logits that are not numbers; its weights are broken or its type too narrow")]
    NotFinite,
    #[error("the request's time was up before it was answered")]
    TimeIsUp,
    #[error(
        "{waiting} requests wait already, and no more may; try again in {} s",
        retry_after.as_secs_f64().ceil()
    )]
    QueueFull { waiting: usize, retry_after: Duration },
    #[error(
        "a prompt of {prompt} tokens and max_tokens {max_tokens} need up to {} of memory, and under the memory limit {} are left for \
         requests; ask for at most {most} tokens in all, or raise the limit",
        megabytes(*needs),
        megabytes(*room)
    )]
    NeverFits { prompt: usize, max_tokens: usize, needs: usize, room: usize, most: usize },
    #[error(
        "the request needs up to {} of memory, and requests that run leave {} under the memory limit; try again later",
        megabytes(*needs),
        megabytes(*free)
    )]
    MemoryFull { needs: usize, free: usize },
    #[error("there was no memory for a step of this request; try again later: {0}")]
    OutOfMemory(String),
    #[error("{} of the answer wait to be read; read it faster", megabytes(*bytes))]
    Unread { bytes: usize },
    #[error("the engine has stopped; restart the server")]
    EngineStopped,
}

/// A number without a row of zeros.
fn short(value: f64) -> String {
    let plain = value == 0.0 || (1e-4..1e9).contains(&value.abs());
    if plain { value.to_string() } else { format!("{value:?}") }
}

/// What drafters of this name lack, if they are no part of the model.
fn loaded_beside(name: &str) -> &'static str {
    match name {
        "draft_model" | "block" => "; a draft model is loaded only if one is named when the model is loaded",
        _ => "",
    }
}

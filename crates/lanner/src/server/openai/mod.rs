//! The OpenAI API: request bodies, validated requests and response bodies. No HTTP handling.

mod accepted;
pub mod chat;
pub mod completions;
mod constraint;
pub mod count;
mod custom_input;
mod custom_tools;
pub mod embeddings;
pub mod error;
pub mod fields;
mod fingerprint;
mod format;
pub mod mcp;
mod params;
mod prompt;
mod request;
pub mod rerank;
pub mod responses;
pub mod usage;

pub(crate) use self::format::{Envelope, OpenAi};
pub use self::{
    constraint::AnswerFormat,
    count::{MAX_MESSAGES, MAX_PROMPT_VALUES, MAX_VALUES},
    fingerprint::fingerprint,
    format::{finish_reason, prompt_error},
    params::{GenerateParams, Reply, ValidRequest},
    prompt::PromptInput,
    request::parse,
};

//! Anthropic's Messages API: requests become those of chat completions, and answers are written in
//! content blocks.

mod events;
mod format;
mod input;
mod request;
mod routes;
mod thinking;
mod tools;

pub(super) use routes::{count_tokens, messages};

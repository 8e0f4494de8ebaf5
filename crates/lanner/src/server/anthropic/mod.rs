//! Anthropic's Messages API: requests become those of chat completions, and answers are written in
//! content blocks.

mod events;
mod format;
mod input;
mod request;
mod routes;
mod thinking;
mod tools;

pub(crate) use self::{
    events::{Message, StreamEvent},
    request::MessagesRequest,
    routes::{count_tokens, messages},
};

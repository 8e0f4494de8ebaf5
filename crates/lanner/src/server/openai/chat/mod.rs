//! `POST /v1/chat/completions`.

mod custom;
mod functions;
mod mcp_calls;
mod request;
mod response;
mod thinking;
mod tool_calls;

pub use request::{ChatPrompt, ChatRequest};
pub use response::{ChatChoice, ChatDelta, ChatFormat, TokenLogprob};

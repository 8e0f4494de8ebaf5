//! `POST /v1/chat/completions`.

mod request;
mod response;
mod tool_calls;

pub use request::ChatRequest;
pub use response::ChatFormat;

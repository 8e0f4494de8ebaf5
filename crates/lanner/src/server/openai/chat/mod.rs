//! `POST /v1/chat/completions`.

mod request;
mod response;

pub use request::ChatRequest;
pub use response::ChatFormat;

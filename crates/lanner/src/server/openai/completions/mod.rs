//! `POST /v1/completions`.

mod prompt;
mod request;
mod response;

pub use request::{CompletionPrompts, CompletionRequest};
pub use response::CompletionFormat;

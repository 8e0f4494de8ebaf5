//! `POST /v1/completions`.

mod request;
mod response;

pub use request::{CompletionPrompts, CompletionRequest};
pub use response::{CompletionChoice, CompletionFormat};

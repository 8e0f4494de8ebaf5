//! `POST /v1/completions` on the wire.

mod request;
mod response;

pub use request::{CompletionPrompts, CompletionRequest};
pub use response::CompletionFormat;

//! `POST /v1/completions` on the wire.

mod request;
mod response;

pub use request::{CompletionRequest, Completions};
pub use response::CompletionFormat;

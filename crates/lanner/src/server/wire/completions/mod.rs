//! `POST /v1/completions` on the wire.

mod request;
mod response;

pub use request::CompletionRequest;
pub use response::CompletionWire;

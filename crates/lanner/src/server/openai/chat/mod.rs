//! `POST /v1/chat/completions` on the wire.

mod request;
mod response;

pub use request::ChatRequest;
pub use response::ChatFormat;

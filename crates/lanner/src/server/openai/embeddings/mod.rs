//! `POST /v1/embeddings`.

mod request;
mod response;

pub(crate) use request::POOLINGS;
pub use request::{EmbeddingEncoding, EmbeddingRequest, ValidEmbeddingRequest, pooling};
pub use response::{EmbeddingResponse, embedding_response};

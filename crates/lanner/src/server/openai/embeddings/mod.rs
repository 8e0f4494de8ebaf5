//! `POST /v1/embeddings`.

mod request;
mod response;

pub use request::{EmbeddingEncoding, ValidEmbeddingRequest, pooling};
pub use response::embedding_response;

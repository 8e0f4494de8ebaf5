//! Response bodies of `POST /v1/embeddings`.

use base64::{Engine, prelude::BASE64_STANDARD};
use schemars::JsonSchema;
use serde::Serialize;

use super::EmbeddingEncoding;
use crate::server::{
    embedding::{TextEmbedding, normalized},
    openai::{
        error::ApiError,
        usage::{InputUsage, PromptTokensDetails},
    },
};

#[derive(Debug, JsonSchema, Serialize)]
pub struct EmbeddingResponse {
    object: &'static str,
    data: Vec<EmbeddingData>,
    model: String,
    usage: InputUsage,
}

#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct EmbeddingData {
    object: &'static str,
    index: usize,
    embedding: EncodedEmbedding,
}

#[derive(Debug, JsonSchema, Serialize)]
#[serde(untagged)]
pub(super) enum EncodedEmbedding {
    Float(Vec<f32>),
    Base64(String),
}

/// # Errors
/// 400: `dimensions` exceeds those of the model.
pub fn embedding_response(
    model: &str,
    embeddings: &[TextEmbedding],
    encoding: EmbeddingEncoding,
    dimensions: Option<usize>,
) -> Result<EmbeddingResponse, ApiError> {
    let most = embeddings.first().map_or(0, |embedding| embedding.values.len());
    let dimensions = dimensions.unwrap_or(most);
    if dimensions > most {
        let message = format!("dimensions is {dimensions}; the model's embeddings have {most}");
        return Err(ApiError::invalid("dimensions", message));
    }
    let data = embeddings.iter().enumerate().map(|(index, embedding)| EmbeddingData {
        object: "embedding",
        index,
        embedding: encoding.encode(normalized(&embedding.values, dimensions)),
    });
    Ok(EmbeddingResponse {
        object: "list",
        data: data.collect(),
        model: model.to_owned(),
        usage: InputUsage::of(embeddings),
    })
}

impl EmbeddingEncoding {
    fn encode(self, values: Vec<f32>) -> EncodedEmbedding {
        match self {
            EmbeddingEncoding::Float => EncodedEmbedding::Float(values),
            EmbeddingEncoding::Base64 => {
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                EncodedEmbedding::Base64(BASE64_STANDARD.encode(bytes))
            }
        }
    }
}

impl InputUsage {
    /// That of all texts.
    pub fn of(embeddings: &[TextEmbedding]) -> InputUsage {
        let prompt_tokens = embeddings.iter().map(|embedding| embedding.num_tokens).sum();
        let cached_tokens = embeddings.iter().map(|embedding| embedding.cached_tokens).sum();
        let prompt_tokens_details = PromptTokensDetails { cached_tokens };
        InputUsage { prompt_tokens, total_tokens: prompt_tokens, prompt_tokens_details }
    }
}

//! Request bodies of `POST /v1/embeddings`, and their validation.

use engine::Pooling;
use serde::Deserialize;

use crate::server::{
    embedding::{EmbeddingParams, EmbeddingTask},
    openai::{
        self,
        error::ApiError,
        fields,
        prompt::{PromptField, PromptInput},
    },
};

/// OpenAI's limit.
const MAX_INPUTS: usize = 2048;

#[derive(Debug, Deserialize)]
pub struct EmbeddingRequest {
    model: Option<String>,
    input: PromptField,
    encoding_format: Option<String>,
    dimensions: Option<usize>,
    pooling: Option<String>,
    truncate_prompt_tokens: Option<i64>,
    priority: Option<String>,
    timeout: Option<f64>,
    cache_salt: Option<String>,
}

/// A request in which every field is valid.
#[derive(Debug, PartialEq)]
pub struct ValidEmbeddingRequest {
    /// The requested model, if any.
    pub model: Option<String>,
    /// At least one.
    pub inputs: Vec<PromptInput>,
    pub encoding: EmbeddingEncoding,
    /// Numbers per embedding; `None`: as many as the model has.
    pub dimensions: Option<usize>,
    pub params: EmbeddingParams,
}

/// How an embedding is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbeddingEncoding {
    /// A list of numbers.
    Float,
    /// Little-endian float32.
    Base64,
}

impl TryFrom<EmbeddingRequest> for ValidEmbeddingRequest {
    type Error = ApiError;

    fn try_from(request: EmbeddingRequest) -> Result<ValidEmbeddingRequest, ApiError> {
        fields::refuse(&[("truncate_prompt_tokens", request.truncate_prompt_tokens.is_some())])?;
        let encoding = match request.encoding_format.as_deref() {
            None | Some("float") => EmbeddingEncoding::Float,
            Some("base64") => EmbeddingEncoding::Base64,
            Some(other) => {
                let message = format!("encoding_format is `{other}`; it must be float or base64");
                return Err(ApiError::invalid("encoding_format", message));
            }
        };
        if request.dimensions == Some(0) {
            return Err(ApiError::invalid("dimensions", "dimensions is 0; ask for at least one"));
        }
        Ok(ValidEmbeddingRequest {
            model: request.model,
            inputs: request.input.split("input", MAX_INPUTS)?,
            encoding,
            dimensions: request.dimensions,
            params: EmbeddingParams {
                pooling: pooling(request.pooling.as_deref())?,
                priority: fields::priority(request.priority.as_deref())?,
                timeout: fields::timeout(request.timeout)?,
                cache_salt: fields::cache_salt(request.cache_salt)?,
            },
        })
    }
}

impl EmbeddingTask for ValidEmbeddingRequest {
    const PARAM: &'static str = "input";

    fn parse(body: &[u8]) -> Result<ValidEmbeddingRequest, ApiError> {
        openai::parse::<EmbeddingRequest>(body)?.try_into()
    }

    fn model(&self) -> Option<&str> {
        self.model.as_deref()
    }

    fn inputs(&self) -> Vec<PromptInput> {
        self.inputs.clone()
    }

    fn params(&self) -> &EmbeddingParams {
        &self.params
    }
}

/// # Errors
/// 400: there is no such pooling.
pub fn pooling(name: Option<&str>) -> Result<Option<Pooling>, ApiError> {
    match name {
        None => Ok(None),
        Some("last") => Ok(Some(Pooling::Last)),
        Some("mean") => Ok(Some(Pooling::Mean)),
        Some(other) => {
            let message = format!("pooling is `{other}`; it must be last or mean");
            Err(ApiError::invalid("pooling", message))
        }
    }
}

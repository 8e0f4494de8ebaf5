//! Request bodies of `POST /v1/embeddings`, and their validation.

use engine::Pooling;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::server::{
    embedding::{EmbeddingParams, EmbeddingTask},
    openai::{
        self,
        error::ApiError,
        fields,
        prompt::{PromptField, PromptInput},
    },
    schema::{Refused, above_zero, words},
};

/// OpenAI's limit.
const MAX_INPUTS: usize = 2048;

/// Values of `encoding_format`.
const ENCODINGS: [&str; 2] = [FLOAT, BASE64];
const FLOAT: &str = "float";
const BASE64: &str = "base64";
/// Values of `pooling`.
pub(crate) const POOLINGS: [&str; 2] = [LAST, MEAN];
const LAST: &str = "last";
const MEAN: &str = "mean";

#[derive(Debug, Deserialize, JsonSchema)]
pub struct EmbeddingRequest {
    /// A model on the machine; the default one if it is missing.
    model: Option<String>,
    /// Texts or token ids.
    input: PromptField,
    /// How an embedding is written.
    #[schemars(transform = words(ENCODINGS), extend("default" = "float"))]
    encoding_format: Option<String>,
    /// Keep the first numbers and normalise again.
    #[schemars(range(min = 1))]
    dimensions: Option<usize>,
    /// Pooling of hidden states; the checkpoint's by default.
    #[schemars(transform = words(POOLINGS))]
    pooling: Option<String>,
    /// Not supported.
    #[schemars(with = "Option<Refused>")]
    truncate_prompt_tokens: Option<i64>,
    /// Priority in the queue.
    #[schemars(transform = words(fields::PRIORITIES), extend("default" = "normal"))]
    priority: Option<String>,
    /// Seconds from the request's arrival to the end of its answer. None by default.
    #[schemars(transform = above_zero(fields::MAX_TIMEOUT))]
    timeout: Option<f64>,
    cache_salt: Option<String>,
    /// LM Studio's: seconds that the model stays loaded afterwards; negative: for ever.
    ttl: Option<f64>,
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
            None | Some(FLOAT) => EmbeddingEncoding::Float,
            Some(BASE64) => EmbeddingEncoding::Base64,
            Some(other) => {
                let message = format!("encoding_format is `{other}`; it must be {FLOAT} or {BASE64}");
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
                keep_alive: fields::ttl(request.ttl)?,
            },
        })
    }
}

impl EmbeddingTask for ValidEmbeddingRequest {
    const PARAM: &'static str = "input";

    fn parse(body: &[u8]) -> Result<ValidEmbeddingRequest, ApiError> {
        openai::parse::<EmbeddingRequest>(body)?.try_into()
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
        Some(LAST) => Ok(Some(Pooling::Last)),
        Some(MEAN) => Ok(Some(Pooling::Mean)),
        Some(other) => {
            let message = format!("pooling is `{other}`; it must be {LAST} or {MEAN}");
            Err(ApiError::invalid("pooling", message))
        }
    }
}

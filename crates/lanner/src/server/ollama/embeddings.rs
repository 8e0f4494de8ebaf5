//! Request bodies of `/api/embed` and `/api/embeddings`.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{keep_alive, options::Options};
use crate::server::{
    embedding::{EmbeddingParams, EmbeddingTask},
    openai::{self, PromptInput, error::ApiError, fields},
    schema::{KeepAliveField, above_zero, words},
};

/// Maximum texts of a request, as in OpenAI's route.
const MAX_TEXTS: usize = 2048;

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaEmbedRequest")]
pub(crate) struct EmbedBody {
    /// A model on the machine, with or without `:latest`; the default one if it is missing.
    #[serde(rename = "model")]
    #[schemars(rename = "model")]
    _model: Option<String>,
    input: Texts,
    /// Keep the first numbers and normalise again.
    #[schemars(range(min = 1))]
    dimensions: Option<usize>,
    #[schemars(with = "Option<Options>")]
    options: Option<Map<String, Value>>,
    /// How long the model stays loaded afterwards; negative: for ever.
    #[schemars(with = "Option<KeepAliveField>")]
    keep_alive: Option<Value>,
    /// Priority in the queue.
    #[schemars(transform = words(fields::PRIORITIES), extend("default" = "normal"))]
    priority: Option<String>,
    /// Seconds from the request's arrival to the end of its answer. None by default.
    #[schemars(transform = above_zero(fields::MAX_TIMEOUT))]
    timeout: Option<f64>,
    cache_salt: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "OllamaEmbeddingsRequest")]
pub(crate) struct EmbeddingsBody {
    /// A model on the machine, with or without `:latest`; the default one if it is missing.
    #[serde(rename = "model")]
    #[schemars(rename = "model")]
    _model: Option<String>,
    prompt: String,
    #[schemars(with = "Option<Options>")]
    options: Option<Map<String, Value>>,
    /// How long the model stays loaded afterwards; negative: for ever.
    #[schemars(with = "Option<KeepAliveField>")]
    keep_alive: Option<Value>,
    /// Priority in the queue.
    #[schemars(transform = words(fields::PRIORITIES), extend("default" = "normal"))]
    priority: Option<String>,
    /// Seconds from the request's arrival to the end of its answer. None by default.
    #[schemars(transform = above_zero(fields::MAX_TIMEOUT))]
    timeout: Option<f64>,
    cache_salt: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a string or an array of strings")]
enum Texts {
    One(String),
    Many(#[schemars(length(max = MAX_TEXTS))] Vec<String>),
}

/// Texts to embed, and the parameters.
pub(super) struct OllamaEmbedding {
    texts: Vec<String>,
    /// `None`: as many as the model has.
    pub dimensions: Option<usize>,
    params: EmbeddingParams,
}

/// A valid request of `/api/embed`.
pub(super) struct EmbedTask(pub OllamaEmbedding);

/// A valid request of `/api/embeddings`.
pub(super) struct EmbeddingsTask(OllamaEmbedding);

impl EmbeddingTask for EmbedTask {
    const PARAM: &'static str = "input";

    fn parse(body: &[u8]) -> Result<EmbedTask, ApiError> {
        let body: EmbedBody = openai::parse(body)?;
        Options::parse(body.options)?;
        let texts = match body.input {
            Texts::One(text) => vec![text],
            Texts::Many(texts) => texts,
        };
        if texts.len() > MAX_TEXTS {
            let message = format!("{} inputs in one request; at most {MAX_TEXTS}", texts.len());
            return Err(ApiError::invalid("input", message));
        }
        if body.dimensions == Some(0) {
            return Err(ApiError::invalid("dimensions", "dimensions is 0; ask for at least one"));
        }
        let params = params(body.priority.as_deref(), body.timeout, body.cache_salt, body.keep_alive)?;
        Ok(EmbedTask(OllamaEmbedding { texts, dimensions: body.dimensions, params }))
    }

    fn inputs(&self) -> Vec<PromptInput> {
        self.0.texts.iter().cloned().map(PromptInput::Text).collect()
    }

    fn params(&self) -> &EmbeddingParams {
        &self.0.params
    }
}

impl EmbeddingTask for EmbeddingsTask {
    const PARAM: &'static str = "prompt";

    fn parse(body: &[u8]) -> Result<EmbeddingsTask, ApiError> {
        let body: EmbeddingsBody = openai::parse(body)?;
        Options::parse(body.options)?;
        let params = params(body.priority.as_deref(), body.timeout, body.cache_salt, body.keep_alive)?;
        Ok(EmbeddingsTask(OllamaEmbedding { texts: vec![body.prompt], dimensions: None, params }))
    }

    fn inputs(&self) -> Vec<PromptInput> {
        self.0.texts.iter().cloned().map(PromptInput::Text).collect()
    }

    fn params(&self) -> &EmbeddingParams {
        &self.0.params
    }
}

fn params(
    priority: Option<&str>,
    timeout: Option<f64>,
    cache_salt: Option<String>,
    keep_alive_field: Option<Value>,
) -> Result<EmbeddingParams, ApiError> {
    Ok(EmbeddingParams {
        pooling: None,
        priority: fields::priority(priority)?,
        timeout: fields::timeout(timeout)?,
        cache_salt: fields::cache_salt(cache_salt)?,
        keep_alive: keep_alive(keep_alive_field)?,
    })
}

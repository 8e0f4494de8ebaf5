//! `POST /v1/rerank`, as Jina and Cohere have it: documents by the cosine of their embeddings with
//! the query's.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{embeddings, error::ApiError, fields, parse, prompt::PromptInput, usage::InputUsage};
use crate::server::{
    embedding::{EmbeddingParams, EmbeddingTask, TextEmbedding, cosine},
    schema::{Refused, above_zero, words},
};

const MAX_DOCUMENTS: usize = 1000;

#[derive(Debug, Deserialize, JsonSchema)]
pub struct RerankRequest {
    /// A model on the machine; the default one if it is missing.
    model: Option<String>,
    #[schemars(length(min = 1))]
    query: String,
    #[schemars(length(min = 1, max = MAX_DOCUMENTS))]
    documents: Vec<DocumentField>,
    /// Return this many results; all by default.
    #[schemars(range(min = 1))]
    top_n: Option<usize>,
    /// Repeat the documents in the results.
    #[schemars(extend("default" = true))]
    return_documents: Option<bool>,
    /// Not supported.
    #[schemars(with = "Option<Refused>")]
    max_tokens_per_doc: Option<i64>,
    /// Not supported.
    #[schemars(with = "Option<Refused>")]
    max_chunks_per_doc: Option<i64>,
    /// Not supported.
    #[schemars(with = "Option<Refused>")]
    rank_fields: Option<serde::de::IgnoredAny>,
    /// Pooling of hidden states; the checkpoint's by default.
    #[schemars(transform = words(embeddings::POOLINGS))]
    pooling: Option<String>,
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

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a string or an object with `text`")]
pub enum DocumentField {
    Plain(String),
    Object { text: String },
}

/// A request in which every field is valid.
#[derive(Debug, PartialEq)]
pub struct ValidRerankRequest {
    /// The requested model, if any.
    pub model: Option<String>,
    pub query: String,
    /// At least one.
    pub documents: Vec<String>,
    pub top_n: Option<usize>,
    pub return_documents: bool,
    pub params: EmbeddingParams,
}

impl TryFrom<RerankRequest> for ValidRerankRequest {
    type Error = ApiError;

    fn try_from(request: RerankRequest) -> Result<ValidRerankRequest, ApiError> {
        fields::refuse(&[
            ("max_tokens_per_doc", request.max_tokens_per_doc.is_some()),
            ("max_chunks_per_doc", request.max_chunks_per_doc.is_some()),
            ("rank_fields", request.rank_fields.is_some()),
        ])?;
        let documents: Vec<String> = request.documents.into_iter().map(DocumentField::text).collect();
        match documents.len() {
            0 => return Err(ApiError::invalid("documents", "documents is empty; send at least one")),
            1..=MAX_DOCUMENTS => {}
            count => {
                let message = format!("{count} documents in one request; at most {MAX_DOCUMENTS}");
                return Err(ApiError::invalid("documents", message));
            }
        }
        if request.query.is_empty() {
            return Err(ApiError::invalid("query", "query is empty; send a text"));
        }
        if request.top_n == Some(0) {
            return Err(ApiError::invalid("top_n", "top_n is 0; ask for at least one"));
        }
        Ok(ValidRerankRequest {
            model: request.model,
            query: request.query,
            documents,
            top_n: request.top_n,
            return_documents: request.return_documents.unwrap_or(true),
            params: EmbeddingParams {
                pooling: embeddings::pooling(request.pooling.as_deref())?,
                priority: fields::priority(request.priority.as_deref())?,
                timeout: fields::timeout(request.timeout)?,
                cache_salt: fields::cache_salt(request.cache_salt)?,
                keep_alive: fields::ttl(request.ttl)?,
            },
        })
    }
}

impl DocumentField {
    fn text(self) -> String {
        match self {
            DocumentField::Plain(text) | DocumentField::Object { text } => text,
        }
    }
}

impl EmbeddingTask for ValidRerankRequest {
    const PARAM: &'static str = "documents";

    fn parse(body: &[u8]) -> Result<ValidRerankRequest, ApiError> {
        parse::<RerankRequest>(body)?.try_into()
    }

    /// The query, then the documents.
    fn inputs(&self) -> Vec<PromptInput> {
        let texts = std::iter::once(&self.query).chain(&self.documents);
        texts.map(|text| PromptInput::Text(text.clone())).collect()
    }

    fn params(&self) -> &EmbeddingParams {
        &self.params
    }
}

impl ValidRerankRequest {
    /// `embeddings` are those of its inputs.
    pub fn response(self, id: String, model: &str, embeddings: &[TextEmbedding]) -> RerankResponse {
        let usage = InputUsage::of(embeddings);
        let query = embeddings.first().map(|embedding| &embedding.values[..]).unwrap_or_default();
        let documents = embeddings.iter().skip(1).zip(self.documents);
        let result = |(index, (embedding, text)): (usize, (&TextEmbedding, String))| RerankResult {
            index,
            relevance_score: cosine(query, &embedding.values),
            document: self.return_documents.then_some(RerankDocument { text }),
        };
        let mut results: Vec<RerankResult> = documents.enumerate().map(result).collect();
        // Stable: of equal documents the first comes first.
        results.sort_by(|a, b| b.relevance_score.total_cmp(&a.relevance_score));
        results.truncate(self.top_n.unwrap_or(usize::MAX));
        RerankResponse { id, object: "list", model: model.to_owned(), results, usage }
    }
}

#[derive(Debug, JsonSchema, Serialize)]
pub struct RerankResponse {
    id: String,
    object: &'static str,
    model: String,
    /// Most relevant first.
    results: Vec<RerankResult>,
    usage: InputUsage,
}

#[derive(Debug, JsonSchema, Serialize)]
pub struct RerankResult {
    /// Position among the request's documents.
    index: usize,
    /// Between -1 and 1.
    relevance_score: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<RerankDocument>,
}

#[derive(Debug, JsonSchema, Serialize)]
pub struct RerankDocument {
    text: String,
}

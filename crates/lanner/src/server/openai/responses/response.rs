//! Response bodies of `POST /v1/responses`.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::output::OutputItem;
use crate::server::openai::usage::{CompletionTokensDetails, LannerUsage, PromptTokensDetails, Usage};

/// A response, complete or in progress.
#[derive(Clone, Debug, JsonSchema, Serialize)]
#[schemars(rename = "Response")]
pub(crate) struct ResponseObject {
    pub id: String,
    pub object: &'static str,
    pub created_at: u64,
    pub completed_at: Option<u64>,
    pub status: ResponseStatus,
    pub background: bool,
    pub error: Option<ResponseError>,
    pub incomplete_details: Option<IncompleteDetails>,
    pub model: String,
    pub output: Vec<OutputItem>,
    pub usage: Option<Box<ResponseUsage>>,
    #[serde(flatten)]
    pub echo: RequestEcho,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ResponseStatus {
    InProgress,
    Completed,
    Incomplete,
    Failed,
    Cancelled,
}

#[derive(Clone, Debug, JsonSchema, Serialize)]
pub(crate) struct ResponseError {
    pub code: &'static str,
    pub message: String,
}

#[derive(Clone, Copy, Debug, JsonSchema, Serialize)]
pub(crate) struct IncompleteDetails {
    pub reason: &'static str,
}

/// Fields of the request that its response repeats.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct RequestEcho {
    pub instructions: Option<String>,
    pub max_output_tokens: Option<usize>,
    pub max_tool_calls: Option<u64>,
    pub metadata: Map<String, Value>,
    pub parallel_tool_calls: bool,
    pub previous_response_id: Option<String>,
    pub prompt_cache_key: Option<String>,
    pub reasoning: ReasoningEcho,
    pub safety_identifier: Option<String>,
    pub service_tier: &'static str,
    pub store: bool,
    /// Of the request, or the model's default.
    pub temperature: f64,
    pub text: TextEcho,
    pub tool_choice: Value,
    pub tools: Vec<Value>,
    pub top_logprobs: usize,
    /// Of the request, or the model's default.
    pub top_p: f64,
    pub truncation: &'static str,
    pub user: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct ReasoningEcho {
    pub effort: Option<String>,
    pub summary: Option<String>,
}

#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct TextEcho {
    pub format: Value,
    pub verbosity: String,
}

#[derive(Clone, Debug, JsonSchema, Serialize)]
pub(crate) struct ResponseUsage {
    input_tokens: usize,
    input_tokens_details: PromptTokensDetails,
    /// Every generated token: reasoning and the end-of-sequence token included.
    output_tokens: usize,
    output_tokens_details: CompletionTokensDetails,
    total_tokens: usize,
    lanner: LannerUsage,
}

impl From<Usage> for ResponseUsage {
    fn from(usage: Usage) -> ResponseUsage {
        ResponseUsage {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: usage.prompt_tokens_details,
            output_tokens: usage.completion_tokens,
            output_tokens_details: usage.completion_tokens_details,
            total_tokens: usage.total_tokens,
            lanner: usage.lanner,
        }
    }
}

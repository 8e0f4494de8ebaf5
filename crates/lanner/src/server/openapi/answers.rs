//! Answers that handlers write as JSON values, described. Tests compare them with real ones.

#![allow(dead_code, reason = "only the schemas of these types are used")]

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde_json::{Map, Value};

use crate::server::schema::{AnyObject, words};

/// Anthropic's form of an error.
#[derive(JsonSchema)]
pub(crate) struct AnthropicError {
    #[schemars(transform = words(["error"]))]
    r#type: String,
    error: AnthropicErrorBody,
    request_id: String,
}

#[derive(JsonSchema)]
struct AnthropicErrorBody {
    r#type: String,
    message: String,
}

/// Ollama's form of an error.
#[derive(JsonSchema)]
pub(crate) struct OllamaError {
    error: String,
}

/// The state of the server and of its engine.
#[derive(JsonSchema)]
pub(crate) struct HealthAnswer {
    #[schemars(transform = words(["ok", "stuck", "stopped"]))]
    status: String,
    model: String,
    version: String,
    uptime_s: u64,
    /// Choices being generated.
    running: u64,
    engine: EngineActivity,
    /// Why it is not healthy.
    #[schemars(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(JsonSchema)]
struct EngineActivity {
    #[schemars(transform = words(["idle", "step", "ended"]))]
    activity: String,
    since_s: Option<f64>,
}

/// The models on this machine and their states.
#[derive(JsonSchema)]
pub(crate) struct ModelListAnswer {
    object: String,
    data: Vec<ModelAnswer>,
}

/// Features of a model that requests may use.
#[derive(JsonSchema)]
struct Capabilities {
    /// Images in messages.
    vision: bool,
    tools: bool,
    thinking: bool,
    embeddings: bool,
}

/// A model. Loaded ones have `pinned`, `expires_at`, `context_length`, `max_model_len`,
/// `tool_dialect`, `capabilities` and `memory`; the others `size_bytes`, `family` and `format`.
#[derive(JsonSchema)]
pub(crate) struct ModelAnswer {
    id: String,
    object: String,
    /// When it was ready, or downloaded, in seconds since the Unix epoch.
    created: u64,
    owned_by: String,
    #[schemars(transform = words(["loaded", "loading", "on_disk"]))]
    state: String,
    /// Whether it answers requests without a name.
    default: bool,
    aliases: Vec<String>,
    /// Whether it stays loaded until it is unloaded by name.
    #[schemars(skip_serializing_if = "Option::is_none")]
    pinned: Option<bool>,
    /// When it leaves if no request uses it, in seconds since the Unix epoch; null: never.
    #[schemars(skip_serializing_if = "Option::is_none")]
    expires_at: Option<u64>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    context_length: Option<usize>,
    /// vLLM's name of `context_length`.
    #[schemars(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<usize>,
    /// How the model writes calls; null if it has no tools.
    #[schemars(skip_serializing_if = "Option::is_none")]
    tool_dialect: Option<String>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    capabilities: Option<Capabilities>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    memory: Option<ModelMemory>,
    /// Bytes of its files.
    #[schemars(skip_serializing_if = "Option::is_none")]
    size_bytes: Option<u64>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    family: Option<String>,
    /// Format of the weights.
    #[schemars(skip_serializing_if = "Option::is_none")]
    format: Option<String>,
}

/// A model that was loaded.
#[derive(JsonSchema)]
pub(crate) struct LoadAnswer {
    #[schemars(flatten)]
    model: ModelAnswer,
    load_seconds: f64,
}

/// A model that was unloaded.
#[derive(JsonSchema)]
pub(crate) struct UnloadAnswer {
    id: String,
    object: String,
    #[schemars(transform = words(["on_disk"]))]
    state: String,
}

/// Where memory goes, in bytes.
#[derive(JsonSchema)]
struct ModelMemory {
    limit_bytes: Option<u64>,
    weight_bytes: u64,
    step_bytes: u64,
    bytes_per_token: u64,
    bytes_per_sequence: u64,
    context_bytes: u64,
    prefix_cache_bytes: u64,
    /// The longest prompt and answer that fit, alone.
    most_tokens: u64,
    /// Bytes reserved now, by class.
    promised: BTreeMap<String, u64>,
}

/// Contents and counters of the prefix cache.
#[derive(JsonSchema)]
pub(crate) struct CacheAnswer {
    budget_bytes: u64,
    bytes: u64,
    entries: u64,
    tokens: u64,
    checkpoints: u64,
    disk: DiskAnswer,
    evictions: u64,
    failures: u64,
    requests: u64,
    hits: u64,
    prompt_tokens: u64,
    reused_tokens: u64,
    reusable_tokens: u64,
}

#[derive(JsonSchema)]
struct DiskAnswer {
    budget_bytes: u64,
    bytes: u64,
    files: u64,
    /// Files removed because their content was wrong.
    rejected: u64,
}

/// A download that is complete.
#[derive(JsonSchema)]
pub(crate) struct PullAnswer {
    #[schemars(transform = words(["done"]))]
    status: String,
    model: String,
    revision: String,
    path: String,
}

/// A line of a download: its start, the progress of a file, a pause, its end, or an error.
#[derive(JsonSchema)]
pub(crate) struct PullProgressLine {
    #[schemars(transform = words(["starting", "downloading", "waiting", "done", "error"]))]
    status: String,
    #[schemars(skip_serializing_if = "Option::is_none")]
    files: Option<u64>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    completed: Option<u64>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    revision: Option<String>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[schemars(skip_serializing_if = "Option::is_none", with = "Option<AnyObject>")]
    error: Option<Value>,
}

/// The version of the program.
#[derive(JsonSchema)]
pub(crate) struct VersionAnswer {
    version: String,
}

/// The MCP servers that requests may name.
#[derive(JsonSchema)]
pub(crate) struct McpServersAnswer {
    object: String,
    data: Vec<McpServerAnswer>,
}

#[derive(JsonSchema)]
struct McpServerAnswer {
    /// For tools of type `mcp`.
    server_label: String,
}

/// The main counters of the server.
#[derive(JsonSchema)]
pub(crate) struct StatsAnswer {
    object: String,
    model: String,
    version: String,
    uptime_s: u64,
    /// Choices being generated.
    running: u64,
    /// Choices in the queue.
    waiting: u64,
    /// Ended requests by outcome.
    requests: BTreeMap<String, u64>,
    tokens: TokenCounts,
    mean_time_to_first_token_s: Option<f64>,
    mean_time_per_token_s: Option<f64>,
    /// Time with work to compute.
    step_s: f64,
    prefix_cache: PrefixCacheStats,
    memory: MemoryStats,
    store: StoreStats,
}

/// What the server keeps.
#[derive(JsonSchema)]
struct StoreStats {
    /// Whether `/v1/history` is served.
    conversations: bool,
    /// Whether `/v1/stats/history` is.
    history: bool,
}

#[derive(JsonSchema)]
struct TokenCounts {
    prompt: u64,
    cached: u64,
    generated: u64,
}

#[derive(JsonSchema)]
struct PrefixCacheStats {
    bytes: u64,
    budget_bytes: u64,
    entries: u64,
    disk_bytes: u64,
}

#[derive(JsonSchema)]
struct MemoryStats {
    active_bytes: u64,
    peak_bytes: u64,
    /// `--memory-limit`.
    limit_bytes: Option<u64>,
    /// Null where the system does not report it.
    machine_bytes: Option<u64>,
}

/// A request that was cancelled.
#[derive(JsonSchema)]
pub(crate) struct CancelAnswer {
    id: String,
    object: String,
    /// Choices that were cancelled.
    cancelled: u64,
}

/// A response that was forgotten.
#[derive(JsonSchema)]
pub(crate) struct DeleteAnswer {
    id: String,
    object: String,
    deleted: bool,
}

/// A page of a response's input.
#[derive(JsonSchema)]
pub(crate) struct InputItemsAnswer {
    object: String,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
    data: Vec<Map<String, Value>>,
}

/// The tokens of a prompt, counted.
#[derive(JsonSchema)]
pub(crate) struct CountAnswer {
    input_tokens: usize,
}

/// The tokens of a text.
#[derive(JsonSchema)]
pub(crate) struct TokenizeAnswer {
    tokens: Vec<TokenOrPiece>,
    count: usize,
    max_model_len: usize,
    #[schemars(skip_serializing_if = "Option::is_none")]
    token_strs: Option<Vec<Option<String>>>,
}

#[derive(JsonSchema)]
#[schemars(untagged)]
enum TokenOrPiece {
    Id(u32),
    Piece { id: u32, piece: Piece },
}

/// A token's text, or its bytes if they are no whole characters.
#[derive(JsonSchema)]
#[schemars(untagged)]
enum Piece {
    Text(String),
    Bytes(Vec<u8>),
}

/// The text of tokens.
#[derive(JsonSchema)]
pub(crate) struct DetokenizeAnswer {
    content: String,
    /// The same under vLLM's name.
    prompt: String,
}

/// The text that the chat template makes of a conversation.
#[derive(JsonSchema)]
pub(crate) struct TemplateAnswer {
    prompt: String,
}

/// The model's tokenizer.
#[derive(JsonSchema)]
pub(crate) struct TokenizerAnswer {
    model: String,
    vocab_size: usize,
    model_max_length: usize,
    bos_token: Option<String>,
    eos_token: Option<String>,
    eos_token_ids: Vec<u32>,
    chat_template: Option<String>,
}

/// The models that requests can name.
#[derive(JsonSchema)]
pub(crate) struct OllamaModelsAnswer {
    models: Vec<OllamaModel>,
}

/// A model in Ollama's words; those in memory have `expires_at`, the others `modified_at`.
#[derive(JsonSchema)]
struct OllamaModel {
    name: String,
    model: String,
    size: u64,
    digest: String,
    details: OllamaDetails,
    #[schemars(skip_serializing_if = "Option::is_none")]
    modified_at: Option<String>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    expires_at: Option<String>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    size_vram: Option<u64>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    context_length: Option<usize>,
}

#[derive(JsonSchema)]
struct OllamaDetails {
    parent_model: String,
    format: String,
    family: String,
    families: Vec<String>,
    parameter_size: String,
    quantization_level: String,
}

/// The served model in detail.
#[derive(JsonSchema)]
pub(crate) struct OllamaShowAnswer {
    modelfile: String,
    parameters: String,
    template: String,
    license: String,
    modified_at: String,
    details: OllamaDetails,
    model_info: Map<String, Value>,
    capabilities: Vec<String>,
}

/// Embeddings of several texts.
#[derive(JsonSchema)]
pub(crate) struct OllamaEmbedAnswer {
    model: String,
    embeddings: Vec<Vec<f32>>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

/// The embedding of one text.
#[derive(JsonSchema)]
pub(crate) struct OllamaEmbeddingAnswer {
    embedding: Vec<f32>,
}

/// The state of a download, in one object or in lines.
#[derive(JsonSchema)]
pub(crate) struct OllamaPullLine {
    #[schemars(skip_serializing_if = "Option::is_none")]
    status: Option<String>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    completed: Option<u64>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    #[schemars(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

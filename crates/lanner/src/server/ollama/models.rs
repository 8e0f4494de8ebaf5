//! Routes about models: the served one in Ollama's words, and operations that are refused.

use std::sync::Arc;

use axum::{Json, extract::State};
use chat::tools::Dialect;
use ring::digest::{SHA256, digest};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{API_VERSION, answer::rfc3339, model_name};
use crate::server::{
    Server,
    handlers::{Body, JsonBody},
    openai::{self, error::ApiError},
};

/// The `expires_at` of a model that stays loaded.
const NEVER: &str = "9999-12-31T23:59:59Z";

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "OllamaShowRequest")]
pub(crate) struct ShowBody {
    /// The served model's name, with or without `:latest`; any other is a 404.
    model: Option<String>,
    /// The former name of `model`.
    name: Option<String>,
}

pub(super) async fn version() -> Json<Value> {
    Json(json!({ "version": API_VERSION }))
}

/// The models that requests can name: the served one.
pub(super) async fn tags(State(server): State<Arc<Server>>) -> Json<Value> {
    let mut model = summary(&server);
    model["modified_at"] = rfc3339(server.created).into();
    Json(json!({ "models": [model] }))
}

/// The models in memory.
pub(super) async fn ps(State(server): State<Arc<Server>>) -> Json<Value> {
    let mut model = summary(&server);
    let info = server.model.engine.info();
    model["expires_at"] = NEVER.into();
    model["size_vram"] = info.weight_bytes.into();
    model["context_length"] = info.context_length.into();
    Json(json!({ "models": [model] }))
}

pub(super) async fn show(State(server): State<Arc<Server>>, body: Body) -> Result<Json<Value>, ApiError> {
    let JsonBody { received, .. } = body?;
    let body: ShowBody = openai::parse(&received.bytes)?;
    server.check_model(body.model.or(body.name).as_deref().map(model_name))?;
    let model = &server.model;
    Ok(Json(json!({
        "modelfile": format!("FROM {}\n", server.name()),
        "parameters": parameters(&server),
        "template": model.template_source().unwrap_or_default(),
        "license": "",
        "modified_at": rfc3339(server.created),
        "details": details(&server),
        "model_info": model_info(&server),
        "capabilities": capabilities(&server),
    })))
}

pub(super) async fn delete() -> ApiError {
    unsupported("models are not deleted over HTTP; use `lanner rm`")
}

pub(super) async fn create() -> ApiError {
    unsupported("models are not created over HTTP; use `lanner quantize`, or `lanner serve --model`")
}

pub(super) async fn copy() -> ApiError {
    unsupported("models are not copied; `lanner serve --name` serves one under another name")
}

pub(super) async fn push() -> ApiError {
    unsupported("models are not pushed; use the hub's own tools")
}

fn unsupported(message: &str) -> ApiError {
    ApiError::invalid_body(message).code("unsupported_operation")
}

fn summary(server: &Server) -> Value {
    json!({
        "name": server.name(),
        "model": server.name(),
        "size": server.model.engine.info().weight_bytes,
        "digest": pseudo_digest(server),
        "details": details(server),
    })
}

/// Stands for the digest that Ollama's models have: of the name and the size, not of the weights.
fn pseudo_digest(server: &Server) -> String {
    let identity = format!("{} {}", server.name(), server.model.engine.info().weight_bytes);
    digest(&SHA256, identity.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn details(server: &Server) -> Value {
    let info = server.model.engine.info();
    json!({
        "parent_model": "",
        "format": "safetensors",
        "family": info.model_type,
        "families": [info.model_type],
        "parameter_size": parameter_size(info.weights.parameters),
        "quantization_level": info.weights.format,
    })
}

/// A parameter count in Ollama's notation: `4.0B`, `23.6M`.
fn parameter_size(parameters: usize) -> String {
    match parameters {
        0..1_000_000 => format!("{:.1}K", parameters as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}M", parameters as f64 / 1e6),
        _ => format!("{:.1}B", parameters as f64 / 1e9),
    }
}

/// The default options, one a line.
fn parameters(server: &Server) -> String {
    let sampling = &server.model.engine.info().default_sampling;
    format!(
        "temperature {:?}\ntop_k {}\ntop_p {:?}\nmin_p {:?}\nrepeat_penalty {:?}",
        sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.repetition_penalty
    )
}

/// Metadata under the names of GGUF, which editors read.
fn model_info(server: &Server) -> Map<String, Value> {
    let info = server.model.engine.info();
    let family = &info.model_type;
    Map::from_iter([
        ("general.architecture".to_owned(), json!(family)),
        ("general.basename".to_owned(), json!(server.name())),
        ("general.parameter_count".to_owned(), json!(info.weights.parameters)),
        (format!("{family}.context_length"), json!(info.context_length)),
        (format!("{family}.vocab_size"), json!(info.vocab_size)),
        ("lanner.tool_dialect".to_owned(), json!(server.model.tool_dialect.map(Dialect::name))),
    ])
}

fn capabilities(server: &Server) -> Vec<&'static str> {
    let model = &server.model;
    let all = [
        ("completion", true),
        ("tools", model.tool_dialect.is_some()),
        ("thinking", model.reasons()),
        ("insert", model.fills_in()),
        ("embedding", model.pooling.is_ok()),
    ];
    all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameter_size_has_the_largest_unit() {
        assert_eq!([4_020_000_000, 23_600_000, 1_500].map(parameter_size), ["4.0B", "23.6M", "1.5K"]);
    }
}

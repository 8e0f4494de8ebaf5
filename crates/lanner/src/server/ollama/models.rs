//! Routes about models in Ollama's words, and operations that there are not.

use axum::{Extension, Json, extract::State};
use chat::{FillInMiddle, Markers, Template, tools::Dialect};
use ring::digest::{SHA256, digest};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{API_VERSION, answer::rfc3339};
use crate::{
    model_files,
    server::{
        Server,
        app_state::AppState,
        handlers::{Body, JsonBody, Threads},
        models::{DiskModel, Listed, LoadedModel},
        openai::{self, error::ApiError},
        preparation::Lane,
        unix_seconds,
    },
};

/// The `expires_at` of a model that stays loaded.
const NEVER: &str = "9999-12-31T23:59:59Z";

#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "OllamaShowRequest")]
pub(crate) struct ShowBody {
    /// A model on the machine, with or without `:latest`; the default one if it is missing.
    model: Option<String>,
    /// The former name of `model`.
    name: Option<String>,
}

pub(super) async fn version() -> Json<Value> {
    Json(json!({ "version": API_VERSION }))
}

/// The models that requests can name: loaded ones, and those that can be loaded.
pub(super) async fn tags(
    State(state): State<AppState>,
    Extension(preparation): Threads,
) -> Result<Json<Value>, ApiError> {
    let list = move || Ok(state.list().iter().map(tag).collect::<Vec<Value>>());
    let models = preparation.run(Lane::Waiting, list).await?;
    Ok(Json(json!({ "models": models })))
}

fn tag(model: &Listed) -> Value {
    match model {
        Listed::Loaded(LoadedModel { server, .. }) => {
            let mut tag = summary(server);
            tag["modified_at"] = rfc3339(server.created).into();
            tag
        }
        Listed::OnDisk(model, _) => json!({
            "name": model.name,
            "model": model.name,
            "size": model.size,
            "digest": pseudo_digest(&model.name, model.size),
            "details": on_disk_details(model),
            "modified_at": rfc3339(model.created),
        }),
    }
}

/// The models in memory.
pub(super) async fn ps(State(state): State<AppState>) -> Json<Value> {
    let describe = |loaded: &LoadedModel| {
        let mut model = summary(&loaded.server);
        let info = loaded.server.model.engine.info();
        model["expires_at"] =
            loaded.expires_at(unix_seconds()).map_or_else(|| NEVER.to_owned(), rfc3339).into();
        model["size_vram"] = info.weight_bytes.into();
        model["context_length"] = info.context_length.into();
        model
    };
    let models: Vec<Value> = state.registry().loaded().iter().map(describe).collect();
    Json(json!({ "models": models }))
}

/// Describes a model without loading it.
pub(super) async fn show(
    State(state): State<AppState>,
    Extension(preparation): Threads,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let JsonBody { received, .. } = body?;
    let ShowBody { model, name } = openai::parse(&received.bytes)?;
    let name = model.or(name);
    if let Some(model) = state.find_loaded(name.as_deref()) {
        return Ok(Json(show_loaded(&model.server)));
    }
    let find = move || {
        let name = name.unwrap_or_else(|| state.names().default_name());
        let (model, _) = state.find_on_disk(&name).ok_or_else(|| state.unknown_model(&name))?;
        Ok(show_on_disk(&model))
    };
    preparation.run(Lane::Waiting, find).await.map(Json)
}

fn show_loaded(server: &Server) -> Value {
    json!({
        "modelfile": format!("FROM {}\n", server.name()),
        "parameters": parameters(server),
        "template": server.model.template_source().unwrap_or_default(),
        "license": "",
        "modified_at": rfc3339(server.created),
        "details": details(server),
        "model_info": model_info(server),
        "capabilities": capabilities(server),
    })
}

/// A description from the model's small files.
fn show_on_disk(model: &DiskModel) -> Value {
    let template = model_files::template(&model.location).ok().flatten();
    let tokenizer = model_files::tokenizer(&model.location).ok();
    let (source, family) = (template.as_ref().map(Template::source).unwrap_or_default(), &model.family);
    let dialect = tokenizer.as_ref().and_then(|tokenizer| Dialect::detect(source, tokenizer));
    let capabilities = [
        ("completion", true),
        ("tools", dialect.is_some()),
        ("thinking", Markers::detect(source).is_some()),
        ("insert", tokenizer.as_ref().and_then(FillInMiddle::detect).is_some()),
        ("embedding", model_files::embedding_head(&model.location).is_ok()),
    ];
    json!({
        "modelfile": format!("FROM {}\n", model.name),
        "parameters": "",
        "template": source,
        "license": "",
        "modified_at": rfc3339(model.created),
        "details": on_disk_details(model),
        "model_info": {
            "general.architecture": family,
            "general.basename": model.name,
            "lanner.tool_dialect": dialect.map(Dialect::name),
        },
        "capabilities": named(&capabilities),
    })
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
        "digest": pseudo_digest(server.name(), server.model.engine.info().weight_bytes as u64),
        "details": details(server),
    })
}

/// Stands for the digest that Ollama's models have: of the name and the size, not of the weights.
fn pseudo_digest(name: &str, bytes: u64) -> String {
    let identity = format!("{name} {bytes}");
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

fn on_disk_details(model: &DiskModel) -> Value {
    json!({
        "parent_model": "",
        "format": "safetensors",
        "family": model.family,
        "families": [model.family],
        "parameter_size": "",
        "quantization_level": model.format,
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
        ("embedding", model.embedding_head.is_ok()),
        ("vision", model.vision.is_ok()),
    ];
    named(&all)
}

/// The names of those that it has.
fn named(all: &[(&'static str, bool)]) -> Vec<&'static str> {
    all.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameter_size_has_the_largest_unit() {
        assert_eq!([4_020_000_000, 23_600_000, 1_500].map(parameter_size), ["4.0B", "23.6M", "1.5K"]);
    }
}

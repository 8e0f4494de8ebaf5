//! Routes that describe models: the loaded ones and those on disk.

use std::{collections::BTreeSet, sync::Arc};

use axum::{
    Extension, Json,
    extract::{Path, State, rejection::PathRejection},
};
use chat::tools::Dialect;
use engine::{Engine, MemoryClass};
use serde_json::{Map, Value, json};

use super::{
    app_state::AppState,
    handlers::Threads,
    metrics,
    models::{DiskModel, Listed, LoadedModel, ModelLease, ModelState},
    openai::error::ApiError,
    preparation::Lane,
    unix_seconds,
};
use crate::model::Model;

/// Loaded models, the default first; then those that can be loaded.
pub(crate) async fn models(
    State(state): State<AppState>,
    Extension(preparation): Threads,
) -> Result<Json<Value>, ApiError> {
    let list = move || Ok(state.list().iter().map(|model| describe(&state, model)).collect::<Vec<Value>>());
    let data = preparation.run(Lane::Waiting, list).await?;
    Ok(Json(json!({ "object": "list", "data": data })))
}

pub(crate) async fn model(
    State(state): State<AppState>,
    Extension(preparation): Threads,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(id) = id.map_err(|rejection| ApiError::invalid("model", rejection.body_text()))?;
    if let Some(model) = state.find_loaded(Some(&id)) {
        return Ok(Json(describe_loaded(&model)));
    }
    let find = move || {
        let found = state.find_on_disk(&id).map(|(model, on_disk)| describe_on_disk(&state, &model, on_disk));
        found.ok_or_else(|| state.unknown_model(&id))
    };
    preparation.run(Lane::Waiting, find).await.map(Json)
}

fn describe(state: &AppState, model: &Listed) -> Value {
    match model {
        Listed::Loaded(model) => describe_loaded(model),
        Listed::OnDisk(model, on_disk) => describe_on_disk(state, model, *on_disk),
    }
}

/// A model while a request uses it.
pub(crate) fn describe_leased(state: &AppState, lease: &ModelLease) -> Value {
    let loaded = state.registry().loaded();
    let own = loaded.iter().find(|model| Arc::ptr_eq(&model.server, lease.server()));
    own.map(describe_loaded).unwrap_or_default()
}

fn describe_loaded(model: &LoadedModel) -> Value {
    let server = &model.server;
    let info = server.model.engine.info();
    let names = server.names[1..].iter().chain(&model.names);
    let aliases: BTreeSet<&String> = names.filter(|name| *name != server.name()).collect();
    json!({
        "id": server.name(),
        "object": "model",
        "created": server.created,
        "owned_by": "lanner",
        "state": ModelState::Loaded.name(),
        "default": model.is_default,
        "aliases": aliases,
        "pinned": model.pinned,
        "expires_at": model.expires_at(unix_seconds()),
        "context_length": info.context_length,
        // vLLM's name.
        "max_model_len": info.context_length,
        "tool_dialect": server.model.tool_dialect.map(Dialect::name),
        "capabilities": capabilities(&server.model),
        "memory": memory(&server.model.engine),
    })
}

/// Features that requests may use; unknown for models on disk.
fn capabilities(model: &Model) -> Value {
    json!({
        "vision": model.vision.is_ok(),
        "tools": model.tool_dialect.is_some(),
        "thinking": model.reasons(),
        "embeddings": model.embedding_head.is_ok(),
    })
}

fn describe_on_disk(state: &AppState, model: &DiskModel, on_disk: ModelState) -> Value {
    json!({
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "lanner",
        "state": on_disk.name(),
        "default": state.names().is_default(&model.location),
        "aliases": model.aliases,
        "size_bytes": model.size,
        "family": model.family,
        "format": model.format,
    })
}

/// In bytes; see docs/api.md.
fn memory(engine: &Engine) -> Value {
    let (info, account) = (engine.info(), &engine.metrics().account);
    let memory = &info.memory;
    let promised: Map<String, Value> = MemoryClass::ALL
        .map(|class| (metrics::memory_class(class).into(), account.bytes(class).into()))
        .into_iter()
        .collect();
    json!({
        "limit_bytes": memory.limit,
        "weight_bytes": memory.weights,
        "step_bytes": memory.step,
        "bytes_per_token": memory.token,
        "bytes_per_sequence": memory.state(0),
        "context_bytes": memory.state(info.context_length),
        "prefix_cache_bytes": memory.prefix_cache,
        "most_tokens": memory.most_tokens(info.context_length),
        "promised": promised,
    })
}

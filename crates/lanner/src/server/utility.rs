//! Small routes about the server: its version, its counters, and the end of a request.

use std::sync::{Arc, LazyLock, atomic::Ordering};

use axum::{
    Extension, Json,
    extract::{Path, State, rejection::PathRejection},
    http::StatusCode,
    response::IntoResponse,
};
use engine::{Distribution, Histogram};
use serde_json::{Map, Value, json};

use super::{
    Common,
    app_state::AppState,
    metrics::{MetricsPage, Outcome},
    openai::error::ApiError,
    tenant::Client,
};
use crate::bench::machine;

pub(super) async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}

/// The MCP servers that requests may name.
pub(super) async fn mcp_servers(State(server): State<Arc<Common>>) -> Json<Value> {
    let servers = server.mcp.get().into_iter().flat_map(|access| access.servers.all());
    let data: Vec<Value> = servers.map(|server| json!({ "server_label": server.name() })).collect();
    Json(json!({ "object": "list", "data": data }))
}

/// Cancels a request by the id of its header or of its answer; it ends with `abort`.
pub(super) async fn cancel(
    State(server): State<Arc<Common>>,
    Extension(client): Extension<Client>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(id) = id.map_err(|rejection| ApiError::invalid("id", rejection.body_text()))?;
    match server.active.cancel(&id, &client) {
        0 => {
            let message = format!("no request `{id}` is being answered");
            Err(ApiError::new(StatusCode::NOT_FOUND, message).param("id").code("request_not_found"))
        }
        cancelled => Ok(Json(json!({ "id": id, "object": "request", "cancelled": cancelled }))),
    }
}

/// All counters, for Prometheus.
pub(crate) async fn metrics(State(state): State<AppState>) -> impl IntoResponse {
    let (common, loaded) = (state.common(), state.registry().loaded());
    let page = MetricsPage {
        engines: &common.metrics,
        requests: &common.requests,
        started_at: common.started_at,
        models: loaded
            .iter()
            .map(|model| (model.server.name(), model.server.engine().info().weight_bytes))
            .collect(),
        memory_limit: state.memory_limit(),
    };
    page.respond()
}

/// Read once: some systems start a program for it.
static MACHINE_MEMORY: LazyLock<Option<usize>> = LazyLock::new(machine::memory);

/// The main counters as JSON; `/metrics` has all of them.
pub(super) async fn stats(State(state): State<AppState>) -> Json<Value> {
    let server = state.common();
    let metrics = &server.metrics;
    let outcomes =
        Outcome::ALL.map(|outcome| (outcome.name().to_owned(), server.requests.count(outcome).into()));
    let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
    Json(json!({
        "object": "stats",
        "model": state.names().default_name(),
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_s": server.started.elapsed().as_secs(),
        "running": server.running.load(Ordering::Relaxed),
        "waiting": metrics.waiting.get(),
        "requests": Map::from_iter(outcomes),
        "tokens": {
            "prompt": metrics.prompt_tokens.get(),
            "cached": metrics.cached_tokens.get(),
            "generated": metrics.generated_tokens.get(),
        },
        "mean_time_to_first_token_s": mean(&metrics.first_token),
        "mean_time_per_token_s": mean(&metrics.between_tokens),
        "step_s": seconds(metrics.step_time.get()),
        "prefix_cache": {
            "bytes": metrics.cache_bytes.get(),
            "budget_bytes": metrics.cache_budget.get(),
            "entries": metrics.cache_entries.get(),
            "disk_bytes": metrics.disk_bytes.get(),
        },
        "memory": {
            "active_bytes": metrics.memory.get(),
            "peak_bytes": metrics.most_memory.get(),
            "limit_bytes": state.memory_limit(),
            "machine_bytes": *MACHINE_MEMORY,
        },
        "store": {
            // Without administration routes, requests load no models either.
            "conversations": state.store().is_some() && state.settings().load_by_name,
            "history": state.store().is_some(),
        },
    }))
}

/// `None` before the first value.
fn mean(histogram: &Histogram) -> Option<f64> {
    let Distribution { buckets, seconds } = histogram.read();
    let count = buckets.last().map_or(0, |(_, count)| *count);
    (count > 0).then(|| seconds / count as f64)
}

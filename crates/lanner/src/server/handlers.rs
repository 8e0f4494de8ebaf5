//! One function per route.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use axum::{
    Extension, Json,
    extract::{FromRequest, Path, Request, State, rejection::PathRejection},
    http::{
        HeaderMap, Method, StatusCode, Uri,
        header::{CONTENT_TYPE, ORIGIN},
    },
    response::Response,
};
use chat::tools::Dialect;
use engine::{CacheStats, Engine, Health, MemoryClass, RequestError};
use serde_json::{Map, Value, json};

use super::{
    Server,
    completion::{Completion, ParsedRequest},
    format::ApiFormat,
    metrics::{self, Outcome, OutcomeGuard},
    openai::{OpenAi, chat::ChatFormat, completions::CompletionFormat, error::ApiError},
    preparation::{Lane, Preparation, Received},
    request_log::RequestLog,
    tenant::Client,
};

/// 503 if the engine's thread is stuck or stopped, for monitors that restart the server.
pub(super) async fn health(State(server): State<Arc<Server>>) -> (StatusCode, Json<Value>) {
    let health = server.engine().health();
    let seconds = |time: Duration| (time.as_secs_f64() * 1e3).round() / 1e3;
    let (status, activity, since, reason) = match health {
        Health::Idle(since) => ("ok", "idle", Some(since), None),
        Health::Working(since) => ("ok", "step", Some(since), None),
        Health::Stuck { working, allowed } => {
            let reason = format!(
                "the engine has computed one step for {:.0} s, {:.0} s are allowed; restart the server",
                working.as_secs_f64(),
                allowed.as_secs_f64()
            );
            ("stuck", "step", Some(working), Some(reason))
        }
        Health::Ended => ("stopped", "ended", None, Some(RequestError::EngineStopped.to_string())),
    };
    let mut body = json!({
        "status": status,
        "model": server.name(),
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_s": server.started.elapsed().as_secs(),
        "running": server.running.load(Ordering::Relaxed),
        "engine": { "activity": activity, "since_s": since.map(seconds) },
    });
    let code = if reason.is_some() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    reason.into_iter().for_each(|reason| body["reason"] = reason.into());
    (code, Json(body))
}

pub(super) async fn models(State(server): State<Arc<Server>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [describe(&server)] }))
}

pub(super) async fn model(
    State(server): State<Arc<Server>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(id) = id.map_err(|rejection| ApiError::invalid("model", rejection.body_text()))?;
    server.check_model(Some(&id)).map(|()| Json(describe(&server)))
}

pub(super) fn describe(server: &Server) -> Value {
    let info = server.model.engine.info();
    json!({
        "id": server.name(),
        "object": "model",
        "created": server.created,
        "owned_by": "lanner",
        "context_length": info.context_length,
        // vLLM's name.
        "max_model_len": info.context_length,
        "tool_dialect": server.model.tool_dialect.map(Dialect::name),
        "memory": memory(&server.model.engine),
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

/// Contents and counters of the prefix cache.
pub(super) async fn cache(
    State(server): State<Arc<Server>>,
    Extension(preparation): Threads,
) -> Result<Json<Value>, ApiError> {
    cache_stats(server, &preparation, Engine::cache_stats).await
}

/// Empties the prefix cache; responds with its contents before.
pub(super) async fn clear_cache(
    State(server): State<Arc<Server>>,
    Extension(preparation): Threads,
) -> Result<Json<Value>, ApiError> {
    cache_stats(server, &preparation, Engine::clear_cache).await
}

/// The engine replies between two steps, so this blocks and does not belong on an async thread.
async fn cache_stats(
    server: Arc<Server>,
    preparation: &Preparation,
    query: fn(&Engine) -> Result<CacheStats, RequestError>,
) -> Result<Json<Value>, ApiError> {
    let query = move || query(&server.model.engine).map_err(|error| ApiError::from_engine(&error, "cache"));
    let stats = preparation.run(Lane::Waiting, query).await?;
    Ok(Json(json!({
        "budget_bytes": stats.budget_bytes,
        "bytes": stats.bytes,
        "entries": stats.entries,
        "tokens": stats.stored_tokens,
        "checkpoints": stats.snapshots,
        "disk": {
            "budget_bytes": stats.disk_budget_bytes,
            "bytes": stats.disk_bytes,
            "files": stats.disk_files,
            "rejected": stats.disk_rejected,
        },
        "evictions": stats.evictions,
        "failures": stats.failures,
        "requests": stats.requests,
        "hits": stats.hits,
        "prompt_tokens": stats.prompt_tokens,
        "reused_tokens": stats.reused_tokens,
        "reusable_tokens": stats.reusable_tokens,
    })))
}

pub(super) async fn chat_completions(
    State(server): State<Arc<Server>>,
    Extension(preparation): Threads,
    Extension(log): Log,
    body: Body,
) -> Result<Response, ApiError> {
    respond::<OpenAi<ChatFormat>>(server, &preparation, log, body).await
}

pub(super) async fn completions(
    State(server): State<Arc<Server>>,
    Extension(preparation): Threads,
    Extension(log): Log,
    body: Body,
) -> Result<Response, ApiError> {
    respond::<OpenAi<CompletionFormat>>(server, &preparation, log, body).await
}

pub(super) type Threads = Extension<Arc<Preparation>>;
pub(super) type Log = Extension<Arc<RequestLog>>;
/// A `Result`, so that bodies that cannot be read are counted too.
pub(super) type Body = Result<JsonBody, ApiError>;

pub(super) async fn respond<F: ApiFormat>(
    server: Arc<Server>,
    preparation: &Preparation,
    log: Arc<RequestLog>,
    body: Body,
) -> Result<Response, ApiError> {
    let outcome = OutcomeGuard::new(&server.requests, log);
    let response = match outcome.log().enter() {
        Ok(()) => answer::<F>(server, preparation, body, outcome.clone()).await,
        Err(error) => Err(error),
    };
    response.inspect_err(|error| outcome.record(Outcome::of(error)))
}

async fn answer<F: ApiFormat>(
    server: Arc<Server>,
    preparation: &Preparation,
    body: Body,
    outcome: Arc<OutcomeGuard>,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let JsonBody { received: Received { bytes, charge }, client } = body?;
    let lane = charge.lane();
    let request =
        preparation.run(lane, move || ParsedRequest::<F>::parse(server, client, &bytes, arrived)).await?;
    let claim = request.claim().await?;
    let begin = move || {
        // Until preparation has freed its memory.
        let _charge = charge;
        Completion::start(request, claim, outcome)
    };
    preparation.run(lane, begin).await?.respond().await
}

pub(super) async fn unknown_route(method: Method, uri: Uri) -> ApiError {
    let message = format!("there is no {method} {}; see docs/api.md for the routes", uri.path());
    ApiError::new(StatusCode::NOT_FOUND, message).code("unknown_url")
}

pub(super) async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not answer {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message).code("method_not_allowed")
}

impl Server {
    /// Rejects another model's name: its client would take this model's answer for that of the
    /// other.
    pub fn check_model(&self, name: Option<&str>) -> Result<(), ApiError> {
        match name {
            Some(name) if !self.names.iter().any(|known| known == name) => {
                let message = format!("the model `{name}` does not exist; this server has `{}`", self.name());
                Err(ApiError::new(StatusCode::NOT_FOUND, message).param("model").code("model_not_found"))
            }
            _ => Ok(()),
        }
    }
}

/// A body of type JSON. A web page cannot send that type to another site without a preflight
/// request, so requiring it keeps pages from using a server on the user's machine. A body without a
/// type, as some clients of Ollama send it, is read if no browser sent it.
pub(super) struct JsonBody {
    pub received: Received,
    pub client: Client,
}

impl<S: Send + Sync> FromRequest<S> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<JsonBody, ApiError> {
        if !is_json(request.headers()) {
            let message = "send the body as `Content-Type: application/json`";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let Some(preparation) = request.extensions().get::<Arc<Preparation>>().cloned() else {
            return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "this route has no body reader"));
        };
        let client = request.extensions().get::<Client>().cloned().unwrap_or_default();
        let received = preparation.read(request.into_body()).await?;
        Ok(JsonBody { received, client })
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE) else {
        // Browsers send at least one of these with every POST.
        return !headers.contains_key(ORIGIN) && !headers.contains_key("sec-fetch-site");
    };
    let value = value.to_str().unwrap_or_default();
    value.split(';').next().is_some_and(|mime| mime.trim().eq_ignore_ascii_case("application/json"))
}

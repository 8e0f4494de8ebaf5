//! One function per route.

use std::{
    convert::Infallible,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use axum::{
    Extension, Json,
    body::Bytes,
    extract::{FromRequest, Request, State},
    http::{
        HeaderMap, Method, StatusCode, Uri,
        header::{CONTENT_TYPE, ORIGIN},
    },
    response::{IntoResponse, Response},
};
use engine::{CacheStats, Engine, Health, RequestError};
use serde_json::{Value, json};

use super::{
    app_state::AppState,
    completion::{CancelOnDrop, Completion, ParsedRequest},
    format::ApiFormat,
    metrics::{Outcome, OutcomeGuard},
    openai::{OpenAi, chat::ChatFormat, completions::CompletionFormat, error::ApiError},
    preparation::{BodyKind, Lane, Preparation, Received},
    request_log::RequestLog,
    tenant::Client,
};

/// 503 if an engine's thread is stuck or stopped, for monitors that restart the server.
pub(super) async fn health(State(state): State<AppState>) -> (StatusCode, Json<Value>) {
    let common = state.common();
    let health = worst_health(&state);
    let seconds = |time: Duration| (time.as_secs_f64() * 1e3).round() / 1e3;
    let (status, activity, since, reason) = match health {
        None => ("ok", "idle", None, None),
        Some(Health::Idle(since)) => ("ok", "idle", Some(since), None),
        Some(Health::Working(since)) => ("ok", "step", Some(since), None),
        Some(Health::Stuck { working, allowed }) => {
            let reason = format!(
                "the engine has computed one step for {:.0} s, {:.0} s are allowed; restart the server",
                working.as_secs_f64(),
                allowed.as_secs_f64()
            );
            ("stuck", "step", Some(working), Some(reason))
        }
        Some(Health::Ended) => ("stopped", "ended", None, Some(RequestError::EngineStopped.to_string())),
    };
    let mut body = json!({
        "status": status,
        "model": state.names().default_name(),
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_s": common.started.elapsed().as_secs(),
        "running": common.running.load(Ordering::Relaxed),
        "engine": { "activity": activity, "since_s": since.map(seconds) },
    });
    let code = if reason.is_some() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    reason.into_iter().for_each(|reason| body["reason"] = reason.into());
    (code, Json(body))
}

/// The worst health among the engines of loaded models; `None`: there are none.
fn worst_health(state: &AppState) -> Option<Health> {
    let rank = |health: &Health| match health {
        Health::Idle(_) => 0,
        Health::Working(_) => 1,
        Health::Stuck { .. } => 2,
        Health::Ended => 3,
    };
    let loaded = state.registry().loaded();
    loaded.iter().map(|model| model.server.engine().health()).max_by_key(rank)
}

/// Contents and counters of the prefix caches of all loaded models.
pub(super) async fn cache(
    State(state): State<AppState>,
    Extension(preparation): Threads,
) -> Result<Json<Value>, ApiError> {
    cache_stats(state, &preparation, Engine::cache_stats).await
}

/// Empties the prefix caches; responds with their contents before.
pub(super) async fn clear_cache(
    State(state): State<AppState>,
    Extension(preparation): Threads,
) -> Result<Json<Value>, ApiError> {
    cache_stats(state, &preparation, Engine::clear_cache).await
}

/// Engines reply between two steps, so this blocks and does not belong on an async thread.
async fn cache_stats(
    state: AppState,
    preparation: &Preparation,
    query: fn(&Engine) -> Result<CacheStats, RequestError>,
) -> Result<Json<Value>, ApiError> {
    let query_all = move || {
        let loaded = state.registry().loaded();
        let stats = loaded.iter().map(|model| query(model.server.engine()));
        let stats = stats.collect::<Result<Vec<CacheStats>, RequestError>>();
        stats.map_err(|error| ApiError::from_engine(&error, "cache"))
    };
    let stats = total(&preparation.run(Lane::Waiting, query_all).await?);
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

/// Sums over all models; they share one budget on disk, and without a memory limit one in memory.
fn total(all: &[CacheStats]) -> CacheStats {
    all.iter().fold(CacheStats::default(), |sum, own| CacheStats {
        budget_bytes: sum.budget_bytes.max(own.budget_bytes),
        bytes: sum.bytes + own.bytes,
        entries: sum.entries + own.entries,
        stored_tokens: sum.stored_tokens + own.stored_tokens,
        snapshots: sum.snapshots + own.snapshots,
        disk_budget_bytes: sum.disk_budget_bytes.max(own.disk_budget_bytes),
        disk_bytes: sum.disk_bytes + own.disk_bytes,
        disk_files: sum.disk_files + own.disk_files,
        disk_rejected: sum.disk_rejected + own.disk_rejected,
        evictions: sum.evictions + own.evictions,
        copied_bytes: sum.copied_bytes + own.copied_bytes,
        failures: sum.failures + own.failures,
        requests: sum.requests + own.requests,
        hits: sum.hits + own.hits,
        prompt_tokens: sum.prompt_tokens + own.prompt_tokens,
        reused_tokens: sum.reused_tokens + own.reused_tokens,
        reusable_tokens: sum.reusable_tokens + own.reusable_tokens,
    })
}

pub(super) async fn chat_completions(
    State(state): State<AppState>,
    Extension(preparation): Threads,
    Extension(log): Log,
    ImageBody(body): ImageBody,
) -> Result<Response, ApiError> {
    respond::<OpenAi<ChatFormat>>(state, &preparation, log, body).await
}

pub(super) async fn completions(
    State(state): State<AppState>,
    Extension(preparation): Threads,
    Extension(log): Log,
    body: Body,
) -> Result<Response, ApiError> {
    respond::<OpenAi<CompletionFormat>>(state, &preparation, log, body).await
}

pub(super) type Threads = Extension<Arc<Preparation>>;
pub(super) type Log = Extension<Arc<RequestLog>>;
/// A `Result`, so that bodies that cannot be read are counted too.
pub(super) type Body = Result<JsonBody, ApiError>;

pub(super) async fn respond<F: ApiFormat>(
    state: AppState,
    preparation: &Preparation,
    log: Arc<RequestLog>,
    body: Body,
) -> Result<Response, ApiError> {
    let outcome = OutcomeGuard::new(&state.common().requests, log);
    let response = match outcome.log().enter() {
        Ok(()) => answer::<F>(state, preparation, body, outcome.clone()).await,
        Err(error) => Err(error),
    };
    response.inspect_err(|error| outcome.record(Outcome::of(error)))
}

async fn answer<F: ApiFormat>(
    state: AppState,
    preparation: &Preparation,
    body: Body,
    outcome: Arc<OutcomeGuard>,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let JsonBody { received, client } = body?;
    let server = state.lease_for(preparation, &received, arrived).await?;
    let Received { bytes, charge, text_limit } = received;
    let parse = move || ParsedRequest::<F>::parse(server, client, &bytes, text_limit, arrived);
    let mut request = preparation.run(charge.parsing_lane(), parse).await?;
    request.list_mcp_tools().await?;
    let claim = request.claim().await?;
    let images = request.prepare_images(&state, preparation).await?;
    let lane = charge.lane_of_text(request.text).with(request.attached).with_images(images);
    // A client that disconnects drops this.
    let connected = CancelOnDrop::default();
    let disconnected = connected.0.clone();
    let begin = move || {
        // Until preparation has freed its memory.
        let _charge = charge;
        Completion::start(request, claim, outcome, disconnected)
    };
    preparation.run(lane, begin).await?.respond().await
}

/// An answer that is JSON already.
pub(super) fn json_text(text: Bytes) -> Response {
    ([(CONTENT_TYPE, "application/json")], text).into_response()
}

pub(super) async fn unknown_route(method: Method, uri: Uri) -> ApiError {
    let message = format!("there is no {method} {}; see docs/api.md for the routes", uri.path());
    ApiError::new(StatusCode::NOT_FOUND, message).code("unknown_url")
}

pub(super) async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let message = format!("{} does not answer {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message).code("method_not_allowed")
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
        JsonBody::read(request, BodyKind::Text).await
    }
}

impl JsonBody {
    async fn read(request: Request, kind: BodyKind) -> Result<JsonBody, ApiError> {
        if !is_json(request.headers()) {
            let message = "send the body as `Content-Type: application/json`";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let Some(preparation) = request.extensions().get::<Arc<Preparation>>().cloned() else {
            return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "this route has no body reader"));
        };
        let client = request.extensions().get::<Client>().cloned().unwrap_or_default();
        let received = preparation.read(request.into_body(), kind).await?;
        Ok(JsonBody { received, client })
    }
}

/// A body that may hold images, so a larger one.
pub(super) struct ImageBody(pub Body);

impl<S: Send + Sync> FromRequest<S> for ImageBody {
    type Rejection = Infallible;

    async fn from_request(request: Request, _: &S) -> Result<ImageBody, Infallible> {
        Ok(ImageBody(JsonBody::read(request, BodyKind::WithImages).await))
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

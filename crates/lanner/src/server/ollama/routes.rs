//! Routes that generate or embed.

use std::time::Instant;

use axum::{
    Extension, Json,
    extract::State,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, json};

use super::{
    answer::rfc3339,
    embeddings::{EmbedTask, EmbeddingsTask},
    format::{ChatRoute, GenerateRoute, OllamaFormat, Route},
    keep_alive,
};
use crate::server::{
    app_state::AppState,
    embedding::{embed as embeddings_of, normalized},
    embedding_routes::counted,
    handlers::{Body, ImageBody, Log, Threads, respond},
    openai::error::ApiError,
    unix_seconds,
};

/// A request that only loads a model is no longer than this, in bytes.
const LONGEST_LOAD: usize = 4096;

/// The fields of a request that generates nothing.
#[derive(Deserialize)]
struct LoadBody {
    model: Option<String>,
    messages: Option<Vec<IgnoredAny>>,
    prompt: Option<String>,
    suffix: Option<String>,
    keep_alive: Option<Value>,
}

pub(super) async fn chat(
    State(state): State<AppState>,
    Extension(preparation): Threads,
    Extension(log): Log,
    ImageBody(body): ImageBody,
) -> Result<Response, ApiError> {
    match load::<ChatRoute>(&state, &body).await? {
        Some(loaded) => Ok(loaded.into_response()),
        None => respond::<OllamaFormat<ChatRoute>>(state, &preparation, log, body).await,
    }
}

pub(super) async fn generate(
    State(state): State<AppState>,
    Extension(preparation): Threads,
    Extension(log): Log,
    ImageBody(body): ImageBody,
) -> Result<Response, ApiError> {
    match load::<GenerateRoute>(&state, &body).await? {
        Some(loaded) => Ok(loaded.into_response()),
        None => respond::<OllamaFormat<GenerateRoute>>(state, &preparation, log, body).await,
    }
}

/// The answer to a request without a prompt: the model is loaded, or with `keep_alive: 0` unloaded.
///
/// # Errors
/// 404: there is no such model. 400: it is pinned. Others: it cannot be loaded.
async fn load<R: Route>(state: &AppState, body: &Body) -> Result<Option<Json<Value>>, ApiError> {
    let Ok(body) = body else { return Ok(None) };
    let bytes = &body.received.bytes;
    let request = (bytes.len() <= LONGEST_LOAD).then(|| serde_json::from_slice(bytes).ok()).flatten();
    let Some(LoadBody { model, messages, prompt, suffix, keep_alive: time }) = request else {
        return Ok(None);
    };
    let is_empty = |text: Option<String>| text.is_none_or(|text| text.is_empty());
    let has_prompt = match R::IS_CHAT {
        true => messages.is_some_and(|messages| !messages.is_empty()),
        false => !is_empty(prompt) || !is_empty(suffix),
    };
    if has_prompt {
        return Ok(None);
    }
    let (time, model) = (keep_alive(time)?, model.as_deref());
    let (name, reason) = match time.filter(|time| time.is_zero()) {
        Some(_) => (unload(state, model)?, "unload"),
        None => {
            let lease = state.lease(model).await?;
            lease.set_keep_alive(time);
            (lease.name().to_owned(), "load")
        }
    };
    let mut loaded = json!({
        "model": name,
        "created_at": rfc3339(unix_seconds()),
        "done": true,
        "done_reason": reason,
    });
    match R::IS_CHAT {
        true => loaded["message"] = json!({ "role": "assistant", "content": "" }),
        false => loaded["response"] = "".into(),
    }
    Ok(Some(Json(loaded)))
}

/// Unloads a model that is not pinned; returns its name.
fn unload(state: &AppState, model: Option<&str>) -> Result<String, ApiError> {
    let Some(lease) = state.loaded(model) else {
        let name = model.map_or_else(|| state.names().default_name(), str::to_owned);
        return match state.find_on_disk(&name) {
            Some((model, _)) => Ok(model.name),
            None => Err(state.unknown_model(&name)),
        };
    };
    if state.registry().retention(&lease).is_some_and(|retention| retention.pinned) {
        let message = format!(
            "{} is pinned; `POST /v1/models/unload` unloads it, and `--no-pin` lets it expire",
            lease.name()
        );
        return Err(ApiError::invalid("keep_alive", message).code("model_pinned"));
    }
    state.registry().remove(&lease);
    Ok(lease.name().to_owned())
}

pub(super) async fn embed(
    State(state): State<AppState>,
    Extension(preparation): Threads,
    Extension(log): Log,
    body: Body,
) -> Result<Response, ApiError> {
    counted(&state, log.clone(), async {
        let started = Instant::now();
        let (server, EmbedTask(request), embeddings) =
            embeddings_of::<EmbedTask>(&state, &preparation, &log, body).await?;
        let most = embeddings.first().map_or(usize::MAX, |embedding| embedding.values.len());
        let dimensions = request.dimensions.unwrap_or(most);
        if dimensions > most {
            let message = format!("dimensions is {dimensions}; the model's embeddings have {most}");
            return Err(ApiError::invalid("dimensions", message));
        }
        let all: Vec<Vec<f32>> =
            embeddings.iter().map(|embedding| normalized(&embedding.values, dimensions)).collect();
        let num_tokens: usize = embeddings.iter().map(|embedding| embedding.num_tokens).sum();
        let answer = json!({
            "model": server.name(),
            "embeddings": all,
            "total_duration": started.elapsed().as_nanos() as u64,
            "load_duration": 0,
            "prompt_eval_count": num_tokens,
        });
        Ok(Json(answer).into_response())
    })
    .await
}

pub(super) async fn embeddings(
    State(state): State<AppState>,
    Extension(preparation): Threads,
    Extension(log): Log,
    body: Body,
) -> Result<Response, ApiError> {
    counted(&state, log.clone(), async {
        let (_, _, embeddings) = embeddings_of::<EmbeddingsTask>(&state, &preparation, &log, body).await?;
        let embedding = embeddings.first().map(|embedding| normalized(&embedding.values, usize::MAX));
        Ok(Json(json!({ "embedding": embedding.unwrap_or_default() })).into_response())
    })
    .await
}

//! Routes that generate or embed.

use std::{sync::Arc, time::Instant};

use axum::{
    Extension, Json,
    extract::State,
    response::{IntoResponse, Response},
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, json};

use super::{
    answer::rfc3339,
    check_keep_alive,
    embeddings::{EmbedTask, EmbeddingsTask},
    format::{ChatRoute, GenerateRoute, OllamaFormat, Route},
    model_name,
};
use crate::server::{
    Server,
    embedding::{embed as embeddings_of, normalized},
    embedding_routes::counted,
    handlers::{Body, Log, Threads, respond},
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
    State(server): State<Arc<Server>>,
    Extension(preparation): Threads,
    Extension(log): Log,
    body: Body,
) -> Result<Response, ApiError> {
    match load::<ChatRoute>(&server, &body)? {
        Some(loaded) => Ok(loaded.into_response()),
        None => respond::<OllamaFormat<ChatRoute>>(server, &preparation, log, body).await,
    }
}

pub(super) async fn generate(
    State(server): State<Arc<Server>>,
    Extension(preparation): Threads,
    Extension(log): Log,
    body: Body,
) -> Result<Response, ApiError> {
    match load::<GenerateRoute>(&server, &body)? {
        Some(loaded) => Ok(loaded.into_response()),
        None => respond::<OllamaFormat<GenerateRoute>>(server, &preparation, log, body).await,
    }
}

/// The answer to a request without a prompt: the model is loaded already.
///
/// # Errors
/// 404: it names another model. 400: it asks to unload.
fn load<R: Route>(server: &Server, body: &Body) -> Result<Option<Json<Value>>, ApiError> {
    let Ok(body) = body else { return Ok(None) };
    let bytes = &body.received.bytes;
    let request = (bytes.len() <= LONGEST_LOAD).then(|| serde_json::from_slice(bytes).ok()).flatten();
    let Some(LoadBody { model, messages, prompt, suffix, keep_alive }) = request else { return Ok(None) };
    let is_empty = |text: Option<String>| text.is_none_or(|text| text.is_empty());
    let has_prompt = match R::IS_CHAT {
        true => messages.is_some_and(|messages| !messages.is_empty()),
        false => !is_empty(prompt) || !is_empty(suffix),
    };
    if has_prompt {
        return Ok(None);
    }
    server.check_model(model.as_deref().map(model_name))?;
    check_keep_alive(keep_alive.as_ref())?;
    if keep_alive.is_some_and(|time| time == 0 || time == 0.0 || time == "0") {
        let message = "the served model cannot be unloaded; `POST /v1/models/load` replaces it";
        return Err(ApiError::invalid("keep_alive", message).code("unsupported_operation"));
    }
    let mut loaded = json!({
        "model": server.name(),
        "created_at": rfc3339(unix_seconds()),
        "done": true,
        "done_reason": "load",
    });
    match R::IS_CHAT {
        true => loaded["message"] = json!({ "role": "assistant", "content": "" }),
        false => loaded["response"] = "".into(),
    }
    Ok(Some(Json(loaded)))
}

pub(super) async fn embed(
    State(server): State<Arc<Server>>,
    Extension(preparation): Threads,
    Extension(log): Log,
    body: Body,
) -> Result<Response, ApiError> {
    counted(&server, log.clone(), async {
        let started = Instant::now();
        let (EmbedTask(request), embeddings) =
            embeddings_of::<EmbedTask>(&server, &preparation, &log, body).await?;
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
    State(server): State<Arc<Server>>,
    Extension(preparation): Threads,
    Extension(log): Log,
    body: Body,
) -> Result<Response, ApiError> {
    counted(&server, log.clone(), async {
        let (_, embeddings) = embeddings_of::<EmbeddingsTask>(&server, &preparation, &log, body).await?;
        let embedding = embeddings.first().map(|embedding| normalized(&embedding.values, usize::MAX));
        Ok(Json(json!({ "embedding": embedding.unwrap_or_default() })).into_response())
    })
    .await
}

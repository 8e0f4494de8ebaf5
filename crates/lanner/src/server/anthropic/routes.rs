//! `POST /v1/messages` and `POST /v1/messages/count_tokens`.

use axum::{
    Extension, Json,
    extract::State,
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::{
    format::MessagesFormat,
    request::{MessagesPrompt, MessagesRequest},
};
use crate::server::{
    Server,
    app_state::AppState,
    embedding_routes::counted,
    format::ApiFormat,
    handlers::{Body, Log, Threads, respond},
    openai::{self, ValidRequest, error::ApiError},
    tokens::prepared,
};

pub(crate) async fn messages(
    State(state): State<AppState>,
    Extension(preparation): Threads,
    Extension(log): Log,
    body: Body,
) -> Result<Response, ApiError> {
    respond::<MessagesFormat>(state, &preparation, log, body).await
}

/// Counts the tokens of a prompt, rendered as for an answer.
pub(crate) async fn count_tokens(
    State(state): State<AppState>,
    Extension(preparation): Threads,
    Extension(log): Log,
    body: Body,
) -> Result<Response, ApiError> {
    counted(&state, log, async {
        let input_tokens = prepared(&state, &preparation, body, count).await?;
        Ok(Json(json!({ "input_tokens": input_tokens })).into_response())
    })
    .await
}

fn count(server: &Server, body: &[u8]) -> Result<usize, ApiError> {
    let mut request: MessagesRequest = openai::parse(body)?;
    request.max_tokens.get_or_insert(usize::MAX);
    let ValidRequest::<MessagesPrompt> { prompts, params, .. } = request.try_into()?;
    let (_, prompts) = MessagesFormat::prepare(&server.model, prompts, &params)?;
    Ok(prompts.iter().map(|prompt| prompt.ids.len()).sum())
}

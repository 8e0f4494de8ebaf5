//! `POST /v1/messages` and `POST /v1/messages/count_tokens`.

use std::time::Instant;

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
    handlers::{Body, JsonBody, Log, Threads, respond},
    openai::{self, ValidRequest, error::ApiError},
    preparation::Received,
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
    let arrived = Instant::now();
    counted(&state, log, async {
        let JsonBody { received, .. } = body?;
        let server = state.lease_for(&preparation, &received, arrived).await?;
        let Received { bytes, charge } = received;
        let lane = charge.lane();
        let count = move || {
            // Until preparation has freed its memory.
            let _charge = charge;
            count(&server, &bytes)
        };
        let input_tokens = preparation.run(lane, count).await?;
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

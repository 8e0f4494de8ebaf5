//! `POST /v1/messages` and `POST /v1/messages/count_tokens`.

use std::sync::Arc;

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
    embedding_routes::counted,
    format::ApiFormat,
    handlers::{Body, JsonBody, Log, Threads, respond},
    openai::{self, ValidRequest, error::ApiError},
    preparation::Received,
};

pub(crate) async fn messages(
    State(server): State<Arc<Server>>,
    Extension(preparation): Threads,
    Extension(log): Log,
    body: Body,
) -> Result<Response, ApiError> {
    respond::<MessagesFormat>(server, &preparation, log, body).await
}

/// Counts the tokens of a prompt, rendered as for an answer.
pub(crate) async fn count_tokens(
    State(server): State<Arc<Server>>,
    Extension(preparation): Threads,
    Extension(log): Log,
    body: Body,
) -> Result<Response, ApiError> {
    let served = server.clone();
    counted(&server, log, async {
        let JsonBody { received: Received { bytes, charge }, .. } = body?;
        let lane = charge.lane();
        let count = move || {
            // Until preparation has freed its memory.
            let _charge = charge;
            count(&served, &bytes)
        };
        let input_tokens = preparation.run(lane, count).await?;
        Ok(Json(json!({ "input_tokens": input_tokens })).into_response())
    })
    .await
}

fn count(server: &Server, body: &[u8]) -> Result<usize, ApiError> {
    let mut request: MessagesRequest = openai::parse(body)?;
    request.max_tokens.get_or_insert(usize::MAX);
    let ValidRequest::<MessagesPrompt> { model, prompts, params, .. } = request.try_into()?;
    server.check_model(model.as_deref())?;
    let (_, prompts) = MessagesFormat::prepare(&server.model, prompts, &params)?;
    Ok(prompts.iter().map(|prompt| prompt.ids.len()).sum())
}

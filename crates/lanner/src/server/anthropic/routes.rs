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
use crate::model::Conversation;
use crate::server::{
    Server,
    app_state::AppState,
    embedding_routes::counted,
    format::ApiFormat,
    handlers::{ImageBody, Log, Threads, respond},
    openai::{self, ValidRequest, error::ApiError, prompt_error},
    tokens::prepared_chat,
};

pub(crate) async fn messages(
    State(state): State<AppState>,
    Extension(preparation): Threads,
    Extension(log): Log,
    ImageBody(body): ImageBody,
) -> Result<Response, ApiError> {
    respond::<MessagesFormat>(state, &preparation, log, body).await
}

/// Counts the tokens of a prompt, rendered as for an answer.
pub(crate) async fn count_tokens(
    State(state): State<AppState>,
    Extension(preparation): Threads,
    Extension(log): Log,
    ImageBody(body): ImageBody,
) -> Result<Response, ApiError> {
    counted(&state, log, async {
        let input_tokens = prepared_chat(&state, &preparation, body, parse, count).await?;
        Ok(Json(json!({ "input_tokens": input_tokens })).into_response())
    })
    .await
}

fn parse(body: &[u8]) -> Result<((), Option<Conversation>), ApiError> {
    let mut request: MessagesRequest = openai::parse(body)?;
    request.max_tokens.get_or_insert(usize::MAX);
    let valid: ValidRequest<MessagesPrompt> = request.try_into()?;
    Ok(((), Some(valid.prompts.conversation)))
}

fn count(server: &Server, (): (), conversation: Option<Conversation>) -> Result<usize, ApiError> {
    let prompt = server.model.chat_prompt(&conversation.unwrap_or_default());
    Ok(prompt.map_err(|error| prompt_error(&error, MessagesFormat::PROMPT))?.ids.len())
}

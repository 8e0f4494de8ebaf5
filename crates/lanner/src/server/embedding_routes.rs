//! Routes that answer with embeddings, or compare them.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::State,
    response::{IntoResponse, Response},
};

use super::{
    app_state::AppState,
    embedding::embed,
    handlers::{Body, Log, Threads},
    metrics::{Outcome, OutcomeGuard},
    openai::{
        embeddings::{ValidEmbeddingRequest, embedding_response},
        error::ApiError,
        rerank::ValidRerankRequest,
    },
    request_log::RequestLog,
};
use crate::sampling;

pub(super) async fn embeddings(
    State(state): State<AppState>,
    Extension(preparation): Threads,
    Extension(log): Log,
    body: Body,
) -> Result<Response, ApiError> {
    counted(&state, log.clone(), async {
        let (server, request, embeddings) =
            embed::<ValidEmbeddingRequest>(&state, &preparation, &log, body).await?;
        let response = embedding_response(server.name(), &embeddings, request.encoding, request.dimensions)?;
        Ok(Json(response).into_response())
    })
    .await
}

pub(super) async fn rerank(
    State(state): State<AppState>,
    Extension(preparation): Threads,
    Extension(log): Log,
    body: Body,
) -> Result<Response, ApiError> {
    counted(&state, log.clone(), async {
        let (server, request, embeddings) =
            embed::<ValidRerankRequest>(&state, &preparation, &log, body).await?;
        let id = format!("rerank-{:016x}", sampling::random());
        Ok(Json(request.response(id, server.name(), &embeddings)).into_response())
    })
    .await
}

/// Counts the request with the outcome of its answer.
pub(super) async fn counted(
    state: &AppState,
    log: Arc<RequestLog>,
    answer: impl Future<Output = Result<Response, ApiError>>,
) -> Result<Response, ApiError> {
    let outcome = OutcomeGuard::new(&state.common().requests, log);
    let response = answer.await;
    outcome.record(response.as_ref().map_or_else(Outcome::of, |_| Outcome::Answered));
    response
}

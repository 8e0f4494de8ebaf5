//! Routes that answer with embeddings, or compare them.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::State,
    response::{IntoResponse, Response},
};

use super::{
    Server,
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
    State(server): State<Arc<Server>>,
    Extension(preparation): Threads,
    Extension(log): Log,
    body: Body,
) -> Result<Response, ApiError> {
    counted(&server, log.clone(), async {
        let (request, embeddings) = embed::<ValidEmbeddingRequest>(&server, &preparation, &log, body).await?;
        let response = embedding_response(server.name(), &embeddings, request.encoding, request.dimensions)?;
        Ok(Json(response).into_response())
    })
    .await
}

pub(super) async fn rerank(
    State(server): State<Arc<Server>>,
    Extension(preparation): Threads,
    Extension(log): Log,
    body: Body,
) -> Result<Response, ApiError> {
    counted(&server, log.clone(), async {
        let (request, embeddings) = embed::<ValidRerankRequest>(&server, &preparation, &log, body).await?;
        let id = format!("rerank-{:016x}", sampling::random());
        Ok(Json(request.response(id, server.name(), &embeddings)).into_response())
    })
    .await
}

/// Counts the request with the outcome of its answer.
pub(super) async fn counted(
    server: &Server,
    log: Arc<RequestLog>,
    answer: impl Future<Output = Result<Response, ApiError>>,
) -> Result<Response, ApiError> {
    let outcome = OutcomeGuard::new(&server.requests, log);
    let response = answer.await;
    outcome.record(response.as_ref().map_or_else(Outcome::of, |_| Outcome::Answered));
    response
}

//! Ollama's API over the path of completions: requests become those of OpenAI's routes, and answers
//! are lines of JSON. Models are neither created nor removed.

mod answer;
mod embeddings;
mod format;
mod messages;
mod models;
mod options;
mod pull;
mod request;
mod routes;

pub(crate) use self::{
    answer::Line,
    embeddings::{EmbedBody, EmbeddingsBody},
    models::ShowBody,
    pull::PullBody,
    request::{ChatBody, GenerateBody},
};

use axum::{
    Router,
    routing::{delete, get, post},
};
use serde_json::Value;

use super::{app_state::AppState, openai::error::ApiError};
use crate::keep_alive::KeepAlive;

/// The version of Ollama's API whose requests are understood; editors require a minimum.
const API_VERSION: &str = "0.13.0";

/// The routes that every client may use.
pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route("/api/chat", post(routes::chat))
        .route("/api/generate", post(routes::generate))
        .route("/api/embed", post(routes::embed))
        .route("/api/embeddings", post(routes::embeddings))
        .route("/api/tags", get(models::tags))
        .route("/api/show", post(models::show))
        .route("/api/ps", get(models::ps))
        .route("/api/version", get(models::version))
        .route("/api/delete", delete(models::delete))
        .route("/api/create", post(models::create))
        .route("/api/copy", post(models::copy))
        .route("/api/push", post(models::push))
        .route("/api/blobs/{digest}", post(models::create).head(models::create))
}

/// The routes that `--no-admin` disables.
pub(super) fn admin_routes() -> Router<AppState> {
    Router::new().route("/api/pull", post(pull::pull))
}

/// `keep_alive`: seconds, or a duration such as `5m`; a negative one is for ever.
///
/// # Errors
/// 400: it is neither.
fn keep_alive(field: Option<Value>) -> Result<Option<KeepAlive>, ApiError> {
    let wrong = |_| {
        let message = "keep_alive must be a number of seconds, or a duration such as `5m`";
        ApiError::invalid("keep_alive", message)
    };
    field.map(serde_json::from_value).transpose().map(Option::flatten).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_alive_is_a_time_or_left_out() {
        let is_some = |field: Value| keep_alive(Some(field)).map(|time| time.is_some());
        assert_eq!(is_some(5.into()).ok(), Some(true));
        assert_eq!(is_some("1h30m".into()).ok(), Some(true));
        assert_eq!(is_some(Value::Null).ok(), Some(false));
        for wrong in [Value::Bool(true), "5x".into(), "".into()] {
            assert!(is_some(wrong).is_err());
        }
    }
}

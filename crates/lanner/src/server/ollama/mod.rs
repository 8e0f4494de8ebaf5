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

/// A name without the tag that Ollama's clients add.
fn model_name(name: &str) -> &str {
    name.strip_suffix(":latest").unwrap_or(name)
}

/// `keep_alive`: seconds, or a duration such as `5m`. It changes nothing, for the served model
/// stays loaded.
///
/// # Errors
/// 400: it is neither.
fn check_keep_alive(keep_alive: Option<&Value>) -> Result<(), ApiError> {
    match keep_alive {
        None | Some(Value::Null | Value::Number(_)) => Ok(()),
        Some(Value::String(text)) if is_duration(text) => Ok(()),
        Some(_) => {
            let message = "keep_alive must be a number of seconds, or a duration such as `5m`";
            Err(ApiError::invalid("keep_alive", message))
        }
    }
}

/// Go's durations: numbers with units, or a number of seconds.
fn is_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest.is_empty() || rest.parse::<f64>().is_ok_and(f64::is_finite) {
        return !rest.is_empty();
    }
    while !rest.is_empty() {
        let unit = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let next = unit.trim_start_matches(|c: char| c.is_alphabetic());
        let (number, unit) = (&rest[..rest.len() - unit.len()], &unit[..unit.len() - next.len()]);
        if number.parse::<f64>().is_err() || !["ns", "us", "µs", "ms", "s", "m", "h"].contains(&unit) {
            return false;
        }
        rest = next;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keep_alive_is_a_number_or_a_duration() {
        for text in ["0", "-1", "5m", "1h30m", "1.5h", "-1m", "250ms", "3600", "5"] {
            assert!(is_duration(text), "{text}");
        }
        for text in ["", "m", "5 m", "5x", "1h30", "-", "inf", "NaN"] {
            assert!(!is_duration(text), "{text}");
        }
        assert!(check_keep_alive(Some(&Value::Bool(true))).is_err());
    }

    #[test]
    fn model_name_loses_only_the_usual_tag() {
        assert_eq!(
            ["merlin:latest", "merlin", "org/name:part"].map(model_name),
            ["merlin", "merlin", "org/name:part"]
        );
    }
}

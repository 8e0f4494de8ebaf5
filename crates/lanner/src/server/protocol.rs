//! The APIs that the server speaks, and what differs between them whatever the route.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::{
    format::Frame,
    openai::error::{ApiError, ErrorObject},
};

/// An API whose clients the server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    OpenAi,
    Anthropic,
    Ollama,
}

/// Anthropic's status of an overloaded server, which its clients retry.
pub(crate) const OVERLOADED: u16 = 529;

impl Protocol {
    /// The API of a canonical path.
    pub(super) fn of(path: &str) -> Protocol {
        match path.trim_start_matches('/').split('/').take(2).collect::<Vec<_>>()[..] {
            ["v1", "messages"] => Protocol::Anthropic,
            ["api", ..] => Protocol::Ollama,
            _ => Protocol::OpenAi,
        }
    }

    pub(super) fn status(self, error: &ApiError) -> StatusCode {
        match (self, error.status) {
            (Protocol::Anthropic, StatusCode::SERVICE_UNAVAILABLE) => {
                StatusCode::from_u16(OVERLOADED).unwrap_or(error.status)
            }
            (_, status) => status,
        }
    }

    /// The body of an error; `id` is the request's.
    pub(super) fn error(self, error: &ApiError, id: &str) -> Value {
        match self {
            Protocol::OpenAi => json!(ErrorObject { error: &error.body }),
            Protocol::Anthropic => {
                let error = json!({ "type": anthropic_type(error), "message": anthropic_message(error) });
                json!({ "type": "error", "error": error, "request_id": id })
            }
            Protocol::Ollama => json!({ "error": error.body.message }),
        }
    }

    /// The event that ends a stream with an error.
    pub(super) fn error_frame(self, error: &ApiError, id: &str) -> Frame {
        let event = (self == Protocol::Anthropic).then_some("error");
        Frame::json(event, &self.error(error, id))
    }
}

fn anthropic_type(error: &ApiError) -> &'static str {
    match error.status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        504 => "timeout_error",
        status if status >= 500 => "api_error",
        _ => "invalid_request_error",
    }
}

/// Clients of Anthropic compact their conversation if they read this phrase.
fn anthropic_message(error: &ApiError) -> String {
    match error.body.code {
        Some("context_length_exceeded") => format!("prompt is too long: {}", error.body.message),
        _ => error.body.message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_follows_from_the_path() {
        for (path, protocol) in [
            ("/v1/messages", Protocol::Anthropic),
            ("/v1/messages/count_tokens", Protocol::Anthropic),
            ("/api/chat", Protocol::Ollama),
            ("/v1/chat/completions", Protocol::OpenAi),
            ("/health", Protocol::OpenAi),
            ("/", Protocol::OpenAi),
        ] {
            assert_eq!(Protocol::of(path), protocol, "{path}");
        }
    }

    #[test]
    fn error_has_the_shape_of_its_protocol() {
        let error = ApiError::invalid("max_tokens", "max_tokens is 0");
        assert_eq!(
            Protocol::Anthropic.error(&error, "req_1"),
            json!({ "type": "error", "request_id": "req_1",
                    "error": { "type": "invalid_request_error", "message": "max_tokens is 0" } })
        );
        assert_eq!(Protocol::Ollama.error(&error, "req_1"), json!({ "error": "max_tokens is 0" }));
        assert_eq!(Protocol::OpenAi.error(&error, "req_1")["error"]["param"], "max_tokens");
        let full = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "no memory");
        assert_eq!(Protocol::Anthropic.status(&full).as_u16(), 529);
        assert_eq!(Protocol::Anthropic.error(&full, "")["error"]["type"], "overloaded_error");
        assert_eq!(Protocol::Ollama.status(&full).as_u16(), 503);
    }

    #[test]
    fn error_frame_is_a_named_event_for_anthropic_only() {
        let error = ApiError::invalid("a", "b");
        assert_eq!(Protocol::Anthropic.error_frame(&error, "r").event, Some("error"));
        assert_eq!(Protocol::OpenAi.error_frame(&error, "r").event, None);
        assert_eq!(Protocol::Ollama.error_frame(&error, "r").data, r#"{"error":"b"}"#);
    }
}

//! Errors as OpenAI clients expect them: `{"error": {"message", "type", "param", "code"}}` and a status.

use std::time::Duration;

use axum::{
    Json,
    http::{StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
};
use engine::RequestError;
use serde::Serialize;

/// When to try again where there was no memory: requests that run end in seconds, not in milliseconds.
const MEMORY_WAIT: Duration = Duration::from_secs(2);

/// Bytes of a longer message than any of ours.
const MOST_MESSAGE: usize = 1000;

/// Why a request was not answered; one sentence for a person, a `code` for a program.
#[derive(Clone, Debug)]
pub struct ApiError {
    pub status: StatusCode,
    pub body: ErrorBody,
    /// When the same request may do better.
    pub retry_after: Option<Duration>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ErrorBody {
    pub message: String,
    pub r#type: &'static str,
    pub param: Option<String>,
    pub code: Option<&'static str>,
}

/// The object around an error, in a response or an SSE event.
#[derive(Serialize)]
pub struct ErrorObject<'a> {
    pub error: &'a ErrorBody,
}

impl ApiError {
    /// The request is at fault, in a way that only another request can mend.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message).param(param)
    }

    /// The body cannot be read at all, so no field is at fault.
    pub fn invalid_body(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }

    /// A field that would change the answer in a way this server cannot.
    pub fn unsupported(param: &str) -> ApiError {
        ApiError::invalid(param, format!("{param} is not supported yet")).code("unsupported_parameter")
    }

    /// As in Stripe's API, and no 409, which OpenAI's clients would send again.
    pub fn key_reused() -> ApiError {
        let message = "another request had this idempotency_key; a new request needs a new key";
        let mut error = ApiError::invalid("idempotency_key", message).code("idempotency_key_reused");
        error.body.r#type = "idempotency_error";
        error
    }

    pub fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        let r#type = if status.is_server_error() { "server_error" } else { "invalid_request_error" };
        let body = ErrorBody { message: cut(message.into()), r#type, param: None, code: None };
        ApiError { status, body, retry_after: None }
    }

    pub fn param(mut self, param: impl Into<String>) -> ApiError {
        self.body.param = Some(param.into());
        self
    }

    pub fn code(mut self, code: &'static str) -> ApiError {
        self.body.code = Some(code);
        self
    }

    /// What the engine refused or failed on; `prompt` is the field that held the prompt.
    pub fn from_engine(error: &RequestError, prompt: &str) -> ApiError {
        let message = error.to_string();
        match error {
            RequestError::EmptyPrompt => ApiError::invalid(prompt, message),
            RequestError::NoTokensAsked => ApiError::invalid("max_tokens", message),
            RequestError::PromptTooLong { .. } => {
                ApiError::invalid(prompt, message).code("context_length_exceeded")
            }
            RequestError::TokenOutOfRange { .. } => ApiError::new(StatusCode::BAD_REQUEST, message),
            RequestError::BadSampling { name, .. } => ApiError::invalid(*name, message),
            // Checkpoints are our own doing.
            RequestError::Step(_) | RequestError::NotFinite | RequestError::BadCheckpoint { .. } => {
                ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
            }
            RequestError::UnknownDrafter { .. } | RequestError::DraftTooLong { .. } => {
                ApiError::invalid("speculation", message)
            }
            RequestError::NothingAllowed { .. } | RequestError::NoCandidate { .. } => {
                ApiError::new(StatusCode::BAD_REQUEST, message)
            }
            RequestError::TimeIsUp => ApiError::new(StatusCode::GATEWAY_TIMEOUT, message).code("timeout"),
            RequestError::QueueFull { retry_after, .. } => {
                let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, message).code("queue_full");
                ApiError { retry_after: Some(*retry_after), ..error }
            }
            RequestError::NeverFits { .. } => ApiError::invalid(prompt, message).code("memory_exceeded"),
            RequestError::MemoryFull { .. } | RequestError::OutOfMemory(_) => {
                let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("out_of_memory");
                ApiError { retry_after: Some(MEMORY_WAIT), ..error }
            }
            RequestError::EngineStopped => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message),
        }
    }
}

/// What a client sent comes back in errors about it, but not whole where it is long.
fn cut(message: String) -> String {
    if message.len() <= MOST_MESSAGE {
        return message;
    }
    let part = |from: usize, to: usize| message.chars().skip(from).take(to - from).collect::<String>();
    let chars = message.chars().count();
    let head = chars.min(MOST_MESSAGE / 4);
    format!("{} ... {}", part(0, head), part(head.max(chars.saturating_sub(MOST_MESSAGE / 8)), chars))
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            tracing::error!(status = self.status.as_u16(), "{}", self.body.message);
        } else {
            tracing::debug!(status = self.status.as_u16(), "{}", self.body.message);
        }
        let seconds = self.retry_after.map(|wait| wait.as_secs_f64().ceil().to_string());
        let retry_after = seconds.map(|seconds| [(RETRY_AFTER, seconds)]);
        (self.status, retry_after, Json(ErrorObject { error: &self.body })).into_response()
    }
}

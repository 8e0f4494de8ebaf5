//! Errors as OpenAI clients expect them: `{"error": {"message", "type", "param", "code"}}` and a status.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use engine::RequestError;
use serde::Serialize;

/// Why a request was not answered; one sentence for a person, a `code` for a program.
#[derive(Clone, Debug)]
pub struct ApiError {
    pub status: StatusCode,
    pub body: ErrorBody,
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

    pub fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        let r#type = if status.is_server_error() { "server_error" } else { "invalid_request_error" };
        ApiError { status, body: ErrorBody { message: message.into(), r#type, param: None, code: None } }
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
            RequestError::EngineStopped => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            tracing::error!(status = self.status.as_u16(), "{}", self.body.message);
        } else {
            tracing::debug!(status = self.status.as_u16(), "{}", self.body.message);
        }
        (self.status, Json(ErrorObject { error: &self.body })).into_response()
    }
}

//! Errors in OpenAI's format: a status and `{"error": {"message", "type", "param", "code"}}`.

use std::time::Duration;

use axum::{
    Json,
    http::{StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
};
use engine::RequestError;
use schemars::JsonSchema;
use serde::Serialize;

use crate::image::ImageError;

/// Longer messages quote the client's input, which may be megabytes.
const LONGEST_MESSAGE: usize = 600;
const LONGEST_PARAM: usize = 100;

/// `Retry-After` if memory is full: running requests end in seconds, not in milliseconds.
const MEMORY_RETRY_AFTER: Duration = Duration::from_secs(2);

/// Why a request failed: a sentence for people, a `code` for programs.
#[derive(Clone, Debug)]
pub struct ApiError {
    pub status: StatusCode,
    pub body: ErrorBody,
    /// When the same request may succeed.
    pub retry_after: Option<Duration>,
}

#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct ErrorBody {
    pub message: String,
    pub r#type: &'static str,
    pub param: Option<String>,
    pub code: Option<&'static str>,
}

/// The object around an error, in a response or an SSE event.
#[derive(JsonSchema, Serialize)]
#[schemars(rename = "Error")]
pub struct ErrorObject<'a> {
    pub error: &'a ErrorBody,
}

impl ApiError {
    /// A field is not valid.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message).param(param)
    }

    /// The body cannot be read.
    pub fn invalid_body(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, message)
    }

    /// The field would change the answer and is not supported.
    pub fn unsupported(param: &str) -> ApiError {
        ApiError::invalid(param, format!("{param} is not supported yet")).code("unsupported_parameter")
    }

    /// The prompt in `param` leaves no token of the context for an answer; `rest` says by how much.
    /// Clients shorten their conversations if they read OpenAI's phrase, or Anthropic's.
    pub fn context_exceeded(param: &str, context: usize, rest: &str) -> ApiError {
        let message = format!(
            "This model's maximum context length is {context} tokens. However, your prompt is too long: {rest}"
        );
        ApiError::invalid(param, message).code("context_length_exceeded")
    }

    /// A body has more text, which is all but its images, than the limit.
    pub fn too_much_text(text: usize, limit: usize) -> ApiError {
        let message = format!(
            "the body has {text} bytes besides its images, more than the limit of {limit}; see --body-limit"
        );
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message).code("request_too_large")
    }

    /// 400 as in Stripe's API: OpenAI's clients retry a 409.
    pub fn key_reused() -> ApiError {
        let message = "another request had this idempotency_key; a new request needs a new key";
        let mut error = ApiError::invalid("idempotency_key", message).code("idempotency_key_reused");
        error.body.r#type = "idempotency_error";
        error
    }

    pub fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        let r#type = if status.is_server_error() { "server_error" } else { "invalid_request_error" };
        let message = shortened(message.into(), LONGEST_MESSAGE);
        let body = ErrorBody { message, r#type, param: None, code: None };
        ApiError { status, body, retry_after: None }
    }

    pub fn param(mut self, param: impl Into<String>) -> ApiError {
        self.body.param = Some(shortened(param.into(), LONGEST_PARAM));
        self
    }

    pub fn code(mut self, code: &'static str) -> ApiError {
        self.body.code = Some(code);
        self
    }

    /// An error of the engine; `prompt` is the field that held the prompt.
    pub fn from_engine(error: &RequestError, prompt: &str) -> ApiError {
        let message = error.to_string();
        match error {
            RequestError::EmptyPrompt => ApiError::invalid(prompt, message),
            RequestError::EncoderOnly => ApiError::invalid("model", message).code("unsupported_model"),
            RequestError::NoTokensAsked => ApiError::invalid("max_tokens", message),
            RequestError::PromptTooLong { prompt: tokens, context } => {
                let rest = format!("it has {tokens} tokens; shorten it by {}", tokens + 1 - context);
                ApiError::context_exceeded(prompt, *context, &rest)
            }
            RequestError::TokenOutOfRange { .. } => ApiError::new(StatusCode::BAD_REQUEST, message),
            RequestError::BadSampling { name, .. } => ApiError::invalid(*name, message),
            RequestError::NoVision | RequestError::NoVisionTower => {
                ApiError::invalid(prompt, message).code("unsupported_image")
            }
            // An image processor may allow sizes that the tower of its checkpoint does not take.
            RequestError::BadImage { .. } => ApiError::invalid(prompt, message).code("invalid_image"),
            // Cache breakpoints are set by this server.
            RequestError::Step(_) | RequestError::NotFinite | RequestError::BadCacheBreakpoint { .. } => {
                ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
            }
            RequestError::UnknownDrafter { .. } | RequestError::DraftTooLong { .. } => {
                ApiError::invalid("speculation", message)
            }
            RequestError::NothingAllowed { .. }
            | RequestError::NoCandidate { .. }
            | RequestError::Constraint { .. } => ApiError::new(StatusCode::BAD_REQUEST, message),
            RequestError::TimeIsUp => ApiError::new(StatusCode::GATEWAY_TIMEOUT, message).code("timeout"),
            RequestError::QueueFull { retry_after, .. } => {
                let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, message).code("queue_full");
                ApiError { retry_after: Some(*retry_after), ..error }
            }
            RequestError::NeverFits { .. } => ApiError::invalid(prompt, message).code("memory_exceeded"),
            RequestError::MemoryFull { .. } | RequestError::OutOfMemory(_) => {
                let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("out_of_memory");
                ApiError { retry_after: Some(MEMORY_RETRY_AFTER), ..error }
            }
            RequestError::Unread { .. } => {
                ApiError::new(StatusCode::REQUEST_TIMEOUT, message).code("client_too_slow")
            }
            RequestError::EngineStopped => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message),
        }
    }
}

impl From<ImageError> for ApiError {
    fn from(error: ImageError) -> ApiError {
        ApiError::invalid(&error.field, error.to_string()).code("invalid_image")
    }
}

/// Keeps the beginning and the end of a text longer than `most` bytes.
fn shortened(text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    let is_boundary = |at: &usize| text.is_char_boundary(*at);
    let head = (0..=most * 2 / 3).rev().find(is_boundary).unwrap_or(0);
    let tail = (text.len() - most / 3..text.len()).find(is_boundary).unwrap_or(text.len());
    format!("{} [...] {}", &text[..head], &text[tail..])
}

impl ApiError {
    /// A complete HTTP/1.1 response that closes the connection.
    pub fn to_http(&self) -> String {
        let body = serde_json::to_string(&ErrorObject { error: &self.body }).unwrap_or_default();
        let wait = self.retry_after.map(|wait| format!("retry-after: {}\r\n", wait.as_secs_f64().ceil()));
        format!(
            "HTTP/1.1 {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{}connection: close\r\n\r\n{body}",
            self.status,
            body.len(),
            wait.unwrap_or_default()
        )
    }
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
        let mut response =
            (self.status, retry_after, Json(ErrorObject { error: &self.body })).into_response();
        // For the layer that writes it in the format of another protocol.
        response.extensions_mut().insert(self);
        response
    }
}

/// The message of a JSON error, in which types have JSON's names instead of Rust's.
pub fn json_error(error: &serde_json::Error) -> String {
    let message = error.to_string();
    // The last one: what is before may quote the client.
    let Some((wrong, expected)) = message.rsplit_once(", expected ") else { return message };
    let place = expected.find(" at line ").unwrap_or(expected.len());
    let (own, place) = expected.split_at(place);
    let json = match own {
        "usize" | "u8" | "u16" | "u32" | "u64" => "a whole number that is not negative",
        "isize" | "i8" | "i16" | "i32" | "i64" => "a whole number",
        "f32" | "f64" => "a number",
        "a sequence" => "an array",
        "a map" => "an object",
        own if own.starts_with("struct ") => "an object",
        own => own,
    };
    let wrong = match wrong {
        "invalid type: map" => "invalid type: object",
        "invalid type: sequence" => "invalid type: array",
        wrong => wrong,
    };
    format!("{wrong}, expected {json}{place}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_errors_name_no_types_of_rust() {
        #[derive(Debug, serde::Deserialize)]
        struct Fields {
            #[serde(default)]
            _count: Option<usize>,
        }
        let error = |text: &str| json_error(&serde_json::from_str::<Fields>(text).unwrap_err());
        let whole = "expected a whole number that is not negative at line 1 column";
        assert_eq!(
            error(r#"{"_count": "a, expected usize"}"#),
            format!("invalid type: string \"a, expected usize\", {whole} 30")
        );
        assert_eq!(error(r#"{"_count": -1}"#), format!("invalid value: integer `-1`, {whole} 13"));
        assert_eq!(error("7"), "invalid type: integer `7`, expected an object at line 1 column 1");
        let number = serde_json::from_str::<f32>("[]").unwrap_err();
        assert!(json_error(&number).contains("expected a number"), "{}", json_error(&number));
        let list = json_error(&serde_json::from_str::<Vec<u8>>("{}").unwrap_err());
        assert!(list.starts_with("invalid type: object, expected an array"), "{list}");
        let text = json_error(&serde_json::from_str::<String>("[]").unwrap_err());
        assert!(text.starts_with("invalid type: array, expected a string"), "{text}");
    }

    #[test]
    fn long_message_keeps_its_beginning_and_end() {
        assert_eq!(shortened("short".into(), 5), "short");
        assert_eq!(shortened("0123456789abcdef".into(), 9), "012345 [...] def");
        assert_eq!(shortened("\u{20ac}".repeat(9), 9), "\u{20ac}\u{20ac} [...] \u{20ac}");
        let error = ApiError::invalid("p".repeat(1 << 20), "m".repeat(1 << 20));
        assert!(error.body.message.len() < 700 && error.body.param.is_some_and(|param| param.len() < 120));
    }

    #[test]
    fn image_that_the_tower_refuses_is_a_400() {
        let refused = RequestError::BadImage { index: 1, message: "it is too wide".into() };
        let error = ApiError::from_engine(&refused, "messages");
        assert_eq!(error.status, StatusCode::BAD_REQUEST);
        assert_eq!((error.body.param.as_deref(), error.body.code), (Some("messages"), Some("invalid_image")));
        assert_eq!(error.body.message, "image 2 of the request: it is too wide");
    }

    #[test]
    fn to_http_is_a_complete_response() {
        let error = ApiError { retry_after: Some(Duration::from_millis(1)), ..ApiError::invalid("p", "m") };
        let text = error.to_http();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n") && head.contains("retry-after: 1\r\n"));
        assert!(
            head.contains(&format!("content-length: {}\r\n", body.len())) && body.contains("\"param\":\"p\"")
        );
    }
}

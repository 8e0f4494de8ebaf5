//! How a route writes its responses, and what both routes have in common.

use std::sync::Arc;

use axum::http::StatusCode;
use serde::{Serialize, de::DeserializeOwned};

use super::{
    error::ApiError,
    params::{GenerateParams, ValidRequest},
};
use crate::{
    generate::{ChoiceEvent, Reason},
    model::{Model, Prompt, PromptError},
};

/// The request and response bodies of one route.
pub trait ApiFormat: Sized + Send + 'static {
    type Request: DeserializeOwned + TryInto<ValidRequest<Self::Prompts>, Error = ApiError>;
    type Prompts: Send + Sync;
    /// The part of a choice in one chunk of a stream.
    type Piece: Serialize + Send;
    /// A whole choice, folded from pieces.
    type Choice: Serialize + Send;

    const ID_PREFIX: &'static str;
    /// `object` of a chunk.
    const CHUNK: &'static str;
    /// `object` of a whole response.
    const WHOLE: &'static str;
    /// The request's field that holds the prompt.
    const PROMPT: &'static str;

    /// Encodes the prompts.
    ///
    /// # Errors
    /// A prompt cannot be rendered or encoded, or is too long.
    fn prepare(
        model: &Arc<Model>,
        prompts: Self::Prompts,
        params: &GenerateParams,
    ) -> Result<(Self, Vec<Prompt>), ApiError>;
    /// The piece before a choice's first token.
    fn first_piece(&mut self, choice: usize) -> Option<Self::Piece>;
    fn piece(&mut self, choice: usize, event: ChoiceEvent) -> Option<Self::Piece>;
    fn empty_choice(index: usize) -> Self::Choice;
    fn append(choice: &mut Self::Choice, piece: Self::Piece);
}

/// The error of a prompt; `param` is the field that held it.
pub fn prompt_error(error: &PromptError, param: &str) -> ApiError {
    match error {
        PromptError::TooLong { .. } => {
            ApiError::invalid(param, error.to_string()).code("context_length_exceeded")
        }
        PromptError::Tools(invalid) => ApiError::invalid(&invalid.field, error.to_string()),
        PromptError::NoToolDialect(_) => ApiError::invalid("tools", error.to_string()),
        error if error.is_request_error() => ApiError::invalid(param, error.to_string()),
        error => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

pub fn finish_reason(reason: Reason) -> &'static str {
    match reason {
        Reason::Stop => "stop",
        Reason::ToolCalls => "tool_calls",
        Reason::Length => "length",
        // vLLM's name; OpenAI has none for an answer that the server cancelled.
        Reason::Cancelled => "abort",
    }
}

/// JSON has no infinity; OpenAI writes -9999 for impossible tokens. Widened so that equal values
/// print alike everywhere.
pub fn finite(logprob: f32) -> f64 {
    f64::from(logprob.max(-9999.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finish_reason_of_cancelled_is_abort() {
        let reasons = [Reason::Stop, Reason::ToolCalls, Reason::Length, Reason::Cancelled].map(finish_reason);
        assert_eq!(reasons, ["stop", "tool_calls", "length", "abort"]);
    }
}

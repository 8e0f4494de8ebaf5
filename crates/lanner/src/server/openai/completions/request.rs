//! Request bodies of `POST /v1/completions`, and their validation.

use serde::de::IgnoredAny;

use super::prompt::{PromptField, PromptInput};
use crate::server::openai::{
    error::ApiError,
    fields,
    params::ValidRequest,
    request::{RouteParams, request_body},
};

/// OpenAI's default for text completions.
const DEFAULT_MAX_TOKENS: usize = 16;

request_body! {
    pub struct CompletionRequest {
        prompt: PromptField,
        echo: Option<bool>,
        suffix: Option<IgnoredAny>,
        best_of: Option<usize>,
        return_token_ids: Option<bool>,
        logprobs: Option<usize>,
        response_format: Option<IgnoredAny>,
    }
}

/// What to complete.
#[derive(Debug, PartialEq)]
pub struct CompletionPrompts {
    /// At least one.
    pub prompts: Vec<PromptInput>,
    pub echo: bool,
    pub return_token_ids: bool,
}

impl TryFrom<CompletionRequest> for ValidRequest<CompletionPrompts> {
    type Error = ApiError;

    fn try_from(mut request: CompletionRequest) -> Result<ValidRequest<CompletionPrompts>, ApiError> {
        let shared = request.take_shared();
        fields::refuse(&[
            ("suffix", request.suffix.is_some()),
            ("best_of", request.best_of.is_some_and(|best_of| best_of != shared.n.unwrap_or(1))),
            ("response_format", request.response_format.is_some()),
        ])?;
        let echo = request.echo.unwrap_or(false);
        let max_tokens = shared.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
        if max_tokens == 0 && !echo {
            return Err(ApiError::invalid("max_tokens", "max_tokens may be 0 only with `echo: true`"));
        }
        let logprobs = request.logprobs.map(|count| fields::top_logprobs("logprobs", count)).transpose()?;
        let prompts = CompletionPrompts {
            prompts: request.prompt.split()?,
            echo,
            return_token_ids: request.return_token_ids.unwrap_or(false),
        };
        let route = RouteParams {
            max_tokens: Some(max_tokens.max(1)),
            logprobs,
            prompt_logprobs: echo && logprobs.is_some(),
            prompt_only: max_tokens == 0,
            tools: None,
        };
        shared.validate(prompts, route)
    }
}

//! Request bodies of `POST /v1/completions`, and their validation.

use crate::{
    server::openai::{
        error::ApiError,
        fields,
        params::ValidRequest,
        prompt::{PromptField, PromptInput},
        request::{RouteParams, request_body},
    },
    thinking::ThinkingParams,
};

/// OpenAI's default for text completions.
const DEFAULT_MAX_TOKENS: usize = 16;
const MAX_PROMPTS: usize = 128;

request_body! {
    pub struct CompletionRequest {
        /// Texts or token ids to continue.
        prompt: PromptField,
        /// Repeat the prompt before the completion.
        #[schemars(extend("default" = false))]
        echo: Option<bool>,
        /// The text after the completion, for models with tokens to fill in the middle.
        suffix: Option<String>,
        /// Must equal `n`.
        best_of: Option<usize>,
        /// Add `prompt_token_ids` and `token_ids` to every choice.
        #[schemars(extend("default" = false))]
        return_token_ids: Option<bool>,
        /// Report log-probabilities, with this many alternatives per token.
        #[schemars(range(max = fields::MAX_TOP_LOGPROBS))]
        logprobs: Option<usize>,
    }
}

/// What to complete.
#[derive(Debug, PartialEq)]
pub struct CompletionPrompts {
    /// At least one.
    pub prompts: Vec<PromptInput>,
    /// The text after the completion.
    pub suffix: Option<String>,
    pub echo: bool,
    pub return_token_ids: bool,
}

impl TryFrom<CompletionRequest> for ValidRequest<CompletionPrompts> {
    type Error = ApiError;

    fn try_from(mut request: CompletionRequest) -> Result<ValidRequest<CompletionPrompts>, ApiError> {
        let shared = request.take_shared();
        fields::refuse(&[(
            "best_of",
            request.best_of.is_some_and(|best_of| best_of != shared.n.unwrap_or(1)),
        )])?;
        let echo = request.echo.unwrap_or(false);
        let suffix = request.suffix.filter(|suffix| !suffix.is_empty());
        if echo && suffix.is_some() {
            return Err(ApiError::invalid("suffix", "suffix and echo exclude each other"));
        }
        let max_tokens = shared.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
        if max_tokens == 0 && !echo {
            return Err(ApiError::invalid("max_tokens", "max_tokens may be 0 only with `echo: true`"));
        }
        let logprobs = request.logprobs.map(|count| fields::top_logprobs("logprobs", count)).transpose()?;
        let prompts = CompletionPrompts {
            prompts: request.prompt.split("prompt", MAX_PROMPTS)?,
            suffix,
            echo,
            return_token_ids: request.return_token_ids.unwrap_or(false),
        };
        let route = RouteParams {
            max_tokens: Some(max_tokens.max(1)),
            logprobs,
            prompt_logprobs: echo && logprobs.is_some(),
            prompt_only: max_tokens == 0,
            tools: None,
            thinking: ThinkingParams::default(),
        };
        shared.validate(prompts, route)
    }
}

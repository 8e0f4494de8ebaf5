//! `thinking` of a request, and the signatures of thinking blocks.

use std::hash::{DefaultHasher, Hasher};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::server::{
    openai::{
        error::ApiError,
        responses::{decode_reasoning, encode_reasoning},
    },
    schema::words,
};

/// Smallest budget of Anthropic's API.
const MIN_BUDGET: usize = 1024;

#[derive(Debug, Deserialize, JsonSchema)]
pub struct ThinkingField {
    #[schemars(transform = words(["enabled", "disabled", "adaptive"]))]
    r#type: String,
    /// Most tokens of thinking. Below `max_tokens`, which counts them.
    #[schemars(range(min = MIN_BUDGET))]
    budget_tokens: Option<usize>,
    /// Whether the block has its text.
    #[schemars(transform = words(["summarized", "omitted"]))]
    display: Option<String>,
}

/// How an answer thinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thinking {
    /// `None`: as the model does by itself.
    pub enabled: Option<bool>,
    /// Most tokens; `None`: the model's default.
    pub budget: Option<usize>,
    /// Sends its text only encoded, as the signature.
    pub omitted: bool,
}

impl Thinking {
    /// # Errors
    /// 400 that names the field.
    pub fn new(field: Option<&ThinkingField>, max_tokens: usize) -> Result<Thinking, ApiError> {
        // Only requests that ask for thinking get it, as in Anthropic's API.
        let Some(field) = field else {
            return Ok(Thinking { enabled: Some(false), budget: None, omitted: false });
        };
        let wrong = |name: &str, message: String| Err(ApiError::invalid(format!("thinking.{name}"), message));
        let enabled = match (&*field.r#type, field.budget_tokens) {
            ("disabled", _) => Some(false),
            ("adaptive", _) => None,
            ("enabled", None) => return wrong("budget_tokens", "thinking.budget_tokens is missing".into()),
            ("enabled", Some(budget)) if budget < MIN_BUDGET || budget >= max_tokens => {
                let message = format!(
                    "thinking.budget_tokens is {budget}; it must be {MIN_BUDGET} or more, and below max_tokens"
                );
                return wrong("budget_tokens", message);
            }
            ("enabled", Some(_)) => Some(true),
            (other, _) => {
                let message = format!("thinking.type is `{other}`; it must be enabled, disabled or adaptive");
                return wrong("type", message);
            }
        };
        match field.display.as_deref() {
            None | Some("summarized") => {
                Ok(Thinking { enabled, budget: field.budget_tokens, omitted: false })
            }
            Some("omitted") => Ok(Thinking { enabled, budget: field.budget_tokens, omitted: true }),
            Some(other) => {
                let message = format!("thinking.display is `{other}`; it must be summarized or omitted");
                wrong("display", message)
            }
        }
    }

    /// The signature of a thinking block: its text if the block is sent without it.
    pub fn signature(self, text: &str) -> String {
        if self.omitted {
            return encode_reasoning(text);
        }
        let mut hasher = DefaultHasher::new();
        hasher.write(text.as_bytes());
        format!("lanner{:016x}", hasher.finish())
    }
}

/// The text of a block that was sent without it; empty if another server signed it.
pub(super) fn signed_text(signature: &str) -> String {
    decode_reasoning(signature).unwrap_or_default()
}

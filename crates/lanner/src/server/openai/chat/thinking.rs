//! Fields of chat completions about thinking, in the spellings that clients use.

use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    server::{openai::error::ApiError, schema::words},
    thinking::{DEFAULT_BUDGET, Escape, ThinkingParams},
};

/// Longest sentence of `thinking_escape`, in bytes.
pub(crate) const MAX_ESCAPE_BYTES: usize = 1000;
/// Budgets of `reasoning_effort`, in tokens.
const EFFORTS: [(&str, usize); 6] = [
    ("minimal", 512),
    ("low", 2048),
    ("medium", 8192),
    ("high", DEFAULT_BUDGET),
    ("xhigh", DEFAULT_BUDGET),
    ("max", DEFAULT_BUDGET),
];

/// `enable_thinking`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "true, false or `auto`")]
pub(super) enum ThinkingSwitch {
    Said(bool),
    Word(#[schemars(transform = words(["auto"]))] String),
}

/// Anthropic's `thinking`, which DeepSeek, GLM and Kimi have too.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ThinkingObject {
    #[schemars(transform = words(["enabled", "disabled", "auto", "adaptive"]))]
    r#type: String,
    /// Most tokens of thinking.
    budget_tokens: Option<usize>,
}

/// The fields as sent.
#[derive(Debug, Default)]
pub(super) struct ThinkingFields<'a> {
    pub enable_thinking: Option<ThinkingSwitch>,
    pub thinking: Option<ThinkingObject>,
    pub reasoning_effort: Option<&'a str>,
    pub max_thinking_tokens: Option<usize>,
    pub thinking_budget: Option<usize>,
    pub thinking_token_budget: Option<usize>,
    pub thinking_escape: Option<String>,
    pub repetition: Option<String>,
    /// Whether `max_completion_tokens` is given.
    pub shares_max_tokens: bool,
}

/// Whether a request thinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Thinks {
    Said(bool),
    /// By rules.
    Auto,
    /// It does not say.
    Unsaid,
}

impl ThinkingFields<'_> {
    /// # Errors
    /// 400 that names the field.
    pub(super) fn validate(self) -> Result<(Thinks, ThinkingParams), ApiError> {
        let thinks = self.thinks()?;
        let budget = self.budget()?;
        let escape = match self.thinking_escape {
            Some(text) if text.is_empty() || text.len() > MAX_ESCAPE_BYTES => {
                let message = format!(
                    "thinking_escape must be `on`, `off` or a sentence of 1 to {MAX_ESCAPE_BYTES} bytes"
                );
                return Err(ApiError::invalid("thinking_escape", message));
            }
            text => text.as_deref().map(Escape::from),
        };
        let stop_repetition = match self.repetition.as_deref() {
            None | Some("ignore") => false,
            Some("stop") => true,
            Some(other) => {
                let message = format!("repetition is `{other}`; it must be stop or ignore");
                return Err(ApiError::invalid("repetition", message));
            }
        };
        let shares_max_tokens = self.shares_max_tokens;
        Ok((thinks, ThinkingParams { budget, escape, shares_max_tokens, stop_repetition }))
    }

    fn thinks(&self) -> Result<Thinks, ApiError> {
        let by_object = self.thinking.as_ref().map(|object| match &*object.r#type {
            "enabled" => Ok(Thinks::Said(true)),
            "disabled" => Ok(Thinks::Said(false)),
            "auto" | "adaptive" => Ok(Thinks::Auto),
            other => {
                let message =
                    format!("thinking.type is `{other}`; it must be enabled, disabled, auto or adaptive");
                Err(ApiError::invalid("thinking.type", message))
            }
        });
        let by_object = by_object.transpose()?;
        let by_switch = match &self.enable_thinking {
            None => None,
            Some(ThinkingSwitch::Said(said)) => Some(Thinks::Said(*said)),
            Some(ThinkingSwitch::Word(word)) if word == "auto" => Some(Thinks::Auto),
            Some(ThinkingSwitch::Word(word)) => {
                let message = format!("enable_thinking is `{word}`; it must be true, false or auto");
                return Err(ApiError::invalid("enable_thinking", message));
            }
        };
        Ok(by_switch.or(by_object).unwrap_or(Thinks::Unsaid))
    }

    /// The budget that one of the fields sets, else that of the effort.
    fn budget(&self) -> Result<Option<usize>, ApiError> {
        let given = [
            ("max_thinking_tokens", self.max_thinking_tokens),
            ("thinking_budget", self.thinking_budget),
            ("thinking_token_budget", self.thinking_token_budget),
            ("thinking.budget_tokens", self.thinking.as_ref().and_then(|object| object.budget_tokens)),
        ];
        let mut given = given.into_iter().filter_map(|(name, budget)| Some((name, budget?)));
        let Some((first, budget)) = given.next() else {
            let effort = EFFORTS.iter().find(|(name, _)| self.reasoning_effort == Some(*name));
            return Ok(effort.map(|(_, budget)| *budget));
        };
        match given.find(|(_, other)| *other != budget) {
            Some((other, _)) => Err(ApiError::invalid(
                other,
                format!("{first} and {other} set different budgets; send one of them"),
            )),
            None => Ok(Some(budget)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(fields: ThinkingFields) -> Result<Option<usize>, String> {
        fields.validate().map(|(_, params)| params.budget).map_err(|error| error.body.message)
    }

    #[test]
    fn budget_follows_the_field_before_the_effort() {
        let empty = ThinkingFields::default;
        let high = || Some("high");
        for (fields, expected) in [
            (empty(), None),
            (ThinkingFields { reasoning_effort: Some("low"), ..empty() }, Some(2048)),
            (ThinkingFields { reasoning_effort: high(), ..empty() }, Some(32_768)),
            (ThinkingFields { reasoning_effort: Some("none"), ..empty() }, None),
            (ThinkingFields { thinking_budget: Some(7), reasoning_effort: high(), ..empty() }, Some(7)),
            (ThinkingFields { thinking_token_budget: Some(0), ..empty() }, Some(0)),
            (ThinkingFields { max_thinking_tokens: Some(9), thinking_budget: Some(9), ..empty() }, Some(9)),
        ] {
            assert_eq!(budget(fields), Ok(expected));
        }
        let two = ThinkingFields { max_thinking_tokens: Some(9), thinking_budget: Some(8), ..empty() };
        assert!(budget(two).unwrap_err().contains("different budgets"));
    }
}

//! Fields that mean something to OpenAI's service and change no answer here. Their types and values
//! are checked all the same; what would have an effect is refused.

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::error::ApiError;
use crate::server::schema::words;

const MAX_METADATA: usize = 16;
const MAX_METADATA_KEY: usize = 64;
const MAX_METADATA_VALUE: usize = 512;
/// Names of the only tier.
pub(crate) const SERVICE_TIERS: [&str; 2] = ["auto", "default"];
/// Values of `prompt_cache_retention`.
pub(crate) const RETENTIONS: [&str; 3] = ["in_memory", "in-memory", "24h"];

/// Values of `verbosity`, a hint to OpenAI's own models.
pub(crate) const VERBOSITY: [&str; 3] = ["low", "medium", "high"];

/// Text that the answer may repeat; OpenAI drafts it.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct PredictionField {
    #[schemars(transform = words(["content"]))]
    r#type: String,
    /// No effect: what to draft is up to `speculation`.
    content: PredictedText,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a string or a list of text parts")]
enum PredictedText {
    Text(#[allow(dead_code, reason = "checked and not used")] String),
    Parts(Vec<PredictedPart>),
}

#[derive(Debug, Deserialize, JsonSchema)]
struct PredictedPart {
    #[schemars(transform = words(["text"]))]
    r#type: String,
    #[serde(rename = "text")]
    _text: String,
}

/// # Errors
/// 400: it is not text.
pub(super) fn prediction(field: Option<&PredictionField>) -> Result<(), ApiError> {
    let is_text = |field: &PredictionField| match &field.content {
        PredictedText::Text(_) => true,
        PredictedText::Parts(parts) => parts.iter().all(|part| part.r#type == "text"),
    };
    match field.is_none_or(|field| field.r#type == "content" && is_text(field)) {
        true => Ok(()),
        false => Err(ApiError::invalid("prediction", "prediction must be of type `content`, with text")),
    }
}

/// The schema of `metadata`.
pub(crate) fn metadata_limits(schema: &mut Schema) {
    schema.insert("maxProperties".into(), MAX_METADATA.into());
    schema.insert("propertyNames".into(), json!({ "maxLength": MAX_METADATA_KEY }));
    let value = json!({ "type": "string", "maxLength": MAX_METADATA_VALUE });
    schema.insert("additionalProperties".into(), value);
}

/// # Errors
/// 400: there are too many entries, or one is too long or no string.
pub(super) fn metadata(field: Option<&Map<String, Value>>) -> Result<(), ApiError> {
    let is_wrong = |(key, value): (&String, &Value)| {
        key.len() > MAX_METADATA_KEY || value.as_str().is_none_or(|text| text.len() > MAX_METADATA_VALUE)
    };
    if field.is_some_and(|all| all.len() > MAX_METADATA || all.iter().any(is_wrong)) {
        let message = format!(
            "metadata takes {MAX_METADATA} keys of {MAX_METADATA_KEY} bytes, with strings of {MAX_METADATA_VALUE} bytes"
        );
        return Err(ApiError::invalid("metadata", message));
    }
    Ok(())
}

/// Chat completions are answered and not kept.
pub(super) fn store(field: Option<bool>) {
    if field == Some(true) {
        tracing::debug!(field = "store", "ignored");
    }
}

/// # Errors
/// 400: it asks for another tier than the only one.
pub(super) fn service_tier(tier: Option<&str>) -> Result<(), ApiError> {
    match tier {
        None => Ok(()),
        Some(tier) if SERVICE_TIERS.contains(&tier) => Ok(()),
        Some("flex" | "priority" | "scale") => {
            let message = "there is one service_tier; set `priority` to interactive or background instead";
            Err(ApiError::invalid("service_tier", message).code("unsupported_parameter"))
        }
        Some(_) => Err(ApiError::invalid("service_tier", "service_tier must be auto or default")),
    }
}

/// # Errors
/// 400: it is none of OpenAI's.
pub(super) fn verbosity(level: Option<&str>) -> Result<(), ApiError> {
    match level.is_none_or(|level| VERBOSITY.contains(&level)) {
        true => Ok(()),
        false => Err(ApiError::invalid("verbosity", "verbosity must be low, medium or high")),
    }
}

/// # Errors
/// 400: it is none of OpenAI's.
pub(super) fn prompt_cache_retention(retention: Option<&str>) -> Result<(), ApiError> {
    match retention {
        None => Ok(()),
        Some(retention) if RETENTIONS.contains(&retention) => Ok(()),
        Some(_) => {
            let message = "prompt_cache_retention must be in_memory or 24h";
            Err(ApiError::invalid("prompt_cache_retention", message))
        }
    }
}

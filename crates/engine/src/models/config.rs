//! Parses a family's struct from config.json and checks every size.

use serde::Deserialize;
use serde_json::Value;

use super::limits;
pub(super) use super::limits::ensure_supported;
use crate::error::{LoadError, Result};

/// Other names of keys; the usual name wins where a file has both.
const SYNONYMS: &[(&str, &str)] = &[
    ("norm_eps", "rms_norm_eps"),
    ("tie_embedding", "tie_word_embeddings"),
    ("model_max_length", "max_position_embeddings"),
    ("experts_per_token", "num_experts_per_tok"),
    ("num_experts_per_token", "num_experts_per_tok"),
];

/// The keys of config.json that every family has, to be flattened into a family's struct.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct BaseConfig {
    pub vocab_size: i32,
    pub hidden_size: i32,
    pub num_hidden_layers: usize,
    pub rms_norm_eps: f32,
    /// Absent: the head is tied if the checkpoint has none.
    pub tie_word_embeddings: Option<bool>,
    pub max_position_embeddings: Option<usize>,
}

impl BaseConfig {
    /// Tokens of context that the model was trained on.
    pub(crate) fn context_length(&self) -> usize {
        self.max_position_embeddings.unwrap_or(4096)
    }
}

/// Parses a family's config struct from JSON.
///
/// # Errors
/// A key is missing or of the wrong type, or a size is absurd: the error names it.
pub(super) fn parse<C: serde::de::DeserializeOwned>(config: &Value) -> Result<C> {
    let mut config = config.clone();
    if let Some(keys) = config.as_object_mut() {
        for (other, usual) in SYNONYMS {
            if let (false, Some(value)) = (keys.contains_key(*usual), keys.get(*other).cloned()) {
                keys.insert(usual.to_string(), value);
            }
        }
    }
    limits::check(&config)?;
    serde_json::from_value(config).map_err(|e| LoadError::Config(e.to_string()))
}

/// `config` with `defaults` for the keys that it leaves out.
pub(super) fn with_defaults(config: &Value, mut defaults: Value) -> Value {
    if let (Some(all), Some(given)) = (defaults.as_object_mut(), config.as_object()) {
        all.extend(given.clone());
    }
    defaults
}

/// Which layers use a sliding window: by `layer_types` of a parsed config, or by `default` without
/// it.
///
/// # Errors
/// A layer type is neither full nor sliding attention.
pub(super) fn sliding_layers(
    config: &Value,
    layers: usize,
    default: impl Fn(usize) -> bool,
) -> Result<Vec<bool>> {
    let Some(types) = config.get("layer_types").and_then(Value::as_array) else {
        return Ok((0..layers).map(default).collect());
    };
    let slides = |kind: &Value| match kind.as_str() {
        Some("sliding_attention") => Ok(true),
        Some("full_attention") => Ok(false),
        _ => Err(LoadError::Config(format!("layer type {kind} is not supported"))),
    };
    types.iter().map(slides).collect()
}

/// Fails on an activation other than the one that a family computes.
pub(super) fn check_activation(config: &Value, key: &str, expected: &str) -> Result<()> {
    check_value(config, key, expected)
}

/// Fails on a string value other than `expected`, the default of an absent key.
pub(super) fn check_value(config: &Value, key: &str, expected: &str) -> Result<()> {
    let found = config.get(key).and_then(Value::as_str).unwrap_or(expected);
    ensure_supported(found == expected, format!("{key} `{found}` is not supported, only `{expected}`"))
}

/// The keys of an optional feature, parsed if `key` is present and not 0.
///
/// # Errors
/// The keys are present and do not parse.
pub(super) fn parse_part<C: serde::de::DeserializeOwned>(config: &Value, key: &str) -> Result<Option<C>> {
    let there = config.get(key).is_some_and(|value| !value.is_null() && value != 0);
    there.then(|| parse(config)).transpose()
}

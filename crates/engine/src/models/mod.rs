//! Model families: one file each, one row in [`FAMILIES`] each.

mod qwen3_5;

use mlx::{Array, Dtype};
use serde_json::Value;

use crate::{
    batch::Batch,
    cache::Cache,
    error::{LoadError, Result},
    weights::Weights,
};

/// A loaded model. Rows of a batch never see each other.
pub trait Model {
    /// Hidden states `[tokens, hidden_size]`, after the final norm, of token ids `[tokens]` (uint32).
    fn forward(&self, tokens: &Array, batch: &mut Batch) -> Array;

    /// Logits `[n, vocab_size]` of hidden states `[n, hidden_size]`.
    fn logits(&self, hidden: &Array) -> Array;

    /// Empty caches for a new sequence, one per layer.
    fn make_caches(&self) -> Vec<Cache>;
}

/// What a family needs to be loaded.
pub struct Family {
    /// Values of config.json's `model_type`.
    pub model_types: &'static [&'static str],
    /// Checkpoint tensor name to the canonical one; `None` drops the tensor.
    pub sanitize: fn(&str) -> Option<String>,
    pub load: Load,
}

/// Builds a model from the text part of config.json; activations take the type given, or else the embedding's.
pub type Load = fn(&Value, &Weights, Option<Dtype>) -> Result<Box<dyn Model>>;

pub const FAMILIES: &[Family] =
    &[Family { model_types: &["qwen3_5", "qwen3_5_text"], sanitize: qwen3_5::sanitize, load: qwen3_5::load }];

/// The family that config.json asks for.
///
/// # Errors
/// There is no `model_type`, or none of ours; the error lists those.
pub fn family(config: &Value) -> Result<&'static Family> {
    let found = config.get("model_type").and_then(Value::as_str);
    let found = found.ok_or_else(|| LoadError::Config("there is no model_type in it".into()))?;
    FAMILIES.iter().find(|family| family.model_types.contains(&found)).ok_or_else(|| {
        let supported: Vec<&str> = FAMILIES.iter().flat_map(|family| family.model_types).copied().collect();
        LoadError::UnknownModelType { found: found.into(), supported: supported.join(", ") }
    })
}

/// The part of config.json that describes the text model.
pub fn text_config(config: &Value) -> &Value {
    config.get("text_config").unwrap_or(config)
}

/// Parses a family's config struct from JSON.
///
/// # Errors
/// A key is missing or of the wrong type: the error names it.
pub fn parse<C: serde::de::DeserializeOwned>(config: &Value) -> Result<C> {
    serde_json::from_value(config.clone()).map_err(|e| LoadError::Config(e.to_string()))
}

//! Reading a family's struct from config.json, with every size checked before anything is computed with it.

use serde_json::Value;

use crate::error::{LoadError, Result};

/// Keys that are sizes or counts, in any family, and the largest value that makes sense.
const SIZES: &[(&str, i64)] = &[
    ("vocab_size", 1 << 24),
    ("vocab_size_per_layer_input", 1 << 24),
    ("hidden_size", SIZE),
    ("hidden_size_per_layer_input", SIZE),
    ("intermediate_size", 1 << 20),
    ("moe_intermediate_size", SIZE),
    ("shared_expert_intermediate_size", SIZE),
    ("block_ff_dim", 1 << 20),
    ("num_hidden_layers", COUNT),
    ("num_attention_heads", COUNT),
    ("num_key_value_heads", COUNT),
    ("num_global_key_value_heads", COUNT),
    ("head_dim", SIZE),
    ("global_head_dim", SIZE),
    ("v_head_dim", SIZE),
    ("qk_nope_head_dim", SIZE),
    ("qk_rope_head_dim", SIZE),
    ("kv_lora_rank", SIZE),
    ("q_lora_rank", SIZE),
    ("linear_num_key_heads", COUNT),
    ("linear_num_value_heads", COUNT),
    ("linear_key_head_dim", SIZE),
    ("linear_value_head_dim", SIZE),
    ("linear_conv_kernel_dim", COUNT),
    ("conv_L_cache", COUNT),
    ("short_conv_kernel_size", COUNT),
    ("num_heads", COUNT),
    ("num_experts", COUNT),
    ("num_local_experts", COUNT),
    ("n_routed_experts", COUNT),
    ("num_experts_per_tok", COUNT),
    ("top_k_experts", COUNT),
    ("n_group", COUNT),
    ("topk_group", COUNT),
    ("num_expert_group", COUNT),
    ("sliding_window", 1 << 30),
    ("full_attention_interval", COUNT),
    ("decoder_sparse_step", COUNT),
];
/// Products of two of these stay within an array's axis.
const SIZE: i64 = 1 << 17;
const COUNT: i64 = 1 << 13;
/// Keys of [`SIZES`] whose 0 means "none".
const MAY_BE_ZERO: &[&str] =
    &["hidden_size_per_layer_input", "sliding_window", "num_experts", "n_routed_experts", "q_lora_rank"];

/// What must be a multiple of what.
const MULTIPLES: &[(&str, &str)] = &[
    ("num_attention_heads", "num_key_value_heads"),
    ("num_attention_heads", "num_global_key_value_heads"),
    ("linear_num_value_heads", "linear_num_key_heads"),
    ("n_routed_experts", "n_group"),
    ("num_experts", "num_expert_group"),
];

/// Keys that some families write in other words; the usual ones win where a file has both.
const SYNONYMS: &[(&str, &str)] = &[
    ("norm_eps", "rms_norm_eps"),
    ("tie_embedding", "tie_word_embeddings"),
    ("model_max_length", "max_position_embeddings"),
    ("experts_per_token", "num_experts_per_tok"),
    ("num_experts_per_token", "num_experts_per_tok"),
];

/// Parses a family's config struct from JSON.
///
/// # Errors
/// A key is missing or of the wrong type, or a size is absurd: the error names it.
pub fn parse<C: serde::de::DeserializeOwned>(config: &Value) -> Result<C> {
    let mut config = config.clone();
    if let Some(keys) = config.as_object_mut() {
        for (other, usual) in SYNONYMS {
            if let (false, Some(value)) = (keys.contains_key(*usual), keys.get(*other).cloned()) {
                keys.insert(usual.to_string(), value);
            }
        }
    }
    check_sizes(&config)?;
    serde_json::from_value(config).map_err(|e| LoadError::Config(e.to_string()))
}

/// `config` with `defaults` for the keys that it leaves out.
pub fn with_defaults(config: &Value, mut defaults: Value) -> Value {
    if let (Some(all), Some(given)) = (defaults.as_object_mut(), config.as_object()) {
        all.extend(given.clone());
    }
    defaults
}

/// Which layers attend within a sliding window: as `layer_types` says, or else as `default` does.
///
/// # Errors
/// The types are not one for each layer, or there are others.
pub fn sliding_layers(config: &Value, layers: usize, default: impl Fn(usize) -> bool) -> Result<Vec<bool>> {
    let Some(types) = config.get("layer_types").and_then(Value::as_array) else {
        return Ok((0..layers).map(default).collect());
    };
    let listed = types.len();
    refuse([(
        listed != layers,
        format!("layer_types lists {listed} layers, num_hidden_layers is {layers}"),
    )])?;
    let slides = |kind: &Value| match kind.as_str() {
        Some("sliding_attention") => Ok(true),
        Some("full_attention") => Ok(false),
        _ => Err(LoadError::Config(format!("layer type {kind} is not supported"))),
    };
    types.iter().map(slides).collect()
}

/// Refuses what a family does not compute, rather than computing something else: the first statement that is true.
///
/// # Errors
/// Its sentence.
pub fn refuse(statements: impl IntoIterator<Item = (bool, String)>) -> Result<()> {
    match statements.into_iter().find(|(refused, _)| *refused) {
        Some((_, message)) => Err(LoadError::Config(message)),
        None => Ok(()),
    }
}

/// [`refuse`]s an activation other than the one a family has.
pub fn check_activation(config: &Value, key: &str, expected: &str) -> Result<()> {
    let found = config.get(key).and_then(Value::as_str).unwrap_or(expected);
    refuse([(found != expected, format!("{key} `{found}` is not supported, only `{expected}`"))])
}

fn check_sizes(config: &Value) -> Result<()> {
    for &(key, most) in SIZES {
        let Some(value) = config.get(key).filter(|value| value.is_number()) else { continue };
        let least = i64::from(!MAY_BE_ZERO.contains(&key));
        if !value.as_i64().is_some_and(|n| (least..=most).contains(&n)) {
            return Err(LoadError::Config(format!(
                "{key} is {value}; it must be between {least} and {most}"
            )));
        }
    }
    for (key, of) in MULTIPLES {
        let size = |key: &str| config.get(key).and_then(Value::as_i64).filter(|&n| n > 0);
        if let (Some(value), Some(divisor)) = (size(key), size(of))
            && value % divisor != 0
        {
            return Err(LoadError::Config(format!(
                "{key} is {value}; it must be a multiple of {of}, {divisor}"
            )));
        }
    }
    Ok(())
}

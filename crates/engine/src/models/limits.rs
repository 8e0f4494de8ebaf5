//! Limits of the values in config.json: absurd sizes are an error before anything is allocated.

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
    ("block_multiple_of", SIZE),
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
    ("n_shared_experts", COUNT),
    ("num_shared_experts", COUNT),
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
const MAY_BE_ZERO: &[&str] = &[
    "shared_expert_intermediate_size",
    "hidden_size_per_layer_input",
    "num_experts",
    "n_routed_experts",
    "n_shared_experts",
    "num_shared_experts",
    "q_lora_rank",
    "block_multiple_of",
];

/// Keys whose numbers must be above 0, and at most this.
const POSITIVE: &[(&str, f64)] = &[
    ("rms_norm_eps", 1.0),
    ("rope_theta", 1e15),
    ("rope_local_base_freq", 1e15),
    ("partial_rotary_factor", 1.0),
    ("routed_scaling_factor", 1e6),
    ("query_pre_attn_scalar", 1e6),
    ("attn_logit_softcapping", 1e6),
    ("final_logit_softcapping", 1e6),
    ("swiglu_limit", 1e6),
    ("block_ffn_dim_multiplier", 1e3),
];

type Fits = fn(&Value) -> bool;

/// Keys of other types: a value of the wrong one must not pass for a key that was left out.
const TYPES: &[(&str, &str, Fits)] = &[
    ("use_sliding_window", "true or false", Value::is_boolean),
    ("attention_bias", "true or false", Value::is_boolean),
    ("attn_output_gate", "true or false", Value::is_boolean),
    ("mla_use_nope", "true or false", Value::is_boolean),
    ("hidden_act", "a string", Value::is_string),
    ("hidden_activation", "a string", Value::is_string),
    ("scoring_func", "a string", Value::is_string),
    ("topk_method", "a string", Value::is_string),
    ("moe_router_activation_func", "a string", Value::is_string),
    ("layer_types", "a list", Value::is_array),
    ("rope_scaling", "an object", Value::is_object),
    ("rope_parameters", "an object", Value::is_object),
];

/// Keys whose value must not exceed that of another.
const AT_MOST: &[(&str, &str)] = &[
    ("num_experts_per_tok", "num_experts"),
    ("num_experts_per_tok", "num_local_experts"),
    ("num_experts_per_tok", "n_routed_experts"),
    ("top_k_experts", "num_experts"),
    ("topk_group", "n_group"),
    ("topk_group", "num_expert_group"),
];

/// Keys whose value must be a multiple of that of another.
const MULTIPLES: &[(&str, &str)] = &[
    ("num_attention_heads", "num_key_value_heads"),
    ("num_attention_heads", "num_global_key_value_heads"),
    ("linear_num_value_heads", "linear_num_key_heads"),
    ("n_routed_experts", "n_group"),
    ("num_experts", "num_expert_group"),
];

/// Pairs whose product is an axis of an array, or up to a quarter of one.
const PRODUCTS: &[(&str, &str)] = &[
    ("num_attention_heads", "head_dim"),
    ("num_attention_heads", "global_head_dim"),
    ("num_attention_heads", "v_head_dim"),
    ("num_attention_heads", "qk_nope_head_dim"),
    ("num_attention_heads", "qk_rope_head_dim"),
    ("num_heads", "head_dim"),
    ("linear_num_key_heads", "linear_key_head_dim"),
    ("linear_num_value_heads", "linear_value_head_dim"),
    ("n_shared_experts", "moe_intermediate_size"),
    ("num_shared_experts", "moe_intermediate_size"),
];
const PRODUCT: i64 = 1 << 26;

/// # Errors
/// A value is out of range, of the wrong type, or does not fit another.
pub(super) fn check(config: &Value) -> Result<()> {
    check_sizes(config)?;
    check_relations(config)?;
    check_types(config)
}

/// # Errors
/// `condition` is false; `message` says what is not supported.
pub(super) fn ensure_supported(condition: bool, message: impl Into<String>) -> Result<()> {
    if condition { Ok(()) } else { Err(LoadError::Config(message.into())) }
}

/// A value of config.json; `null` counts as absent.
fn given<'a>(config: &'a Value, key: &str) -> Option<&'a Value> {
    config.get(key).filter(|value| !value.is_null())
}

fn check_sizes(config: &Value) -> Result<()> {
    for &(key, most) in SIZES {
        let Some(value) = given(config, key) else { continue };
        let least = i64::from(!MAY_BE_ZERO.contains(&key));
        let fits = value.as_i64().is_some_and(|n| (least..=most).contains(&n));
        ensure_supported(fits, format!("{key} is {value}; it must be a number between {least} and {most}"))?;
    }
    for &(key, most) in POSITIVE {
        let Some(value) = given(config, key) else { continue };
        let fits = value.as_f64().is_some_and(|n| n > 0.0 && n <= most);
        ensure_supported(fits, format!("{key} is {value}; it must be a number above 0, at most {most}"))?;
    }
    Ok(())
}

fn check_relations(config: &Value) -> Result<()> {
    let size = |key: &str| given(config, key).and_then(Value::as_i64).filter(|&n| n > 0);
    let pairs = |table: &'static [(&str, &str)]| {
        table.iter().filter_map(|&(key, of)| Some((key, size(key)?, of, size(of)?))).collect::<Vec<_>>()
    };
    for (key, value, of, divisor) in pairs(MULTIPLES) {
        let message = format!("{key} is {value}; it must be a multiple of {of}, {divisor}");
        ensure_supported(value % divisor == 0, message)?;
    }
    for (key, value, other, times) in pairs(PRODUCTS) {
        let message =
            format!("{key} is {value} and {other} {times}; together they must be at most {PRODUCT}");
        ensure_supported(value * times <= PRODUCT, message)?;
    }
    for (key, value, of, most) in pairs(AT_MOST) {
        ensure_supported(value <= most, format!("{key} is {value}; it must be at most {of}, {most}"))?;
    }
    Ok(())
}

fn check_types(config: &Value) -> Result<()> {
    for (key, kind, fits) in TYPES {
        let Some(value) = given(config, key) else { continue };
        ensure_supported(fits(value), format!("{key} is {value}; it must be {kind}"))?;
    }
    let layers = given(config, "num_hidden_layers").and_then(Value::as_u64);
    let types = given(config, "layer_types").and_then(Value::as_array);
    let (Some(layers), Some(types)) = (layers, types) else { return Ok(()) };
    let listed = types.len() as u64;
    let known = ["full_attention", "sliding_attention", "linear_attention", "conv"];
    ensure_supported(
        listed == layers,
        format!("layer_types lists {listed} layers, num_hidden_layers is {layers}"),
    )?;
    types.iter().try_for_each(|kind| {
        let known = kind.as_str().is_some_and(|kind| known.contains(&kind));
        ensure_supported(known, format!("layer_types has an unknown type {kind}"))
    })
}

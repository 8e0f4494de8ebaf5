//! Gemma 2: sandwich norms, capped scores and logits, a sliding window in every other layer.
//!
//! Reference: transformers `gemma2`.

use nn::{Activation, RopePairs, Softmax};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Model,
    attention::{Attention, AttentionConfig},
    config::{BaseConfig, check_activation, ensure_supported, parse, sliding_layers, with_defaults},
    decoder::Decoder,
    layer::SandwichNorm,
};
use crate::{error::Result, models::rope::RopeParameters, weights::Weights};

/// Norms are stored as `weight - 1`, in MLX's conversions too.
pub(super) const NORM_OFFSET: f32 = 1.0;

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    base: BaseConfig,
    intermediate_size: i32,
    num_attention_heads: i32,
    num_key_value_heads: i32,
    head_dim: i32,
    query_pre_attn_scalar: f32,
    sliding_window: i32,
    attn_logit_softcapping: Option<f32>,
    final_logit_softcapping: Option<f32>,
}

/// transformers' defaults of absent keys.
fn defaults() -> Value {
    json!({
        "vocab_size": 256_000,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": true,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    })
}

pub(super) fn load(config: &Value, w: &Weights) -> Result<Box<dyn Model>> {
    let config = &with_defaults(config, defaults());
    let c: Config = parse(config)?;
    check(config)?;
    let heads = AttentionConfig {
        hidden_size: c.base.hidden_size,
        num_heads: c.num_attention_heads,
        num_kv_heads: c.num_key_value_heads,
        head_dim: c.head_dim,
        qkv_bias: false,
        o_bias: false,
    };
    let rope = RopeParameters::of(config, None)?.whole_head().rope(c.head_dim, RopePairs::Halves)?;
    let scaled = Softmax::scaled(c.query_pre_attn_scalar.powf(-0.5));
    let softmax = Softmax { softcap: c.attn_logit_softcapping, ..scaled };
    let slides = sliding_layers(config, c.base.num_hidden_layers, |layer| layer.is_multiple_of(2))?;
    let mut decoder = Decoder::load(&c.base, &w.with_norm_offset(NORM_OFFSET), |i, w| {
        let window = slides[i].then_some(c.sliding_window);
        let mixer = Attention::load(heads, rope.clone(), &w.sub("self_attn"))?;
        let mixer = mixer.with_window(window).with_softmax(softmax.clone());
        layer(&c.base, c.intermediate_size, mixer, w)
    })?;
    decoder.embedding_scale = Some((c.base.hidden_size as f32).sqrt());
    decoder.head.softcap = c.final_logit_softcapping;
    Ok(Box::new(decoder))
}

/// Fails on features that no Gemma here computes, and on an encoder.
pub(super) fn check(config: &Value) -> Result<()> {
    check_features(config)?;
    let both_ways = config.get("use_bidirectional_attention").unwrap_or(&Value::Null);
    // `vision` is bidirectional between image tokens only.
    let causal = both_ways.is_null() || both_ways == false || both_ways == "vision";
    ensure_supported(
        causal,
        format!("use_bidirectional_attention is {both_ways}; only causal attention is supported"),
    )
}

/// Fails on features that no Gemma here computes.
pub(super) fn check_features(config: &Value) -> Result<()> {
    check_activation(config, "hidden_activation", "gelu_pytorch_tanh")?;
    let key = |key: &str| config.get(key).unwrap_or(&Value::Null);
    ensure_supported(key("attention_bias") != true, "attention_bias is not supported")?;
    ensure_supported(key("sliding_window") != 0, "sliding_window is 0; it must be at least 1")
}

/// A layer of Gemma 2 or 3.
pub(super) fn layer(
    c: &BaseConfig,
    intermediate: i32,
    mixer: Attention,
    w: &Weights,
) -> Result<SandwichNorm> {
    let names = [
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ];
    let mlp = w.sub("mlp").mlp(c.hidden_size, intermediate, Activation::GeluTanh)?;
    SandwichNorm::load(c, w, names, Box::new(mixer), Box::new(mlp))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuses(config: Value, expected: &str) {
        let message = check(&config).expect_err("is refused").to_string();
        assert_eq!(message, format!("config.json: {expected}"));
    }

    #[test]
    fn unsupported_config_is_an_error() {
        refuses(
            json!({ "hidden_activation": "silu" }),
            "hidden_activation `silu` is not supported, only `gelu_pytorch_tanh`",
        );
        refuses(json!({ "attention_bias": true }), "attention_bias is not supported");
        refuses(json!({ "sliding_window": 0 }), "sliding_window is 0; it must be at least 1");
        for both_ways in [json!(true), json!("all")] {
            let message =
                format!("use_bidirectional_attention is {both_ways}; only causal attention is supported");
            refuses(json!({ "use_bidirectional_attention": both_ways }), &message);
        }
        for causal in [json!(null), json!(false), json!("vision")] {
            check(&json!({ "use_bidirectional_attention": causal })).expect("text is causal");
        }
    }
}

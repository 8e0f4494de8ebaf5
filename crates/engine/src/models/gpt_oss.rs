//! gpt-oss: attention with sinks, a sliding window in every other layer, experts in MXFP4.
//!
//! Reference: transformers `gpt_oss`.

use nn::{Activation, MixtureOfExperts, RopePairs, Router, Softmax};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Model,
    attention::{Attention, AttentionConfig},
    config::{BaseConfig, check_activation, ensure_supported, parse, sliding_layers},
    decoder::Decoder,
    layer::PreNorm,
};
use crate::{
    error::Result,
    models::rope::RopeParameters,
    weights::{Rule, Transform::*, Weights},
};

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    base: BaseConfig,
    intermediate_size: i32,
    num_attention_heads: i32,
    num_key_value_heads: i32,
    head_dim: i32,
    num_local_experts: i32,
    num_experts_per_tok: i32,
    sliding_window: i32,
    swiglu_limit: Option<f32>,
}

/// In the hub experts are in MXFP4 or transposed, and rows of gate and up alternate.
pub(super) const LAYOUT: &[Rule] = &[
    Rule::new(
        ".experts.gate_up_proj_blocks",
        &[(".experts.gate_proj.weight", AlternateWords(0)), (".experts.up_proj.weight", AlternateWords(1))],
    ),
    Rule::new(
        ".experts.gate_up_proj_scales",
        &[(".experts.gate_proj.scales", Alternate(0)), (".experts.up_proj.scales", Alternate(1))],
    ),
    Rule::new(".experts.down_proj_blocks", &[(".experts.down_proj.weight", Words)]),
    Rule::new(".experts.down_proj_scales", &[(".experts.down_proj.scales", Whole)]),
    Rule::new(
        ".experts.gate_up_proj",
        &[
            (".experts.gate_proj.weight", AlternateColumns(0)),
            (".experts.up_proj.weight", AlternateColumns(1)),
        ],
    ),
    Rule::new(
        ".experts.gate_up_proj_bias",
        &[(".experts.gate_proj.bias", Alternate(0)), (".experts.up_proj.bias", Alternate(1))],
    ),
    Rule::new(".experts.down_proj", &[(".experts.down_proj.weight", Transposed)]),
    Rule::new(".experts.down_proj_bias", &[(".experts.down_proj.bias", Whole)]),
];

pub(super) fn load(config: &Value, w: &Weights) -> Result<Box<dyn Model>> {
    let c: Config = parse(config)?;
    check_activation(config, "hidden_act", "silu")?;
    let unbiased = config.get("attention_bias") == Some(&Value::Bool(false));
    ensure_supported(!unbiased, "attention_bias must be true")?;
    // Even layers slide unless config.json lists the types.
    let slides = sliding_layers(config, c.base.num_hidden_layers, |layer| layer.is_multiple_of(2))?;
    let heads = AttentionConfig {
        hidden_size: c.base.hidden_size,
        num_heads: c.num_attention_heads,
        num_kv_heads: c.num_key_value_heads,
        head_dim: c.head_dim,
        qkv_bias: true,
        o_bias: true,
    };
    let rope = RopeParameters::of(config, None)?.or(150_000.0, 1.0).rope(c.head_dim, RopePairs::Halves)?;
    Ok(Box::new(Decoder::load(&c.base, w, |i, w| {
        let attention = w.sub("self_attn");
        let sinks = Some(attention.float32("sinks", &[c.num_attention_heads])?);
        let softmax = Softmax { sinks, ..Softmax::scaled((c.head_dim as f32).powf(-0.5)) };
        let mixer = Attention::load(heads, rope.clone(), &attention)?
            .with_window(slides[i].then_some(c.sliding_window))
            .with_softmax(softmax);
        let mlp = mixture(&c, &w.sub("mlp"))?;
        PreNorm::load(&c.base, w, Box::new(mixer), Box::new(mlp))
    })?))
}

/// The block of `w`.
fn mixture(c: &Config, w: &Weights) -> Result<MixtureOfExperts> {
    let (experts, hidden, size) = (c.num_local_experts, c.base.hidden_size, c.intermediate_size);
    let router = w.router("router", experts, hidden, true)?;
    let activation = Activation::ClampedSwish { limit: c.swiglu_limit.unwrap_or(7.0) };
    let experts = w.experts_with(experts, hidden, size, activation, true)?;
    // A softmax of the chosen logits: that of all, divided by the sum of the chosen.
    Ok(MixtureOfExperts::new(router, Router::softmax(c.num_experts_per_tok, true), experts, None))
}

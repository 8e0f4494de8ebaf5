//! Qwen 3 and Qwen3-VL: grouped-query attention with head norms; feed-forward blocks are dense or,
//! in `qwen3_moe` and `qwen3_vl_moe`, experts with a softmax router.
//!
//! Reference: transformers `qwen3`, `qwen3_moe`, `qwen3_vl`, `qwen3_vl_moe`.

use nn::{Activation, MixtureOfExperts, RopePairs, Router, SharedExpert};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Model,
    attention::{Attention, AttentionConfig},
    config::{BaseConfig, check_activation, parse, parse_part, with_defaults},
    decoder::Decoder,
    layer::{FeedForward, PreNorm},
    names::{plain_names, text_names},
    vision,
};
use crate::{
    error::Result,
    models::rope::RopeParameters,
    weights::{
        Rule,
        Transform::{self, Down, GateOrUp},
        Weights,
    },
};

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    base: BaseConfig,
    intermediate_size: i32,
    num_attention_heads: i32,
    num_key_value_heads: i32,
    head_dim: Option<i32>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(skip)]
    moe: Option<MoeConfig>,
}

/// Keys of Qwen's models with experts.
#[derive(Deserialize)]
pub(super) struct MoeConfig {
    num_experts: i32,
    num_experts_per_tok: i32,
    moe_intermediate_size: i32,
    norm_topk_prob: Option<bool>,
    decoder_sparse_step: Option<usize>,
    #[serde(default)]
    mlp_only_layers: Vec<usize>,
}

impl MoeConfig {
    pub(super) fn has_experts(&self, layer: usize) -> bool {
        let step = self.decoder_sparse_step.unwrap_or(1);
        !self.mlp_only_layers.contains(&layer) && (layer + 1).is_multiple_of(step)
    }
}

/// MLX stacks experts under `switch_mlp`.
pub(super) fn sanitize(config: &Value, name: &str) -> Option<String> {
    if let Some(name) = vision::canonical(name) {
        return Some(name);
    }
    plain_names(config, &text_names(name)?.replace(".mlp.switch_mlp.", ".mlp.experts."))
}

/// The hub stores Qwen3-VL's experts transposed, transformers saves them as others are stored.
pub(super) const LAYOUT: &[Rule] = &[
    vl_moe_rule(
        ".mlp.experts.gate_up_proj",
        &[(".mlp.switch_mlp.gate_proj.weight", GateOrUp(0)), (".mlp.switch_mlp.up_proj.weight", GateOrUp(1))],
    ),
    vl_moe_rule(".mlp.experts.down_proj", &[(".mlp.switch_mlp.down_proj.weight", Down)]),
];

const fn vl_moe_rule(from: &'static str, to: &'static [(&'static str, Transform)]) -> Rule {
    Rule::new(from, to).of(&["qwen3_vl_moe", "qwen3_vl_moe_text"])
}

/// transformers' defaults of absent keys.
fn defaults(config: &Value) -> Value {
    let model_type = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    json!({ "norm_topk_prob": model_type.starts_with("qwen3_vl_moe") })
}

pub(super) fn load(config: &Value, w: &Weights) -> Result<Box<dyn Model>> {
    let config = &with_defaults(config, defaults(config));
    let c = Config { moe: parse_part(config, "num_experts")?, ..parse(config)? };
    check_activation(config, "hidden_act", "silu")?;
    let head_dim = c.head_dim.unwrap_or(128);
    let heads = AttentionConfig {
        hidden_size: c.base.hidden_size,
        num_heads: c.num_attention_heads,
        num_kv_heads: c.num_key_value_heads,
        head_dim,
        qkv_bias: c.attention_bias,
        o_bias: c.attention_bias,
    };
    let rope = RopeParameters::of(config, None)?.with_sections(config, [24, 20, 20]);
    let rope = rope.rope(head_dim, RopePairs::Halves)?;
    let mut decoder = Decoder::load(&c.base, w, |i, w| {
        let attention = w.sub("self_attn");
        let mixer = Attention::load(heads, rope.clone(), &attention)?
            .with_qk_norm(c.base.rms_norm_eps, &attention)?
            .with_window(sliding_window(config, i));
        PreNorm::load(&c.base, w, Box::new(mixer), feed_forward(&c, i, &w.sub("mlp"))?)
    })?;
    let hidden_size = c.base.hidden_size;
    decoder.tower = vision::load_tower(config, w, |vision, w| vision::load_qwen3_vl(vision, w, hidden_size))?;
    Ok(Box::new(decoder))
}

/// Off without `use_sliding_window`; else on from layer `max_window_layers`, or by `layer_types`.
pub(super) fn sliding_window(config: &Value, layer: usize) -> Option<i32> {
    let on = config.get("use_sliding_window").and_then(Value::as_bool).unwrap_or(false);
    let window = config.get("sliding_window").and_then(Value::as_i64).filter(|_| on)? as i32;
    let types = config.get("layer_types").and_then(Value::as_array);
    let slides = match types.and_then(|types| types.get(layer)) {
        Some(kind) => kind == "sliding_attention",
        None => layer as u64 >= config.get("max_window_layers").and_then(Value::as_u64).unwrap_or(28),
    };
    slides.then_some(window)
}

fn feed_forward(c: &Config, layer: usize, w: &Weights) -> Result<Box<dyn FeedForward>> {
    let hidden = c.base.hidden_size;
    Ok(match &c.moe {
        Some(moe) if moe.has_experts(layer) => Box::new(load_experts(moe, hidden, false, None, w)?),
        _ => Box::new(w.mlp(hidden, c.intermediate_size, Activation::Silu)?),
    })
}

/// Experts with a softmax router, and a shared expert if there is one. `normalize` is the default
/// of `norm_topk_prob`.
pub(super) fn load_experts(
    c: &MoeConfig,
    hidden: i32,
    normalize: bool,
    shared: Option<SharedExpert>,
    w: &Weights,
) -> Result<MixtureOfExperts> {
    let router = Router::softmax(c.num_experts_per_tok, c.norm_topk_prob.unwrap_or(normalize));
    let gate = w.router("gate", c.num_experts, hidden, false)?;
    let experts = w.experts(c.num_experts, hidden, c.moe_intermediate_size, Activation::Silu)?;
    Ok(MixtureOfExperts::new(gate, router, experts, shared))
}

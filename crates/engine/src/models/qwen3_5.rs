//! Qwen3-Next, 3.5 and 3.6: three Gated DeltaNet layers to one gated full-attention layer;
//! dense or sparse feed-forward blocks.
//!
//! Reference: transformers `qwen3_next`, `qwen3_5`, `qwen3_5_moe`.

use mlx::Array;
use nn::{Activation, CoreAttention, Linear, MixtureOfExperts, Residual, RopePairs, SharedExpert};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Model,
    config::{BaseConfig, check_activation, ensure_supported, parse, parse_part},
    decoder::Decoder,
    gated_delta_net::{self, GatedDeltaNet},
    layer::{FeedForward, Mixer, PreNorm},
    mtp::{self, Mtp},
    names::text_names,
    qwen3, vision,
};
use crate::{
    batch::Batch,
    cache::Cache,
    error::Result,
    models::rope::RopeParameters,
    weights::{
        Rule,
        Transform::{self, PlusOne, Transposed},
        Weights, is_hub_conv1d,
    },
};

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    base: BaseConfig,
    intermediate_size: Option<i32>,
    num_attention_heads: i32,
    num_key_value_heads: i32,
    head_dim: i32,
    layer_types: Option<Vec<String>>,
    full_attention_interval: Option<usize>,
    #[serde(flatten)]
    linear: gated_delta_net::Config,
    #[serde(skip)]
    moe: Option<MoeConfig>,
}

/// Keys of models with experts.
#[derive(Deserialize)]
struct MoeConfig {
    #[serde(flatten)]
    routed: qwen3::MoeConfig,
    shared_expert_intermediate_size: i32,
}

impl Config {
    fn is_full_attention(&self, layer: usize) -> bool {
        match &self.layer_types {
            Some(types) => types.get(layer).is_some_and(|kind| kind == "full_attention"),
            None => (layer + 1).is_multiple_of(self.full_attention_interval.unwrap_or(4)),
        }
    }

    fn has_experts(&self, layer: usize) -> bool {
        self.moe.as_ref().is_some_and(|moe| moe.routed.has_experts(layer))
    }
}

/// MLX stacks experts under `switch_mlp`.
pub(super) fn sanitize(config: &Value, name: &str) -> Option<String> {
    if let Some(name) = vision::canonical(name) {
        return Some(name);
    }
    let name = text_names(name)?;
    (!name.starts_with("mtp.") || mtp::is_supported(config))
        .then(|| name.replace(".mlp.switch_mlp.", ".mlp.experts."))
}

/// MLX's layout stores the whole norm weight and convolutions as `[channels, width, 1]`; mlx-lm
/// converts both or neither, and converts later Qwens when it loads them.
pub(super) const LAYOUT: &[Rule] = &[
    copy_rule(".linear_attn.conv1d.weight", &[(".linear_attn.conv1d.weight", Transposed)]),
    copy_rule("input_layernorm.weight", &[("input_layernorm.weight", PlusOne)]),
    copy_rule("post_attention_layernorm.weight", &[("post_attention_layernorm.weight", PlusOne)]),
    copy_rule(".q_norm.weight", &[(".q_norm.weight", PlusOne)]),
    copy_rule(".k_norm.weight", &[(".k_norm.weight", PlusOne)]),
    copy_rule("model.norm.weight", &[("model.norm.weight", PlusOne)]),
    copy_rule("mtp.norm.weight", &[("mtp.norm.weight", PlusOne)]),
    copy_rule("mtp.pre_fc_norm_embedding.weight", &[("mtp.pre_fc_norm_embedding.weight", PlusOne)]),
    copy_rule("mtp.pre_fc_norm_hidden.weight", &[("mtp.pre_fc_norm_hidden.weight", PlusOne)]),
];

const fn copy_rule(from: &'static str, to: &'static [(&'static str, Transform)]) -> Rule {
    Rule::new(from, to).of(&["qwen3_next"]).only_in_copies()
}

pub(super) fn load(config: &Value, w: &Weights) -> Result<Box<dyn Model>> {
    let c = Config { moe: parse_part(config, "num_experts")?, ..parse(config)? };
    check(config, &c)?;
    let w = &w.with_norm_offset(norm_offset(&c, w)?);
    let rope = RopeParameters::of(config, None)?.or(1e7, 0.25);
    let rope = &rope.with_sections(config, [11, 11, 10]);
    let attention = |w: &Weights| GatedAttention::load(&c, rope, &w.sub("self_attn"));
    let mut decoder = Decoder::load(&c.base, w, |i, w| {
        let mixer: Box<dyn Mixer> = match c.is_full_attention(i) {
            true => Box::new(attention(w)?),
            false => Box::new(GatedDeltaNet::load(&c.linear, &c.base, &w.sub("linear_attn"))?),
        };
        let mlp = feed_forward(&c, c.has_experts(i), &w.sub("mlp"))?;
        PreNorm::load(&c.base, w, mixer, mlp)
    })?;
    let hidden_size = c.base.hidden_size;
    decoder.tower = vision::load_tower(config, w, |vision, w| vision::load_qwen3_vl(vision, w, hidden_size))?;
    decoder.mtp = Mtp::load(&c.base, w, &decoder.embed_tokens, |w| {
        let mlp = feed_forward(&c, w.has("mlp.gate.weight"), &w.sub("mlp"))?;
        PreNorm::load(&c.base, w, Box::new(attention(w)?), mlp)
    })?;
    Ok(Box::new(decoder))
}

fn check(config: &Value, c: &Config) -> Result<()> {
    check_activation(config, "hidden_act", "silu")?;
    let is = |key: &str, value| config.get(key) == Some(&Value::Bool(value));
    let layer_types = c.layer_types.as_deref().unwrap_or_default();
    let known = |kind: &String| kind == "full_attention" || kind == "linear_attention";
    ensure_supported(!is("attention_bias", true), "attention_bias is not supported")?;
    ensure_supported(!is("attn_output_gate", false), "attn_output_gate must be true")?;
    ensure_supported(
        layer_types.iter().all(known),
        format!("layer_types are {layer_types:?}; one of them is unknown"),
    )
}

/// Hub checkpoints store norms as `weight - 1`, MLX's conversions store the weight; only the layout
/// of the convolution distinguishes them.
fn norm_offset(c: &Config, w: &Weights) -> Result<f32> {
    let Some(layer) = (0..c.base.num_hidden_layers).find(|&i| !c.is_full_attention(i)) else {
        return Ok(1.0);
    };
    let conv = w.shape(&format!("model.layers.{layer}.linear_attn.conv1d.weight"))?;
    Ok(if is_hub_conv1d(&conv) { 1.0 } else { 0.0 })
}

fn feed_forward(c: &Config, has_experts: bool, w: &Weights) -> Result<Box<dyn FeedForward>> {
    let hidden = c.base.hidden_size;
    Ok(match &c.moe {
        Some(moe) if has_experts => Box::new(load_experts(moe, hidden, w)?),
        _ => {
            let missing = || crate::LoadError::Config("there is no intermediate_size in it".into());
            Box::new(w.mlp(hidden, c.intermediate_size.ok_or_else(missing)?, Activation::Silu)?)
        }
    })
}

struct GatedAttention {
    /// Each head's query, followed by its output gate.
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    heads: CoreAttention,
}

impl GatedAttention {
    fn load(c: &Config, rope: &RopeParameters, w: &Weights) -> Result<GatedAttention> {
        let (heads, kv_heads, head_dim) = (c.num_attention_heads, c.num_key_value_heads, c.head_dim);
        let hidden = c.base.hidden_size;
        let norm = |name| w.rms_norm(name, head_dim, c.base.rms_norm_eps);
        Ok(GatedAttention {
            q_proj: w.linear("q_proj", 2 * heads * head_dim, hidden)?,
            k_proj: w.linear("k_proj", kv_heads * head_dim, hidden)?,
            v_proj: w.linear("v_proj", kv_heads * head_dim, hidden)?,
            o_proj: w.linear("o_proj", hidden, heads * head_dim)?,
            heads: CoreAttention::new(heads, kv_heads, head_dim, rope.rope(head_dim, RopePairs::Halves)?)
                .with_qk_norm(norm("q_norm")?, norm("k_norm")?)
                .with_output_gate(),
        })
    }
}

impl Mixer for GatedAttention {
    fn forward(&self, x: &Residual, layer: usize, batch: &mut Batch) -> Array {
        let [q, k, v] = x.project([&self.q_proj, &self.k_proj, &self.v_proj]);
        let out = batch.attend_heads(layer, [&q, &k, &v], &self.heads);
        x.add_projected(&self.o_proj, &out)
    }

    fn observe(&self, x: &Residual, layer: usize, batch: &mut Batch) {
        let [k, v] = x.project([&self.k_proj, &self.v_proj]);
        batch.append_heads(layer, [&k, &v], &self.heads);
    }

    fn make_cache(&self) -> Cache {
        Cache::kv()
    }
}

/// Experts, and a shared expert with a gate of its own.
fn load_experts(c: &MoeConfig, hidden: i32, w: &Weights) -> Result<MixtureOfExperts> {
    let mlp = w.sub("shared_expert").mlp(hidden, c.shared_expert_intermediate_size, Activation::Silu)?;
    let gate = Some(w.linear("shared_expert_gate", 1, hidden)?);
    qwen3::load_experts(&c.routed, hidden, true, Some(SharedExpert { mlp, gate }), w)
}

//! Qwen 3: grouped-query attention with an RMS norm on each query and key head; feed-forward blocks are dense or, in
//! `qwen3_moe`, experts behind a softmax router.
//!
//! Reference: transformers `qwen3`, `qwen3_moe`.

use mlx::{
    Array, Softmax,
    fast::{Activation, Rope, RopePairs},
};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Model,
    config::{check_activation, parse},
    decoder::{Decoder, FeedForward, Mixer, PreNorm, Stem},
    plain_names,
};
use crate::{
    batch::Batch,
    cache::Cache,
    error::Result,
    nn::{Experts, Linear, Mlp, RmsNorm, Router, rope::RopeParameters},
    weights::Weights,
};

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    stem: Stem,
    intermediate_size: i32,
    num_attention_heads: i32,
    num_key_value_heads: i32,
    head_dim: Option<i32>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(flatten)]
    moe: Option<MoeConfig>,
}

/// Keys of models with experts.
#[derive(Deserialize)]
struct MoeConfig {
    num_experts: i32,
    num_experts_per_tok: i32,
    moe_intermediate_size: i32,
    #[serde(default)]
    norm_topk_prob: bool,
    decoder_sparse_step: Option<usize>,
    #[serde(default)]
    mlp_only_layers: Vec<usize>,
}

impl MoeConfig {
    fn has_experts(&self, layer: usize) -> bool {
        let step = self.decoder_sparse_step.unwrap_or(1);
        self.num_experts > 0 && !self.mlp_only_layers.contains(&layer) && (layer + 1).is_multiple_of(step)
    }
}

/// MLX's stacked experts lie below `switch_mlp`.
pub fn sanitize(config: &Value, name: &str) -> Option<String> {
    plain_names(config, &name.replace(".mlp.switch_mlp.", ".mlp.experts."))
}

pub fn load(config: &Value, w: &Weights) -> Result<Box<dyn Model>> {
    let c: Config = parse(config)?;
    check_activation(config, "hidden_act", "silu")?;
    let rope = RopeParameters::of(config, None)?;
    Ok(Box::new(Decoder::load(&c.stem, w, |i, w| {
        let mixer = Attention::load(&c, &rope, sliding_window(config, i), &w.sub("self_attn"))?;
        PreNorm::load(&c.stem, w, 0.0, Box::new(mixer), feed_forward(&c, i, &w.sub("mlp"))?)
    })?))
}

/// Qwen's windows: off unless `use_sliding_window`, and then only in layers from `max_window_layers` on.
pub fn sliding_window(config: &Value, layer: usize) -> Option<i32> {
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
    let hidden = c.stem.hidden_size;
    Ok(match &c.moe {
        Some(moe) if moe.has_experts(layer) => Box::new(SparseMoe {
            gate: w.linear("gate", moe.num_experts, hidden)?,
            router: Router::Softmax { per_token: moe.num_experts_per_tok, normalize: moe.norm_topk_prob },
            experts: Experts::load(w, moe.num_experts, hidden, moe.moe_intermediate_size, Activation::Silu)?,
        }),
        _ => Box::new(Mlp::load(w, hidden, c.intermediate_size, Activation::Silu)?),
    })
}

struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    rope: Rope,
    sliding_window: Option<i32>,
    softmax: Softmax,
}

impl Attention {
    fn load(
        c: &Config,
        rope: &RopeParameters,
        sliding_window: Option<i32>,
        w: &Weights,
    ) -> Result<Attention> {
        let (hidden, heads, kv_heads) = (c.stem.hidden_size, c.num_attention_heads, c.num_key_value_heads);
        let head_dim = c.head_dim.unwrap_or(128);
        Ok(Attention {
            q_proj: w.linear_with("q_proj", heads * head_dim, hidden, c.attention_bias)?,
            k_proj: w.linear_with("k_proj", kv_heads * head_dim, hidden, c.attention_bias)?,
            v_proj: w.linear_with("v_proj", kv_heads * head_dim, hidden, c.attention_bias)?,
            o_proj: w.linear_with("o_proj", hidden, heads * head_dim, c.attention_bias)?,
            q_norm: w.rms_norm("q_norm", head_dim, c.stem.rms_norm_eps, 0.0)?,
            k_norm: w.rms_norm("k_norm", head_dim, c.stem.rms_norm_eps, 0.0)?,
            heads,
            kv_heads,
            head_dim,
            rope: rope.rope(head_dim, RopePairs::Halves)?,
            sliding_window,
            softmax: Softmax::scaled((head_dim as f32).powf(-0.5)),
        })
    }
}

impl Mixer for Attention {
    fn forward(&self, x: &Array, layer: usize, batch: &mut Batch) -> Array {
        let split = |x: Array, heads| x.reshape(&[-1, heads, self.head_dim]);
        let q = batch.rope(&self.q_norm.forward(&split(self.q_proj.forward(x), self.heads)), &self.rope);
        let k = batch.rope(&self.k_norm.forward(&split(self.k_proj.forward(x), self.kv_heads)), &self.rope);
        let v = split(self.v_proj.forward(x), self.kv_heads);
        let out = batch.attend(layer, &q, &k, &v, &self.softmax);
        self.o_proj.forward(&out.reshape(&[-1, self.heads * self.head_dim]))
    }

    fn make_cache(&self) -> Cache {
        self.sliding_window.map_or_else(Cache::kv, Cache::window)
    }
}

struct SparseMoe {
    gate: Linear,
    router: Router,
    experts: Experts,
}

impl FeedForward for SparseMoe {
    fn forward(&self, x: &Array) -> Array {
        self.experts.forward(x, &self.router.route(&self.gate.forward(x)))
    }
}

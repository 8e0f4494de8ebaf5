//! Kimi Linear: three Kimi Delta Attention layers (a gated delta rule with decay per channel) to
//! one of latent attention without positions; experts with a sigmoid router.
//!
//! Reference: transformers `kimi_linear`; Kimi Team, "Kimi Linear" (2025).

use mlx::{Array, Dtype};
use nn::{Activation, Linear, Residual, RmsNorm};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Model,
    config::{BaseConfig, check_activation, ensure_supported, parse},
    decoder::Decoder,
    layer::{FeedForward, Mixer, PreNorm},
    mla::{self, LatentAttention},
    names::plain_names,
    sigmoid_moe,
};
use crate::{
    batch::Batch,
    cache::Cache,
    error::Result,
    weights::{Rule, Transform::Whole, Weights},
};

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    base: BaseConfig,
    #[serde(flatten)]
    attention: mla::Config,
    linear_attn_config: LinearConfig,
    intermediate_size: i32,
    num_experts: i32,
    num_experts_per_tok: i32,
    num_shared_experts: i32,
    moe_intermediate_size: i32,
    moe_layer_freq: Option<usize>,
    first_k_dense_replace: usize,
    moe_renormalize: Option<bool>,
    routed_scaling_factor: Option<f32>,
    num_expert_group: Option<i32>,
    topk_group: Option<i32>,
}

#[derive(Deserialize)]
struct LinearConfig {
    /// Counted from 1.
    kda_layers: Vec<usize>,
    head_dim: i32,
    num_heads: i32,
    short_conv_kernel_size: i32,
}

/// Hub names have `block_sparse_moe`, MLX's `switch_mlp` and `q_conv.conv`.
pub(super) fn sanitize(config: &Value, name: &str) -> Option<String> {
    if name.starts_with("model.mtp") {
        return None;
    }
    let name = name.replace(".block_sparse_moe.", ".mlp.").replace(".mlp.switch_mlp.", ".mlp.experts.");
    let name = name.replace(".mlp.e_score_correction_bias", ".mlp.gate.e_score_correction_bias");
    plain_names(config, &name.replace("_conv.conv.", "_conv1d."))
}

pub(super) const LAYOUT: &[Rule] = &[
    Rule::new(".block_sparse_moe.experts.#.w1.weight", &[(".mlp.switch_mlp.gate_proj.weight", Whole)]),
    Rule::new(".block_sparse_moe.experts.#.w2.weight", &[(".mlp.switch_mlp.down_proj.weight", Whole)]),
    Rule::new(".block_sparse_moe.experts.#.w3.weight", &[(".mlp.switch_mlp.up_proj.weight", Whole)]),
    Rule::new(
        ".block_sparse_moe.shared_experts.gate_proj.weight",
        &[(".mlp.shared_experts.gate_proj.weight", Whole)],
    ),
    Rule::new(
        ".block_sparse_moe.shared_experts.up_proj.weight",
        &[(".mlp.shared_experts.up_proj.weight", Whole)],
    ),
    Rule::new(
        ".block_sparse_moe.shared_experts.down_proj.weight",
        &[(".mlp.shared_experts.down_proj.weight", Whole)],
    ),
];

pub(super) fn load(config: &Value, w: &Weights) -> Result<Box<dyn Model>> {
    let c: Config = parse(config)?;
    check_activation(config, "hidden_act", "silu")?;
    check_activation(config, "moe_router_activation_func", "sigmoid")?;
    let rotated = config.get("mla_use_nope") == Some(&Value::Bool(false));
    ensure_supported(!rotated, "mla_use_nope must be true")?;
    parse::<Value>(&config["linear_attn_config"])?;
    Ok(Box::new(Decoder::load(&c.base, w, |i, w| {
        let attention = w.sub("self_attn");
        let mixer: Box<dyn Mixer> = match c.linear_attn_config.kda_layers.contains(&(i + 1)) {
            true => Box::new(KimiDeltaAttention::load(&c, &attention)?),
            false => Box::new(LatentAttention::load(&c.attention, &c.base, None, 1.0, &attention)?),
        };
        PreNorm::load(&c.base, w, mixer, feed_forward(&c, i, &w.sub("mlp"))?)
    })?))
}

fn feed_forward(c: &Config, layer: usize, w: &Weights) -> Result<Box<dyn FeedForward>> {
    let (hidden, every) = (c.base.hidden_size, c.moe_layer_freq.unwrap_or(1).max(1));
    if layer < c.first_k_dense_replace || !layer.is_multiple_of(every) {
        return Ok(Box::new(w.mlp(hidden, c.intermediate_size, Activation::Silu)?));
    }
    let config = sigmoid_moe::Config {
        experts: c.num_experts,
        per_token: c.num_experts_per_tok,
        intermediate: c.moe_intermediate_size,
        shared: c.num_shared_experts * c.moe_intermediate_size,
        normalize: c.moe_renormalize.unwrap_or(true),
        eps: 1e-20,
        scale: c.routed_scaling_factor.unwrap_or(1.0),
        n_group: c.num_expert_group.unwrap_or(1),
        topk_group: c.topk_group.unwrap_or(1),
        bias: true,
    };
    Ok(Box::new(sigmoid_moe::load(&config, hidden, w)?))
}

struct KimiDeltaAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    /// For queries, keys and values together, `[channels, width]`.
    conv1d: Array,
    f_a_proj: Linear,
    f_b_proj: Linear,
    b_proj: Linear,
    /// `-exp(A_log)`, float32 `[heads, 1]`.
    neg_exp_a: Array,
    /// Float32 `[heads, head_dim]`.
    dt_bias: Array,
    g_a_proj: Linear,
    g_b_proj: Linear,
    o_norm: RmsNorm,
    o_proj: Linear,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    heads: i32,
    head_dim: i32,
}

impl KimiDeltaAttention {
    fn load(c: &Config, w: &Weights) -> Result<KimiDeltaAttention> {
        let LinearConfig { head_dim, num_heads: heads, short_conv_kernel_size: width, .. } =
            c.linear_attn_config;
        let (hidden, channels) = (c.base.hidden_size, heads * head_dim);
        let convolutions = ["q_conv1d", "k_conv1d", "v_conv1d"];
        let convolutions = convolutions.map(|name| w.conv1d(name, channels, width));
        let [q, k, v] = convolutions;
        let a_log = match w.shape("A_log")?.len() {
            1 => w.float32("A_log", &[heads])?,
            _ => w.float32("A_log", &[1, 1, heads, 1])?,
        };
        let a_log = a_log.reshape(&[heads, 1]);
        Ok(KimiDeltaAttention {
            q_proj: w.linear("q_proj", channels, hidden)?,
            k_proj: w.linear("k_proj", channels, hidden)?,
            v_proj: w.linear("v_proj", channels, hidden)?,
            conv1d: w.materialized(Array::concatenate(&[q?, k?, v?], 0))?,
            f_a_proj: w.linear("f_a_proj", head_dim, hidden)?,
            f_b_proj: w.linear("f_b_proj", channels, head_dim)?,
            b_proj: w.linear("b_proj", heads, hidden)?,
            neg_exp_a: -a_log.exp(),
            dt_bias: w.float32("dt_bias", &[channels])?.reshape(&[heads, head_dim]),
            g_a_proj: w.linear("g_a_proj", head_dim, hidden)?,
            g_b_proj: w.linear("g_b_proj", channels, head_dim)?,
            o_norm: w.rms_norm("o_norm", head_dim, c.base.rms_norm_eps)?,
            o_proj: w.linear("o_proj", hidden, channels)?,
            q_norm: RmsNorm::l2(head_dim, 1e-6, (head_dim as f32).powf(-0.5)),
            k_norm: RmsNorm::l2(head_dim, 1e-6, 1.0),
            heads,
            head_dim,
        })
    }
}

impl Mixer for KimiDeltaAttention {
    fn forward(&self, x: &Residual, layer: usize, batch: &mut Batch) -> Array {
        let split = |x: &Array| x.reshape(&[-1, self.heads, self.head_dim]);
        let inputs = [&self.q_proj, &self.k_proj, &self.v_proj, &self.f_a_proj, &self.b_proj, &self.g_a_proj];
        let [q, k, v, f, b, gate] = x.project(inputs);
        let qkv = batch.causal_conv_silu(layer, &Array::concatenate([&q, &k, &v], -1), &self.conv1d);
        let parts = qkv.split(-1, &[self.heads * self.head_dim; 3]);
        let (q, k) = (self.q_norm.forward(&split(&parts[0])), self.k_norm.forward(&split(&parts[1])));

        let dt = split(&self.f_b_proj.forward(&f)).astype(Dtype::Float32);
        let g = ((dt + &self.dt_bias).softplus() * &self.neg_exp_a).exp();
        let out = batch.gated_delta(layer, [&q, &k, &split(&parts[2])], &g, &b.sigmoid());

        let gate = split(&self.g_b_proj.forward(&gate));
        let out = self.o_norm.forward(&out) * gate.sigmoid();
        x.add_projected(&self.o_proj, &out.reshape(&[out.dim(0), -1]))
    }

    fn make_cache(&self) -> Cache {
        Cache::recurrent()
    }
}

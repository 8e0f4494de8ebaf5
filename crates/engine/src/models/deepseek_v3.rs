//! DeepSeek-V3, Kimi K2 and GLM-4.7-Flash: latent attention, experts with a grouped sigmoid router.
//!
//! Reference: transformers `deepseek_v3`, `glm4_moe_lite`.

use nn::{Activation, RopePairs};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Model,
    config::{BaseConfig, check_activation, check_value, parse},
    decoder::Decoder,
    layer::{FeedForward, PreNorm},
    mla::{self, LatentAttention},
    mtp::{self, Mtp},
    names::{is_nextn_layer, plain_names},
    sigmoid_moe,
};
use crate::{error::Result, models::rope::RopeParameters, weights::Weights};

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    base: BaseConfig,
    #[serde(flatten)]
    attention: mla::Config,
    rope_interleave: Option<bool>,
    intermediate_size: i32,
    #[serde(flatten)]
    moe: MoeConfig,
}

/// Keys that DeepSeek's and GLM's experts share.
#[derive(Deserialize)]
pub(super) struct MoeConfig {
    n_routed_experts: i32,
    n_shared_experts: Option<i32>,
    num_experts_per_tok: i32,
    moe_intermediate_size: i32,
    #[serde(default)]
    first_k_dense_replace: usize,
    moe_layer_freq: Option<usize>,
    norm_topk_prob: Option<bool>,
    routed_scaling_factor: Option<f32>,
    n_group: Option<i32>,
    topk_group: Option<i32>,
}

impl MoeConfig {
    /// Dense in the first layers, experts in the others.
    pub(super) fn feed_forward(
        &self,
        layer: usize,
        hidden: i32,
        dense: i32,
        w: &Weights,
    ) -> Result<Box<dyn FeedForward>> {
        let every = self.moe_layer_freq.unwrap_or(1).max(1);
        if layer < self.first_k_dense_replace || !layer.is_multiple_of(every) {
            return Ok(Box::new(w.mlp(hidden, dense, Activation::Silu)?));
        }
        let config = sigmoid_moe::Config {
            experts: self.n_routed_experts,
            per_token: self.num_experts_per_tok,
            intermediate: self.moe_intermediate_size,
            shared: self.n_shared_experts.unwrap_or(0) * self.moe_intermediate_size,
            normalize: self.norm_topk_prob.unwrap_or(true),
            eps: 1e-20,
            scale: self.routed_scaling_factor.unwrap_or(1.0),
            n_group: self.n_group.unwrap_or(1),
            topk_group: self.topk_group.unwrap_or(1),
            bias: true,
        };
        Ok(Box::new(sigmoid_moe::load(&config, hidden, w)?))
    }
}

/// Layers past the last are MTP heads; MLX stacks experts under `switch_mlp`.
pub(super) fn sanitize(config: &Value, name: &str) -> Option<String> {
    let name = name.replace(".mlp.switch_mlp.", ".mlp.experts.");
    match is_nextn_layer(config, &name) {
        true => mtp::nextn_tensor_name(config, &name),
        false => plain_names(config, &name),
    }
}

pub(super) fn load(config: &Value, w: &Weights) -> Result<Box<dyn Model>> {
    let c: Config = parse(config)?;
    check_activation(config, "hidden_act", "silu")?;
    check_router(config)?;
    let parameters = RopeParameters::of(config, None)?.whole_head();
    let pairs = if c.rope_interleave == Some(false) { RopePairs::Halves } else { RopePairs::Adjacent };
    let rope = parameters.rope(c.attention.qk_rope_head_dim, pairs)?;
    let layer = |i: usize, w: &Weights| {
        let (rope, factor) = (Some(rope.clone()), parameters.softmax_factor());
        let mixer = LatentAttention::load(&c.attention, &c.base, rope, factor, &w.sub("self_attn"))?;
        let mlp = c.moe.feed_forward(i, c.base.hidden_size, c.intermediate_size, &w.sub("mlp"))?;
        PreNorm::load(&c.base, w, Box::new(mixer), mlp)
    };
    let mut decoder = Decoder::load(&c.base, w, layer)?;
    decoder.mtp = Mtp::load(&c.base, w, &decoder.embed_tokens, |w| layer(c.base.num_hidden_layers, w))?;
    Ok(Box::new(decoder))
}

/// Fails on routers of earlier DeepSeek models.
pub(super) fn check_router(config: &Value) -> Result<()> {
    check_value(config, "scoring_func", "sigmoid")?;
    check_value(config, "topk_method", "noaux_tc")
}

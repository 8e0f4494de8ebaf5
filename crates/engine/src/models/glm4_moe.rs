//! GLM-4.5 to 4.7: grouped-query attention on half-rotated heads, experts with a sigmoid router.
//!
//! Reference: transformers `glm4_moe`.

use nn::RopePairs;
use serde::Deserialize;
use serde_json::Value;

use super::{
    Model,
    attention::{Attention, AttentionConfig},
    config::{BaseConfig, check_activation, parse},
    decoder::Decoder,
    deepseek_v3::{MoeConfig, check_router},
    layer::PreNorm,
    mtp::Mtp,
};
use crate::{error::Result, models::rope::RopeParameters, weights::Weights};

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
    #[serde(default)]
    use_qk_norm: bool,
    #[serde(flatten)]
    moe: MoeConfig,
}

pub(super) fn load(config: &Value, w: &Weights) -> Result<Box<dyn Model>> {
    let c: Config = parse(config)?;
    check_activation(config, "hidden_act", "silu")?;
    check_router(config)?;
    let head_dim = c.head_dim.unwrap_or(c.base.hidden_size / c.num_attention_heads);
    let heads = AttentionConfig {
        hidden_size: c.base.hidden_size,
        num_heads: c.num_attention_heads,
        num_kv_heads: c.num_key_value_heads,
        head_dim,
        qkv_bias: c.attention_bias,
        o_bias: false,
    };
    let rope = RopeParameters::of(config, None)?.or(10_000.0, 0.5).rope(head_dim, RopePairs::Halves)?;
    let layer = |i: usize, w: &Weights| {
        let attention = w.sub("self_attn");
        let mixer = Attention::load(heads, rope.clone(), &attention)?;
        let mixer = match c.use_qk_norm {
            true => mixer.with_qk_norm(c.base.rms_norm_eps, &attention)?,
            false => mixer,
        };
        let mlp = c.moe.feed_forward(i, c.base.hidden_size, c.intermediate_size, &w.sub("mlp"))?;
        PreNorm::load(&c.base, w, Box::new(mixer), mlp)
    };
    let mut decoder = Decoder::load(&c.base, w, layer)?;
    decoder.mtp = Mtp::load(&c.base, w, &decoder.embed_tokens, |w| layer(c.base.num_hidden_layers, w))?;
    Ok(Box::new(decoder))
}

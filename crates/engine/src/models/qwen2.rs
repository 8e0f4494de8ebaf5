//! Qwen 2 and 2.5: grouped-query attention with biases on queries, keys and values.
//!
//! Reference: transformers `qwen2`.

use nn::{Activation, RopePairs};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Model,
    attention::{Attention, AttentionConfig},
    config::{BaseConfig, check_activation, parse},
    decoder::Decoder,
    layer::PreNorm,
    qwen3::sliding_window,
};
use crate::{error::Result, models::rope::RopeParameters, weights::Weights};

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    base: BaseConfig,
    intermediate_size: i32,
    num_attention_heads: i32,
    num_key_value_heads: i32,
}

pub(super) fn load(config: &Value, w: &Weights) -> Result<Box<dyn Model>> {
    let c: Config = parse(config)?;
    check_activation(config, "hidden_act", "silu")?;
    let head_dim = c.base.hidden_size / c.num_attention_heads;
    let heads = AttentionConfig {
        hidden_size: c.base.hidden_size,
        num_heads: c.num_attention_heads,
        num_kv_heads: c.num_key_value_heads,
        head_dim,
        qkv_bias: true,
        o_bias: false,
    };
    let rope = RopeParameters::of(config, None)?.rope(head_dim, RopePairs::Halves)?;
    Ok(Box::new(Decoder::load(&c.base, w, |i, w| {
        let mixer =
            Attention::load(heads, rope.clone(), &w.sub("self_attn"))?.with_window(sliding_window(config, i));
        let mlp = w.sub("mlp").mlp(c.base.hidden_size, c.intermediate_size, Activation::Silu)?;
        PreNorm::load(&c.base, w, Box::new(mixer), Box::new(mlp))
    })?))
}

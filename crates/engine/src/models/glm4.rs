//! GLM-4 (dense): sandwich norms, half-rotated heads in adjacent pairs.
//!
//! Reference: transformers `glm4`.

use mlx::Array;
use nn::{Activation, Linear, Residual, RopePairs, gated, halves};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Model,
    attention::{Attention, AttentionConfig},
    config::{BaseConfig, check_activation, parse},
    decoder::Decoder,
    layer::{FeedForward, SandwichNorm},
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
}

const NORMS: [&str; 4] =
    ["input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"];

pub(super) fn load(config: &Value, w: &Weights) -> Result<Box<dyn Model>> {
    let c: Config = parse(config)?;
    check_activation(config, "hidden_act", "silu")?;
    let head_dim = c.head_dim.unwrap_or(c.base.hidden_size / c.num_attention_heads);
    let heads = AttentionConfig {
        hidden_size: c.base.hidden_size,
        num_heads: c.num_attention_heads,
        num_kv_heads: c.num_key_value_heads,
        head_dim,
        qkv_bias: c.attention_bias,
        o_bias: false,
    };
    let rope = RopeParameters::of(config, None)?.or(10_000.0, 0.5).rope(head_dim, RopePairs::Adjacent)?;
    Ok(Box::new(Decoder::load(&c.base, w, |_, w| {
        let mixer = Attention::load(heads, rope.clone(), &w.sub("self_attn"))?;
        let mlp = FusedMlp::load(&c, &w.sub("mlp"))?;
        SandwichNorm::load(&c.base, w, NORMS, Box::new(mixer), Box::new(mlp))
    })?))
}

struct FusedMlp {
    /// Gates before values.
    gate_up_proj: Linear,
    down_proj: Linear,
}

impl FusedMlp {
    fn load(c: &Config, w: &Weights) -> Result<FusedMlp> {
        Ok(FusedMlp {
            gate_up_proj: w.linear("gate_up_proj", 2 * c.intermediate_size, c.base.hidden_size)?,
            down_proj: w.linear("down_proj", c.base.hidden_size, c.intermediate_size)?,
        })
    }
}

impl FeedForward for FusedMlp {
    fn forward(&self, x: &Residual) -> Array {
        let [both] = x.project([&self.gate_up_proj]);
        let [gate, up] = halves(&both);
        x.add_projected(&self.down_proj, &gated(&gate, &up, Activation::Silu))
    }
}

//! GLM-4 (dense): norms on both sides of attention and feed-forward blocks, half-rotated heads in adjacent pairs.
//!
//! Reference: transformers `glm4`.

use mlx::{
    Array,
    fast::{Activation, Rope, RopePairs, gated},
};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Model,
    attention::{Attention, Heads},
    config::{check_activation, parse},
    decoder::{self, Decoder, Mixer, Stem},
};
use crate::{
    batch::Batch,
    cache::Cache,
    error::Result,
    nn::{Linear, RmsNorm, halves, rope::RopeParameters},
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
}

pub fn load(config: &Value, w: &Weights) -> Result<Box<dyn Model>> {
    let c: Config = parse(config)?;
    check_activation(config, "hidden_act", "silu")?;
    let head_dim = c.head_dim.unwrap_or(c.stem.hidden_size / c.num_attention_heads);
    let heads = Heads {
        hidden: c.stem.hidden_size,
        heads: c.num_attention_heads,
        kv_heads: c.num_key_value_heads,
        head_dim,
        qkv_bias: c.attention_bias,
        o_bias: false,
    };
    let rope = RopeParameters::of(config, None)?.or(10_000.0, 0.5).rope(head_dim, RopePairs::Adjacent)?;
    Ok(Box::new(Decoder::load(&c.stem, w, |_, w| Layer::load(&c, heads, rope.clone(), w))?))
}

struct Layer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_self_attn_layernorm: RmsNorm,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
    post_mlp_layernorm: RmsNorm,
}

impl Layer {
    fn load(c: &Config, heads: Heads, rope: Rope, w: &Weights) -> Result<Layer> {
        let norm = |name| w.rms_norm(name, c.stem.hidden_size, c.stem.rms_norm_eps, 0.0);
        Ok(Layer {
            input_layernorm: norm("input_layernorm")?,
            self_attn: Attention::load(heads, rope, &w.sub("self_attn"))?,
            post_self_attn_layernorm: norm("post_self_attn_layernorm")?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            mlp: Mlp::load(c, &w.sub("mlp"))?,
            post_mlp_layernorm: norm("post_mlp_layernorm")?,
        })
    }
}

impl decoder::Layer for Layer {
    fn forward(&self, x: &Array, i: usize, batch: &mut Batch) -> Array {
        let mixed = self.self_attn.forward(&self.input_layernorm.forward(x), i, batch);
        let h = x + self.post_self_attn_layernorm.forward(&mixed);
        let fed = self.mlp.forward(&self.post_attention_layernorm.forward(&h));
        &h + self.post_mlp_layernorm.forward(&fed)
    }

    fn make_cache(&self) -> Cache {
        self.self_attn.make_cache()
    }
}

struct Mlp {
    /// Gates before values.
    gate_up_proj: Linear,
    down_proj: Linear,
}

impl Mlp {
    fn load(c: &Config, w: &Weights) -> Result<Mlp> {
        Ok(Mlp {
            gate_up_proj: w.linear("gate_up_proj", 2 * c.intermediate_size, c.stem.hidden_size)?,
            down_proj: w.linear("down_proj", c.stem.hidden_size, c.intermediate_size)?,
        })
    }

    fn forward(&self, x: &Array) -> Array {
        let [gate, up] = halves(&self.gate_up_proj.forward(x));
        self.down_proj.forward(&gated(&gate, &up, Activation::Silu))
    }
}

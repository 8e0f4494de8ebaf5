//! GLM-4 (dense): norms on both sides of attention and feed-forward blocks, half-rotated heads in adjacent pairs.
//!
//! Reference: transformers `glm4`.

use mlx::{
    Array, Softmax,
    fast::{Activation, Rope, RopePairs, gated},
};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Model,
    config::{check_activation, parse},
    decoder::{self, Decoder, Stem},
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
    let rope = RopeParameters::of(config, None)?.or(10_000.0, 0.5);
    Ok(Box::new(Decoder::load(&c.stem, w, |_, w| Layer::load(&c, &rope, w))?))
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
    fn load(c: &Config, rope: &RopeParameters, w: &Weights) -> Result<Layer> {
        let norm = |name| w.rms_norm(name, c.stem.hidden_size, c.stem.rms_norm_eps, 0.0);
        Ok(Layer {
            input_layernorm: norm("input_layernorm")?,
            self_attn: Attention::load(c, rope, &w.sub("self_attn"))?,
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
        Cache::kv()
    }
}

struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    heads: i32,
    kv_heads: i32,
    head_dim: i32,
    rope: Rope,
    softmax: Softmax,
}

impl Attention {
    fn load(c: &Config, rope: &RopeParameters, w: &Weights) -> Result<Attention> {
        let (hidden, heads, kv_heads) = (c.stem.hidden_size, c.num_attention_heads, c.num_key_value_heads);
        let head_dim = c.head_dim.unwrap_or(hidden / heads);
        Ok(Attention {
            q_proj: w.linear_with("q_proj", heads * head_dim, hidden, c.attention_bias)?,
            k_proj: w.linear_with("k_proj", kv_heads * head_dim, hidden, c.attention_bias)?,
            v_proj: w.linear_with("v_proj", kv_heads * head_dim, hidden, c.attention_bias)?,
            o_proj: w.linear("o_proj", hidden, heads * head_dim)?,
            heads,
            kv_heads,
            head_dim,
            rope: rope.rope(head_dim, RopePairs::Adjacent)?,
            softmax: Softmax::scaled((head_dim as f32).powf(-0.5)),
        })
    }

    fn forward(&self, x: &Array, layer: usize, batch: &mut Batch) -> Array {
        let split = |x: Array, heads| x.reshape(&[-1, heads, self.head_dim]);
        let q = batch.rope(&split(self.q_proj.forward(x), self.heads), &self.rope);
        let k = batch.rope(&split(self.k_proj.forward(x), self.kv_heads), &self.rope);
        let v = split(self.v_proj.forward(x), self.kv_heads);
        let out = batch.attend(layer, &q, &k, &v, &self.softmax);
        self.o_proj.forward(&out.reshape(&[-1, self.heads * self.head_dim]))
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

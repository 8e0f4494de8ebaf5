//! Qwen 2 and 2.5: grouped-query attention with biases on queries, keys and values.
//!
//! Reference: transformers `qwen2`.

use mlx::{
    Array, Softmax,
    fast::{Activation, Rope, RopePairs},
};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Model,
    config::{check_activation, parse},
    decoder::{Decoder, Mixer, PreNorm, Stem},
    qwen3::sliding_window,
};
use crate::{
    batch::Batch,
    cache::Cache,
    error::Result,
    nn::{Linear, Mlp, rope::RopeParameters},
    weights::Weights,
};

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    stem: Stem,
    intermediate_size: i32,
    num_attention_heads: i32,
    num_key_value_heads: i32,
}

pub fn load(config: &Value, w: &Weights) -> Result<Box<dyn Model>> {
    let c: Config = parse(config)?;
    check_activation(config, "hidden_act", "silu")?;
    let rope = RopeParameters::of(config, None)?;
    Ok(Box::new(Decoder::load(&c.stem, w, |i, w| {
        let mixer = Attention::load(&c, &rope, sliding_window(config, i), &w.sub("self_attn"))?;
        let mlp = Mlp::load(&w.sub("mlp"), c.stem.hidden_size, c.intermediate_size, Activation::Silu)?;
        PreNorm::load(&c.stem, w, 0.0, Box::new(mixer), Box::new(mlp))
    })?))
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
        let head_dim = hidden / heads;
        Ok(Attention {
            q_proj: w.linear_with("q_proj", heads * head_dim, hidden, true)?,
            k_proj: w.linear_with("k_proj", kv_heads * head_dim, hidden, true)?,
            v_proj: w.linear_with("v_proj", kv_heads * head_dim, hidden, true)?,
            o_proj: w.linear("o_proj", hidden, heads * head_dim)?,
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
        let q = batch.rope(&split(self.q_proj.forward(x), self.heads), &self.rope);
        let k = batch.rope(&split(self.k_proj.forward(x), self.kv_heads), &self.rope);
        let v = split(self.v_proj.forward(x), self.kv_heads);
        let out = batch.attend(layer, &q, &k, &v, &self.softmax);
        self.o_proj.forward(&out.reshape(&[-1, self.heads * self.head_dim]))
    }

    fn make_cache(&self) -> Cache {
        self.sliding_window.map_or_else(Cache::kv, Cache::window)
    }
}

//! GLM-4.5 to 4.7: grouped-query attention on half-rotated heads, experts behind a sigmoid router.
//!
//! Reference: transformers `glm4_moe`.

use mlx::{
    Array, Softmax,
    fast::{Rope, RopePairs},
};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Model,
    config::{check_activation, parse},
    decoder::{Decoder, Mixer, PreNorm, Stem},
    deepseek_v3::{MoeConfig, check_router},
};
use crate::{
    batch::Batch,
    cache::Cache,
    error::Result,
    nn::{Linear, RmsNorm, rope::RopeParameters},
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
    #[serde(default)]
    use_qk_norm: bool,
    #[serde(flatten)]
    moe: MoeConfig,
}

pub fn load(config: &Value, w: &Weights) -> Result<Box<dyn Model>> {
    let c: Config = parse(config)?;
    check_activation(config, "hidden_act", "silu")?;
    check_router(config)?;
    let rope = RopeParameters::of(config, None)?.or(10_000.0, 0.5);
    Ok(Box::new(Decoder::load(&c.stem, w, |i, w| {
        let mixer = Attention::load(&c, &rope, &w.sub("self_attn"))?;
        let mlp = c.moe.feed_forward(i, c.stem.hidden_size, c.intermediate_size, &w.sub("mlp"))?;
        PreNorm::load(&c.stem, w, 0.0, Box::new(mixer), mlp)
    })?))
}

struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    qk_norm: Option<[RmsNorm; 2]>,
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
        let norm = |name| w.rms_norm(name, head_dim, c.stem.rms_norm_eps, 0.0);
        Ok(Attention {
            q_proj: w.linear_with("q_proj", heads * head_dim, hidden, c.attention_bias)?,
            k_proj: w.linear_with("k_proj", kv_heads * head_dim, hidden, c.attention_bias)?,
            v_proj: w.linear_with("v_proj", kv_heads * head_dim, hidden, c.attention_bias)?,
            o_proj: w.linear("o_proj", hidden, heads * head_dim)?,
            qk_norm: if c.use_qk_norm { Some([norm("q_norm")?, norm("k_norm")?]) } else { None },
            heads,
            kv_heads,
            head_dim,
            rope: rope.rope(head_dim, RopePairs::Halves)?,
            softmax: Softmax::scaled((head_dim as f32).powf(-0.5)),
        })
    }
}

impl Mixer for Attention {
    fn forward(&self, x: &Array, layer: usize, batch: &mut Batch) -> Array {
        let split = |x: Array, heads| x.reshape(&[-1, heads, self.head_dim]);
        let q = split(self.q_proj.forward(x), self.heads);
        let k = split(self.k_proj.forward(x), self.kv_heads);
        let v = split(self.v_proj.forward(x), self.kv_heads);
        let [q, k] = match &self.qk_norm {
            Some([q_norm, k_norm]) => [q_norm.forward(&q), k_norm.forward(&k)],
            None => [q, k],
        };
        let [q, k] = [q, k].map(|x| batch.rope(&x, &self.rope));
        let out = batch.attend(layer, &q, &k, &v, &self.softmax);
        self.o_proj.forward(&out.reshape(&[-1, self.heads * self.head_dim]))
    }

    fn make_cache(&self) -> Cache {
        Cache::kv()
    }
}

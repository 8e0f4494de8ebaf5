//! Grouped-query attention with rotary positions, as most families have it: they differ in biases, norms of queries and
//! keys, windows and what happens to scores.

use mlx::{Array, Softmax, fast::Rope};

use super::decoder::Mixer;
use crate::{
    batch::Batch,
    cache::Cache,
    error::Result,
    nn::{Linear, RmsNorm},
    weights::Weights,
};

/// Sizes of the projections, and which have biases.
#[derive(Clone, Copy)]
pub struct Heads {
    pub hidden: i32,
    pub heads: i32,
    pub kv_heads: i32,
    pub head_dim: i32,
    pub qkv_bias: bool,
    pub o_bias: bool,
}

pub struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    /// Of each query and each key head, before they turn.
    qk_norm: Option<[RmsNorm; 2]>,
    size: Heads,
    rope: Rope,
    sliding_window: Option<i32>,
    softmax: Softmax,
}

impl Attention {
    /// Without norms and windows, scores scaled by `head_dim^-1/2`; the methods below change that.
    pub fn load(size: Heads, rope: Rope, w: &Weights) -> Result<Attention> {
        let Heads { hidden, heads, kv_heads, head_dim, qkv_bias, o_bias } = size;
        Ok(Attention {
            q_proj: w.linear_with("q_proj", heads * head_dim, hidden, qkv_bias)?,
            k_proj: w.linear_with("k_proj", kv_heads * head_dim, hidden, qkv_bias)?,
            v_proj: w.linear_with("v_proj", kv_heads * head_dim, hidden, qkv_bias)?,
            o_proj: w.linear_with("o_proj", hidden, heads * head_dim, o_bias)?,
            qk_norm: None,
            size,
            rope,
            sliding_window: None,
            softmax: Softmax::scaled((head_dim as f32).powf(-0.5)),
        })
    }

    /// With `q_norm` and `k_norm`; `offset` is what their stored weights lack.
    pub fn with_qk_norm(self, eps: f32, offset: f32, w: &Weights) -> Result<Attention> {
        let norm = |name| w.rms_norm(name, self.size.head_dim, eps, offset);
        Ok(Attention { qk_norm: Some([norm("q_norm")?, norm("k_norm")?]), ..self })
    }

    pub fn with_window(self, sliding_window: Option<i32>) -> Attention {
        Attention { sliding_window, ..self }
    }

    pub fn with_softmax(self, softmax: Softmax) -> Attention {
        Attention { softmax, ..self }
    }
}

impl Mixer for Attention {
    fn forward(&self, x: &Array, layer: usize, batch: &mut Batch) -> Array {
        let Heads { heads, kv_heads, head_dim, .. } = self.size;
        let split = |x: Array, heads| x.reshape(&[-1, heads, head_dim]);
        let q = split(self.q_proj.forward(x), heads);
        let k = split(self.k_proj.forward(x), kv_heads);
        let v = split(self.v_proj.forward(x), kv_heads);
        let [q, k] = match &self.qk_norm {
            Some([q_norm, k_norm]) => [q_norm.forward(&q), k_norm.forward(&k)],
            None => [q, k],
        };
        let [q, k] = [q, k].map(|x| batch.rope(&x, &self.rope));
        let out = batch.attend(layer, &q, &k, &v, &self.softmax);
        self.o_proj.forward(&out.reshape(&[-1, heads * head_dim]))
    }

    fn make_cache(&self) -> Cache {
        self.sliding_window.map_or_else(Cache::kv, Cache::window)
    }
}

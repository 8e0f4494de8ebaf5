//! Grouped-query attention with rotary positions, as most families have it: they differ in biases, norms of queries and
//! keys, windows and what happens to scores.

use mlx::{Array, Softmax, fast::Rope};

use super::layer::Mixer;
use crate::{
    batch::Batch,
    cache::Cache,
    error::Result,
    nn::{Linear, Residual},
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
    head_dim: i32,
    heads: mlx::Heads,
    sliding_window: Option<i32>,
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
            head_dim,
            heads: mlx::Heads::new(heads, kv_heads, head_dim, rope),
            sliding_window: None,
        })
    }

    /// With `q_norm` and `k_norm` on each head.
    pub fn with_qk_norm(self, eps: f32, w: &Weights) -> Result<Attention> {
        let norm = |name| w.rms_norm(name, self.head_dim, eps);
        Ok(Attention { heads: self.heads.with_norms(norm("q_norm")?, norm("k_norm")?), ..self })
    }

    pub fn with_window(self, sliding_window: Option<i32>) -> Attention {
        Attention { sliding_window, ..self }
    }

    pub fn with_softmax(self, softmax: Softmax) -> Attention {
        Attention { heads: self.heads.with_softmax(softmax), ..self }
    }
}

impl Mixer for Attention {
    fn forward(&self, x: &Residual, layer: usize, batch: &mut Batch) -> Array {
        let [q, k, v] = x.project([&self.q_proj, &self.k_proj, &self.v_proj]);
        let out = batch.attend_heads(layer, [&q, &k, &v], &self.heads);
        x.add_projected(&self.o_proj, &out)
    }

    fn observe(&self, x: &Residual, layer: usize, batch: &mut Batch) {
        let [k, v] = x.project([&self.k_proj, &self.v_proj]);
        batch.append_heads(layer, [&k, &v], &self.heads);
    }

    fn make_cache(&self) -> Cache {
        self.sliding_window.map_or_else(Cache::kv, Cache::window)
    }
}

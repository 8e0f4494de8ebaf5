//! Grouped-query attention with rotary positions; families differ in biases, head norms, windows
//! and softmax.

use mlx::Array;
use nn::{Linear, Residual, Rope, Softmax};

use super::layer::Mixer;
use crate::{batch::Batch, cache::Cache, error::Result, weights::Weights};

/// Sizes of the projections, and which have biases.
#[derive(Clone, Copy)]
pub(super) struct AttentionConfig {
    pub hidden_size: i32,
    pub num_heads: i32,
    pub num_kv_heads: i32,
    pub head_dim: i32,
    pub qkv_bias: bool,
    pub o_bias: bool,
}

/// The four projections of grouped-query attention.
pub(super) struct Projections {
    pub q_proj: Linear,
    pub k_proj: Linear,
    pub v_proj: Linear,
    pub o_proj: Linear,
}

impl Projections {
    pub(super) fn load(c: AttentionConfig, w: &Weights) -> Result<Projections> {
        let (hidden, q, kv) = (c.hidden_size, c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim);
        Ok(Projections {
            q_proj: w.linear_with("q_proj", q, hidden, c.qkv_bias)?,
            k_proj: w.linear_with("k_proj", kv, hidden, c.qkv_bias)?,
            v_proj: w.linear_with("v_proj", kv, hidden, c.qkv_bias)?,
            o_proj: w.linear_with("o_proj", hidden, q, c.o_bias)?,
        })
    }
}

pub(super) struct Attention {
    projections: Projections,
    head_dim: i32,
    heads: nn::CoreAttention,
    sliding_window: Option<i32>,
    /// Tokens see those after them too.
    bidirectional: bool,
}

impl Attention {
    /// Without head norms and windows, with scores scaled by `head_dim^-1/2`.
    pub(super) fn load(c: AttentionConfig, rope: Rope, w: &Weights) -> Result<Attention> {
        Ok(Attention {
            projections: Projections::load(c, w)?,
            head_dim: c.head_dim,
            heads: nn::CoreAttention::new(c.num_heads, c.num_kv_heads, c.head_dim, rope),
            sliding_window: None,
            bidirectional: false,
        })
    }

    /// With `q_norm` and `k_norm` on each head.
    pub(super) fn with_qk_norm(self, eps: f32, w: &Weights) -> Result<Attention> {
        let norm = |name| w.rms_norm(name, self.head_dim, eps);
        Ok(Attention { heads: self.heads.with_qk_norm(norm("q_norm")?, norm("k_norm")?), ..self })
    }

    pub(super) fn with_window(self, sliding_window: Option<i32>) -> Attention {
        Attention { sliding_window, ..self }
    }

    pub(super) fn with_bidirectional(self, bidirectional: bool) -> Attention {
        Attention { bidirectional, ..self }
    }

    /// With tokens of an image attending to all of it.
    pub(super) fn with_images_together(self, together: bool) -> Attention {
        let heads = if together { self.heads.with_images_together() } else { self.heads };
        Attention { heads, ..self }
    }

    pub(super) fn with_softmax(self, softmax: Softmax) -> Attention {
        Attention { heads: self.heads.with_softmax(softmax), ..self }
    }
}

impl Mixer for Attention {
    fn forward(&self, x: &Residual, layer: usize, batch: &mut Batch) -> Array {
        let Projections { q_proj, k_proj, v_proj, o_proj } = &self.projections;
        let [q, k, v] = x.project([q_proj, k_proj, v_proj]);
        let out = match self.bidirectional {
            true => batch.attend_both_ways([&q, &k, &v], &self.heads, self.sliding_window),
            false => batch.attend_heads(layer, [&q, &k, &v], &self.heads),
        };
        x.add_projected(o_proj, &out)
    }

    fn observe(&self, x: &Residual, layer: usize, batch: &mut Batch) {
        let [k, v] = x.project([&self.projections.k_proj, &self.projections.v_proj]);
        batch.append_heads(layer, [&k, &v], &self.heads);
    }

    fn make_cache(&self) -> Cache {
        self.sliding_window.map_or_else(Cache::kv, Cache::window)
    }
}

//! Multi-head latent attention (DeepSeek-V2, 2024): the cache holds one latent per token, from
//! which keys and values of all heads follow.
//!
//! The matrices that expand latents are applied to queries and outputs instead ("absorbed"), in
//! prefill as in decode.

use mlx::Array;
use nn::{Linear, Residual, RmsNorm, Rope, Softmax, StackedLinear};
use serde::Deserialize;

use super::{config::BaseConfig, layer::Mixer};
use crate::{batch::Batch, cache::Cache, error::Result, weights::Weights};

#[derive(Deserialize)]
pub(super) struct Config {
    num_attention_heads: i32,
    q_lora_rank: Option<i32>,
    kv_lora_rank: i32,
    qk_nope_head_dim: i32,
    pub qk_rope_head_dim: i32,
    v_head_dim: i32,
    #[serde(default)]
    attention_bias: bool,
}

/// Eps of the inner norms, independent of config.json's.
const EPS: f32 = 1e-6;

pub(super) struct LatentAttention {
    query: Query,
    kv_a_proj_with_mqa: Linear,
    kv_a_layernorm: RmsNorm,
    /// Queries to latents, per head.
    embed_q: StackedLinear,
    /// Latents to values, per head.
    unembed_out: StackedLinear,
    o_proj: Linear,
    heads: i32,
    nope: i32,
    rope_dim: i32,
    rank: i32,
    /// `None` for attention without positions.
    rope: Option<Rope>,
    softmax: Softmax,
}

enum Query {
    Plain(Linear),
    LowRank { q_a_proj: Linear, q_a_layernorm: RmsNorm, q_b_proj: Linear },
}

impl LatentAttention {
    /// `softmax_factor` multiplies the usual scale.
    pub(super) fn load(
        c: &Config,
        base: &BaseConfig,
        rope: Option<Rope>,
        softmax_factor: f32,
        w: &Weights,
    ) -> Result<LatentAttention> {
        let (hidden, heads, rank) = (base.hidden_size, c.num_attention_heads, c.kv_lora_rank);
        let head_dim = c.qk_nope_head_dim + c.qk_rope_head_dim;
        let kv_a = rank + c.qk_rope_head_dim;
        Ok(LatentAttention {
            query: match c.q_lora_rank.filter(|&rank| rank > 0) {
                None => Query::Plain(w.linear("q_proj", heads * head_dim, hidden)?),
                Some(rank) => Query::LowRank {
                    q_a_proj: w.linear_with("q_a_proj", rank, hidden, c.attention_bias)?,
                    q_a_layernorm: w.rms_norm("q_a_layernorm", rank, EPS)?,
                    q_b_proj: w.linear("q_b_proj", heads * head_dim, rank)?,
                },
            },
            kv_a_proj_with_mqa: w.linear_with("kv_a_proj_with_mqa", kv_a, hidden, c.attention_bias)?,
            kv_a_layernorm: w.rms_norm("kv_a_layernorm", rank, EPS)?,
            embed_q: w.stacked("embed_q", heads, rank, c.qk_nope_head_dim)?,
            unembed_out: w.stacked("unembed_out", heads, c.v_head_dim, rank)?,
            o_proj: w.linear_with("o_proj", hidden, heads * c.v_head_dim, c.attention_bias)?,
            heads,
            nope: c.qk_nope_head_dim,
            rope_dim: c.qk_rope_head_dim,
            rank,
            rope,
            softmax: Softmax::scaled((head_dim as f32).powf(-0.5) * softmax_factor),
        })
    }
}

impl Mixer for LatentAttention {
    fn forward(&self, x: &Residual, layer: usize, batch: &mut Batch) -> Array {
        let rope = |x: &Array, batch: &Batch| match &self.rope {
            Some(rope) => batch.rope(x, rope),
            None => x.clone(),
        };
        let (q, kv) = self.query.project(x, &self.kv_a_proj_with_mqa);
        let q = q.reshape(&[-1, self.heads, self.nope + self.rope_dim]);
        let q = q.split(-1, &[self.nope, self.rope_dim]);
        let q = [self.embed_q.forward_each(&q[0]), rope(&q[1], batch)];

        let kv = kv.split(-1, &[self.rank, self.rope_dim]);
        let latent = self.kv_a_layernorm.forward(&kv[0]).reshape(&[-1, 1, self.rank]);
        let latent = [latent, rope(&kv[1].reshape(&[-1, 1, self.rope_dim]), batch)];

        let (q, latent) = (Array::concatenate(&q, -1), Array::concatenate(&latent, -1));
        let out = batch.attend_latent(layer, &q, &latent, self.rank, &self.softmax);
        let out = self.unembed_out.forward_each(&out);
        x.add_projected(&self.o_proj, &out.reshape(&[out.dim(0), -1]))
    }

    fn make_cache(&self) -> Cache {
        Cache::kv()
    }
}

impl Query {
    /// Queries, and `x` through another linear layer.
    fn project(&self, x: &Residual, other: &Linear) -> (Array, Array) {
        match self {
            Query::Plain(q_proj) => {
                let [q, other] = x.project([q_proj, other]);
                (q, other)
            }
            Query::LowRank { q_a_proj, q_a_layernorm, q_b_proj } => {
                let [q, other] = x.project([q_a_proj, other]);
                (q_b_proj.forward(&q_a_layernorm.forward(&q)), other)
            }
        }
    }
}

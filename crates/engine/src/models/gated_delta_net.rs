//! The Gated DeltaNet layer of Qwen3-Next and 3.5 (Yang et al., "Gated Delta Networks", 2024).

use mlx::Array;
use nn::{DeltaHeads, DeltaNet, DeltaWeights, Linear, Residual, RmsNorm};
use serde::Deserialize;

use super::{config::BaseConfig, layer::Mixer};
use crate::{batch::Batch, cache::Cache, error::Result, weights::Weights};

#[derive(Deserialize)]
pub(super) struct Config {
    linear_num_key_heads: i32,
    linear_num_value_heads: i32,
    linear_key_head_dim: i32,
    linear_value_head_dim: i32,
    linear_conv_kernel_dim: i32,
}

impl Config {
    fn keys(&self) -> i32 {
        self.linear_num_key_heads * self.linear_key_head_dim
    }

    fn values(&self) -> i32 {
        self.linear_num_value_heads * self.linear_value_head_dim
    }
}

pub(super) struct GatedDeltaNet {
    in_proj: InProj,
    recurrence: DeltaNet,
    norm: RmsNorm,
    out_proj: Linear,
}

impl GatedDeltaNet {
    pub(super) fn load(c: &Config, base: &BaseConfig, w: &Weights) -> Result<GatedDeltaNet> {
        let (key_dim, value_heads) = (c.linear_key_head_dim, c.linear_num_value_heads);
        let heads = DeltaHeads {
            key_heads: c.linear_num_key_heads,
            value_heads,
            key_dim,
            value_dim: c.linear_value_head_dim,
        };
        let weights = DeltaWeights {
            conv1d: w.conv1d("conv1d", 2 * c.keys() + c.values(), c.linear_conv_kernel_dim)?,
            neg_exp_a: -w.float32("A_log", &[value_heads])?.exp(),
            dt_bias: w.float32("dt_bias", &[value_heads])?,
            norms: [(key_dim as f32).powf(-0.5), 1.0].map(|scale| RmsNorm::l2(key_dim, 1e-6, scale)),
        };
        Ok(GatedDeltaNet {
            in_proj: InProj::load(c, base.hidden_size, w)?,
            recurrence: DeltaNet::new(heads, weights),
            // Stored without an offset, unlike the other norms.
            norm: w.with_norm_offset(0.0).rms_norm("norm", c.linear_value_head_dim, base.rms_norm_eps)?,
            out_proj: w.linear("out_proj", base.hidden_size, c.values())?,
        })
    }
}

impl Mixer for GatedDeltaNet {
    fn forward(&self, x: &Residual, layer: usize, batch: &mut Batch) -> Array {
        let Projected { qkv, z, b, a } = self.in_proj.forward(x);
        let out = batch.delta_net(layer, &qkv, &b, &a, &self.recurrence);
        x.add_gated(&self.out_proj, &self.norm, &z, &out)
    }

    fn make_cache(&self) -> Cache {
        Cache::recurrent()
    }
}

/// The input projections: one each in 3.5, two in Next, interleaved by key head.
enum InProj {
    Separate { qkv: Linear, z: Linear, b: Linear, a: Linear },
    PerHead { qkvz: Linear, ba: Linear, key_heads: i32, key_dim: i32, values_per_key: i32, value_dim: i32 },
}

struct Projected {
    /// Queries, keys and values of all heads, in this order.
    qkv: Array,
    z: Array,
    b: Array,
    a: Array,
}

impl InProj {
    fn load(c: &Config, hidden: i32, w: &Weights) -> Result<InProj> {
        let (keys, values, value_heads) = (c.keys(), c.values(), c.linear_num_value_heads);
        if !w.has("in_proj_qkvz.weight") {
            return Ok(InProj::Separate {
                qkv: w.linear("in_proj_qkv", 2 * keys + values, hidden)?,
                z: w.linear("in_proj_z", values, hidden)?,
                b: w.linear("in_proj_b", value_heads, hidden)?,
                a: w.linear("in_proj_a", value_heads, hidden)?,
            });
        }
        Ok(InProj::PerHead {
            qkvz: w.linear("in_proj_qkvz", 2 * keys + 2 * values, hidden)?,
            ba: w.linear("in_proj_ba", 2 * value_heads, hidden)?,
            key_heads: c.linear_num_key_heads,
            key_dim: c.linear_key_head_dim,
            values_per_key: value_heads / c.linear_num_key_heads,
            value_dim: c.linear_value_head_dim,
        })
    }

    fn forward(&self, x: &Residual) -> Projected {
        match self {
            InProj::Separate { qkv, z, b, a } => {
                let [qkv, z, b, a] = x.project([qkv, z, b, a]);
                Projected { qkv, z, b, a }
            }
            InProj::PerHead { qkvz, ba, key_heads, key_dim, values_per_key, value_dim } => {
                let [qkvz, ba] = x.project([qkvz, ba]);
                let tokens = ba.dim(0);
                let per_head = |x: Array| x.reshape(&[tokens, *key_heads, -1]);
                let values = values_per_key * value_dim;
                let parts = per_head(qkvz).split(-1, &[*key_dim, *key_dim, values, values]);
                let flat = |x: &Array| x.reshape(&[tokens, -1]);
                let gates = per_head(ba).split(-1, &[*values_per_key; 2]);
                let qkv = [flat(&parts[0]), flat(&parts[1]), flat(&parts[2])];
                Projected {
                    qkv: Array::concatenate(&qkv, -1),
                    z: flat(&parts[3]),
                    b: flat(&gates[0]),
                    a: flat(&gates[1]),
                }
            }
        }
    }
}

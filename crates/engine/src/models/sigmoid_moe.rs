//! Experts with a sigmoid router, with or without a shared expert (DeepSeek-V3, 2024).

use mlx::Array;
use nn::{Activation, Experts, Linear, Mlp, Residual, Router};

use super::layer::FeedForward;
use crate::{error::Result, weights::Weights};

pub(super) struct Config {
    pub experts: i32,
    pub per_token: i32,
    pub intermediate: i32,
    /// Intermediate size of the shared expert; 0 for none.
    pub shared: i32,
    pub normalize: bool,
    /// Added to the sum that normalizes the weights.
    pub eps: f32,
    pub scale: f32,
    pub n_group: i32,
    pub topk_group: i32,
    /// Whether the router adds a bias per expert when it chooses.
    pub bias: bool,
}

pub(super) struct SigmoidMoe {
    gate: Linear,
    router: Router,
    experts: Experts,
    shared_experts: Option<Mlp>,
}

impl SigmoidMoe {
    pub(super) fn load(c: &Config, hidden: i32, w: &Weights) -> Result<SigmoidMoe> {
        let bias = match c.bias {
            true => Some(w.float32("gate.e_score_correction_bias", &[c.experts])?),
            false => None,
        };
        Ok(SigmoidMoe {
            gate: w.router("gate", c.experts, hidden, false)?,
            router: Router::Sigmoid {
                per_token: c.per_token,
                normalize: c.normalize,
                eps: c.eps,
                bias,
                n_group: c.n_group,
                topk_group: c.topk_group,
                scale: c.scale,
            },
            experts: w.experts(c.experts, hidden, c.intermediate, Activation::Silu)?,
            shared_experts: match c.shared {
                0 => None,
                size => Some(w.sub("shared_experts").mlp(hidden, size, Activation::Silu)?),
            },
        })
    }
}

impl FeedForward for SigmoidMoe {
    fn forward(&self, x: &Residual) -> Array {
        let normed = &x.normed();
        let routed = self.experts.forward(normed, &self.router.route(&self.gate.forward(normed)));
        x.add(match &self.shared_experts {
            Some(shared) => routed + shared.forward(normed),
            None => routed,
        })
    }
}

//! Experts with a sigmoid router, with or without a shared expert (DeepSeek-V3, 2024).

use nn::{Activation, MixtureOfExperts, Router, SharedExpert};

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

/// The block of `w`.
pub(super) fn load(c: &Config, hidden: i32, w: &Weights) -> Result<MixtureOfExperts> {
    let bias = match c.bias {
        true => Some(w.float32("gate.e_score_correction_bias", &[c.experts])?),
        false => None,
    };
    let router = Router::sigmoid(c.per_token, c.normalize, c.eps, c.scale);
    let gate = w.router("gate", c.experts, hidden, false)?;
    let experts = w.experts(c.experts, hidden, c.intermediate, Activation::Silu)?;
    let shared = match c.shared {
        0 => None,
        size => {
            let mlp = w.sub("shared_experts").mlp(hidden, size, Activation::Silu)?;
            Some(SharedExpert { mlp, gate: None })
        }
    };
    let router = router.with_bias(bias).with_groups(c.n_group, c.topk_group);
    Ok(MixtureOfExperts::new(gate, router, experts, shared))
}

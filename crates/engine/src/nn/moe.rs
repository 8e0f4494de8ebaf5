//! Mixture of experts: a router that picks some experts for each token, and the experts as grouped products.

use mlx::{
    Array, Dtype,
    fast::{self, Activation},
};

use super::Stack;
use crate::{error::Result, weights::Weights};

/// Which experts each token goes to, and with what weight; both `[tokens, experts_per_token]`.
pub struct Routing {
    /// Uint32.
    pub experts: Array,
    /// Float32.
    pub weights: Array,
}

/// How scores become a choice.
pub enum Router {
    /// Softmax over all experts, then the best `per_token`.
    Softmax { per_token: i32, normalize: bool },
    /// Sigmoid scores; the choice, not the weights, adds a bias per expert. Only the best `topk_group` of `n_group`
    /// groups take part, a group being worth its two best experts (DeepSeek-V3, 2024).
    Sigmoid {
        per_token: i32,
        normalize: bool,
        /// Added to the sum that weights are divided by.
        eps: f32,
        bias: Option<Array>,
        n_group: i32,
        topk_group: i32,
        scale: f32,
    },
}

impl Router {
    /// Routes by `logits` `[tokens, experts]`.
    pub fn route(&self, logits: &Array) -> Routing {
        let logits = logits.astype(Dtype::Float32);
        match self {
            Router::Softmax { per_token, normalize } => {
                let scores = logits.softmax(-1);
                pick(&scores, fast::top_k(&scores, *per_token), *normalize, 0.0)
            }
            Router::Sigmoid { per_token, normalize, eps, bias, n_group, topk_group, scale } => {
                let scores = logits.sigmoid();
                let choice = match bias {
                    Some(bias) => &scores + bias,
                    None => scores.clone(),
                };
                let choice =
                    if n_group > topk_group { best_groups(&choice, *n_group, *topk_group) } else { choice };
                let routing = pick(&scores, fast::top_k(&choice, *per_token), *normalize, *eps);
                Routing { weights: routing.weights * *scale, ..routing }
            }
        }
    }
}

/// The scores of the chosen experts, made to add up to one if `normalize`.
fn pick(scores: &Array, experts: Array, normalize: bool, eps: f32) -> Routing {
    let weights = scores.take_along_axis(&experts, -1);
    let weights = if normalize { &weights / (weights.sum(-1, true) + eps) } else { weights };
    Routing { experts, weights }
}

/// `choice` with minus infinity wherever an expert's group is not among the best.
fn best_groups(choice: &Array, n_group: i32, topk_group: i32) -> Array {
    let (tokens, experts) = (choice.dim(0), choice.dim(1));
    let size = experts / n_group;
    let grouped = choice.reshape(&[tokens * n_group, size]);
    let best_two = grouped.take_along_axis(&fast::top_k(&grouped, size.min(2)), -1).sum(-1, false);
    let chosen = fast::top_k(&best_two.reshape(&[tokens, n_group]), topk_group);
    let closed = Array::full(&[tokens, n_group], f32::NEG_INFINITY, Dtype::Float32);
    let open = Array::zeros(&[tokens, topk_group], Dtype::Float32);
    let mask = closed.put_along_axis(&chosen, &open, -1).reshape(&[tokens, n_group, 1]);
    (choice.reshape(&[tokens, n_group, size]) + mask).reshape(&[tokens, experts])
}

/// Gated feed-forward blocks, of which each token goes through a few.
pub struct Experts {
    gate_proj: Stack,
    up_proj: Stack,
    down_proj: Stack,
    activation: Activation,
}

impl Experts {
    /// From `experts.*`.
    pub fn load(
        w: &Weights,
        count: i32,
        hidden: i32,
        intermediate: i32,
        activation: Activation,
    ) -> Result<Experts> {
        let stack = |name, outputs, inputs| w.stacked(&format!("experts.{name}"), count, outputs, inputs);
        Ok(Experts {
            gate_proj: stack("gate_proj", intermediate, hidden)?,
            up_proj: stack("up_proj", intermediate, hidden)?,
            down_proj: stack("down_proj", hidden, intermediate)?,
            activation,
        })
    }

    /// `[tokens, hidden]` through each token's experts, weighted and summed.
    pub fn forward(&self, x: &Array, routing: &Routing) -> Array {
        let rows = x.reshape(&[x.dim(0), 1, x.dim(1)]);
        let gate = self.gate_proj.forward(&rows, &routing.experts);
        let up = self.up_proj.forward(&rows, &routing.experts);
        let inner = fast::gated(&gate, &up, self.activation);
        routing.combine(&self.down_proj.forward(&inner, &routing.experts))
    }
}

impl Routing {
    /// The weighted sum of the experts' outputs `[tokens, n, hidden]`.
    pub fn combine(&self, outputs: &Array) -> Array {
        let weights = self.weights.reshape(&[self.weights.dim(0), self.weights.dim(1), 1]);
        (outputs.astype(Dtype::Float32) * weights).sum(1, false).astype(outputs.dtype())
    }
}

//! Mixture of experts: a router that chooses experts for each token, and the experts as stacked
//! layers.

use mlx::{Array, Dtype};

use crate::{Activation, StackedLinear, backend::on_backend, gated};

/// The experts of each token and their weights, both `[tokens, experts_per_token]`.
pub struct Routing {
    /// Uint32.
    pub experts: Array,
    /// Float32.
    pub weights: Array,
}

/// The rule that turns scores into a choice of experts.
pub enum Router {
    /// Softmax over all experts, then the best `per_token`.
    Softmax { per_token: i32, normalize: bool },
    /// Sigmoid scores; a bias per expert affects the choice but not the weights. Only experts of
    /// the best `topk_group` of `n_group` groups are chosen; a group's score is the sum of its two
    /// best experts' scores (DeepSeek-V3, 2024).
    Sigmoid {
        per_token: i32,
        normalize: bool,
        /// Added to the sum by which weights are divided.
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
                pick(&scores, top_k(&scores, *per_token), *normalize, 0.0)
            }
            Router::Sigmoid { per_token, normalize, eps, bias, n_group, topk_group, scale } => {
                let scores = logits.sigmoid();
                let choice = match bias {
                    Some(bias) => &scores + bias,
                    None => scores.clone(),
                };
                let choice =
                    if n_group > topk_group { best_groups(&choice, *n_group, *topk_group) } else { choice };
                let routing = pick(&scores, top_k(&choice, *per_token), *normalize, *eps);
                Routing { weights: routing.weights * *scale, ..routing }
            }
        }
    }
}

/// Indices (uint32 `[rows, k]`) of the `k` largest scores of each row of `[rows, n]`, largest
/// first.
#[track_caller]
pub fn top_k(scores: &Array, k: i32) -> Array {
    on_backend!(top_k(scores, k))
}

/// Weights of the chosen experts: their scores, divided by their sum if `normalize`.
fn pick(scores: &Array, experts: Array, normalize: bool, eps: f32) -> Routing {
    let weights = scores.take_along_axis(&experts, -1);
    let weights = if normalize { &weights / (weights.sum(-1, true) + eps) } else { weights };
    Routing { experts, weights }
}

/// `choice` with minus infinity for experts outside the best groups.
fn best_groups(choice: &Array, n_group: i32, topk_group: i32) -> Array {
    let (tokens, experts) = (choice.dim(0), choice.dim(1));
    let size = experts / n_group;
    let grouped = choice.reshape(&[tokens * n_group, size]);
    let best_two = grouped.take_along_axis(&top_k(&grouped, size.min(2)), -1).sum(-1, false);
    let chosen = top_k(&best_two.reshape(&[tokens, n_group]), topk_group);
    let closed = Array::full(&[tokens, n_group], f32::NEG_INFINITY, Dtype::Float32);
    let open = Array::zeros(&[tokens, topk_group], Dtype::Float32);
    let mask = closed.put_along_axis(&chosen, &open, -1).reshape(&[tokens, n_group, 1]);
    (choice.reshape(&[tokens, n_group, size]) + mask).reshape(&[tokens, experts])
}

/// Gated feed-forward blocks, a few of which process each token.
pub struct Experts {
    gate_proj: StackedLinear,
    up_proj: StackedLinear,
    down_proj: StackedLinear,
    activation: Activation,
}

impl Experts {
    pub fn new([gate_proj, up_proj, down_proj]: [StackedLinear; 3], activation: Activation) -> Experts {
        Experts { gate_proj, up_proj, down_proj, activation }
    }

    /// `[tokens, hidden]` through each token's experts, weighted and summed.
    pub fn forward(&self, x: &Array, routing: &Routing) -> Array {
        let rows = x.reshape(&[x.dim(0), 1, x.dim(1)]);
        let gate = self.gate_proj.forward(&rows, &routing.experts);
        let up = self.up_proj.forward(&rows, &routing.experts);
        let inner = gated(&gate, &up, self.activation);
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

//! Mixture of experts, of MLX's operations.

use kernels::{RouterRule, RouterScores};
use mlx::{Array, Dtype};

pub(crate) use crate::moe::expert_products as expert_outputs;
use crate::{Router, Routing, moe::CombineWith};

#[track_caller]
pub(crate) fn top_k(scores: &Array, k: i32) -> Array {
    (-scores).argsort(-1).slice(-1, 0, k)
}

/// See [`Router::route`].
#[track_caller]
pub(crate) fn route(logits: &Array, router: &Router) -> Routing {
    let rule = &router.rule;
    let logits = logits.astype(Dtype::Float32);
    let scores = match rule.scores {
        RouterScores::Softmax => logits.softmax(-1),
        RouterScores::Sigmoid => logits.sigmoid(),
    };
    let choice = router.bias.as_ref().map_or(scores.clone(), |bias| &scores + bias);
    let choice = if rule.topk_group < rule.n_group { best_groups(&choice, rule) } else { choice };
    let experts = top_k(&choice, rule.per_token as i32);
    let weights = scores.take_along_axis(&experts, -1);
    let weights = if rule.normalize { &weights / (weights.sum(-1, true) + rule.eps) } else { weights };
    let weights = if rule.scale == 1.0 { weights } else { weights * rule.scale };
    Routing { experts, weights }
}

/// `choice` with minus infinity for experts outside the best groups.
fn best_groups(choice: &Array, rule: &RouterRule) -> Array {
    let (n_group, topk_group) = (rule.n_group as i32, rule.topk_group as i32);
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

/// The sum of experts' outputs `[tokens, n, hidden]`, and of what is added to it.
#[track_caller]
pub(crate) fn combine_experts(outputs: &Array, weights: &Array, with: CombineWith) -> Array {
    let weights = weights.reshape(&[weights.dim(0), weights.dim(1), 1]);
    let mut out = (outputs.astype(Dtype::Float32) * weights).sum(1, false).astype(outputs.dtype());
    if let Some(shared) = with.shared {
        out = match with.gate {
            Some(gate) => out + shared * gate.sigmoid(),
            None => out + shared,
        };
    }
    match with.stream {
        Some(stream) => stream + out,
        None => out,
    }
}

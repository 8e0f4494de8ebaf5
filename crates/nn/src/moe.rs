//! Mixture of experts: a router that chooses experts for each token, the experts as stacked layers,
//! and the block of both.

use std::{cell::OnceCell, sync::Arc};

use kernels::{RouterRule, RouterScores};
use mlx::Array;

use crate::{Activation, Linear, Mlp, Residual, StackedLinear, backend::on_backend, gated};

/// The experts of each token and their weights, both `[tokens, experts_per_token]`.
pub struct Routing {
    /// Uint32.
    pub experts: Array,
    /// Float32.
    pub weights: Array,
}

/// The rule that turns scores into a choice of experts.
pub struct Router {
    pub(crate) rule: RouterRule,
    /// Added to scores for the choice alone, float32 `[experts]`.
    pub(crate) bias: Option<Array>,
    /// The bias as the CPU's kernel takes it, and in a GPU's memory.
    pub(crate) prepared_bias: OnceCell<Arc<[f32]>>,
    pub(crate) device_bias: OnceCell<Array>,
}

impl Router {
    /// Softmax over all experts, then the best `per_token`, whose weights are divided by their sum
    /// if `normalize`.
    pub fn softmax(per_token: i32, normalize: bool) -> Router {
        let rule = RouterRule {
            scores: RouterScores::Softmax,
            per_token: per_token as usize,
            normalize,
            eps: 0.0,
            scale: 1.0,
            n_group: 1,
            topk_group: 1,
        };
        Router { rule, bias: None, prepared_bias: OnceCell::new(), device_bias: OnceCell::new() }
    }

    /// Sigmoid scores, `eps` added to the sum by which weights are divided, and weights multiplied
    /// by `scale`.
    pub fn sigmoid(per_token: i32, normalize: bool, eps: f32, scale: f32) -> Router {
        let softmax = Router::softmax(per_token, normalize);
        let rule = softmax.rule;
        Router { rule: RouterRule { scores: RouterScores::Sigmoid, eps, scale, ..rule }, ..softmax }
    }

    /// With a bias per expert that affects the choice but not the weights.
    pub fn with_bias(self, bias: Option<Array>) -> Router {
        Router { bias, ..self }
    }

    /// Only experts of the best `topk_group` of `n_group` groups are chosen; a group's score is the
    /// sum of its two best experts' scores (DeepSeek-V3, 2024).
    pub fn with_groups(self, n_group: i32, topk_group: i32) -> Router {
        let (n_group, topk_group) = (n_group as usize, topk_group as usize);
        Router { rule: RouterRule { n_group, topk_group, ..self.rule }, ..self }
    }

    /// Routes by `logits` `[tokens, experts]`.
    #[track_caller]
    pub fn route(&self, logits: &Array) -> Routing {
        on_backend!(route(logits, self))
    }
}

/// Indices (uint32 `[rows, k]`) of the `k` largest scores of each row of `[rows, n]`, largest
/// first.
#[track_caller]
pub fn top_k(scores: &Array, k: i32) -> Array {
    on_backend!(top_k(scores, k))
}

/// Gated feed-forward blocks, a few of which process each token.
pub struct Experts {
    pub(crate) gate_proj: StackedLinear,
    pub(crate) up_proj: StackedLinear,
    pub(crate) down_proj: StackedLinear,
    pub(crate) activation: Activation,
}

impl Experts {
    pub fn new([gate_proj, up_proj, down_proj]: [StackedLinear; 3], activation: Activation) -> Experts {
        Experts { gate_proj, up_proj, down_proj, activation }
    }

    /// `[tokens, hidden]` through each token's experts, weighted and summed.
    #[track_caller]
    pub fn forward(&self, x: &Array, routing: &Routing) -> Array {
        routing.combine(&self.outputs(x, routing, None).routed)
    }

    #[track_caller]
    fn outputs(&self, x: &Array, routing: &Routing, shared: Option<&Mlp>) -> ExpertOutputs {
        on_backend!(expert_outputs(x, self, &routing.experts, shared))
    }
}

/// The outputs of the tokens' experts.
pub(crate) struct ExpertOutputs {
    /// Those that a router chose, `[tokens, n, hidden]`. The CUDA back end may append the rows of
    /// the one of all tokens for its own `combine_experts`: `[tokens * n + tokens, hidden]`.
    pub routed: Array,
    /// The one of all tokens, `[tokens, hidden]`, unless its rows are appended.
    pub shared: Option<Array>,
}

/// The outputs of the tokens' experts, one product after another.
#[track_caller]
pub(crate) fn expert_products(
    x: &Array,
    experts: &Experts,
    indices: &Array,
    shared: Option<&Mlp>,
) -> ExpertOutputs {
    let rows = x.reshape(&[x.dim(0), 1, x.dim(1)]);
    let [gate, up] = [&experts.gate_proj, &experts.up_proj].map(|layers| layers.forward(&rows, indices));
    let routed = experts.down_proj.forward(&gated(&gate, &up, experts.activation), indices);
    ExpertOutputs { routed, shared: shared.map(|mlp| mlp.forward(x)) }
}

impl Routing {
    /// The weighted sum of the experts' outputs `[tokens, n, hidden]`.
    #[track_caller]
    pub fn combine(&self, outputs: &Array) -> Array {
        self.combine_with(outputs, CombineWith::default())
    }

    #[track_caller]
    fn combine_with(&self, outputs: &Array, with: CombineWith) -> Array {
        on_backend!(combine_experts(outputs, &self.weights, with))
    }
}

/// What is added to the weighted sum of experts, in this order.
#[derive(Clone, Copy, Default)]
pub(crate) struct CombineWith<'a> {
    /// A shared expert's output `[tokens, hidden]`.
    pub shared: Option<&'a Array>,
    /// Its gate before the sigmoid, `[tokens, 1]`.
    pub gate: Option<&'a Array>,
    /// The residual stream `[tokens, hidden]`.
    pub stream: Option<&'a Array>,
}

/// A feed-forward block of experts with a router, and an expert for all tokens if there is one.
pub struct MixtureOfExperts {
    /// Without rounding: a tiny difference may choose another expert.
    router_proj: Linear,
    router: Router,
    experts: Experts,
    shared: Option<SharedExpert>,
}

/// An expert that processes every token.
pub struct SharedExpert {
    pub mlp: Mlp,
    /// One output; its sigmoid multiplies the expert's.
    pub gate: Option<Linear>,
}

impl MixtureOfExperts {
    pub fn new(
        router_proj: Linear,
        router: Router,
        experts: Experts,
        shared: Option<SharedExpert>,
    ) -> MixtureOfExperts {
        MixtureOfExperts { router_proj, router, experts, shared }
    }

    /// The residual stream with the block's output added.
    #[track_caller]
    pub fn add_to(&self, x: &Residual) -> Array {
        let normed = &x.normed();
        let routing = self.router.route(&self.router_proj.forward(normed));
        let gate = self.shared.as_ref().and_then(|shared| Some(shared.gate.as_ref()?.forward(normed)));
        let shared = self.shared.as_ref().map(|shared| &shared.mlp);
        let outputs = self.experts.outputs(normed, &routing, shared);
        let add = x.to_add();
        let stream = add.post_norm.is_none().then_some(add.stream);
        let with = CombineWith { shared: outputs.shared.as_ref(), gate: gate.as_ref(), stream };
        let out = routing.combine_with(&outputs.routed, with);
        if stream.is_some() { out } else { x.add(out) }
    }
}

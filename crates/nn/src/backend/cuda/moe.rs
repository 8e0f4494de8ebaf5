//! Mixture of experts: routers, and the sum of the outputs of experts.

use kernels::{
    RouterScores,
    cuda::{CombineArrays, MAX_EXPERTS, RouterParameters},
};
use mlx::{Array, Dtype, cuda::Arguments};

use super::{
    super::cpu,
    launch::{empty, empty_of, is_f32, launch, resident, resident_f32},
};
use crate::{Router, Routing, moe::CombineWith};

/// See [`Router::route`].
#[track_caller]
pub(crate) fn route(logits: &Array, router: &Router) -> Routing {
    let (tokens, experts) = (logits.dim(0), logits.dim(1));
    if experts as usize > MAX_EXPERTS || tokens == 0 {
        return cpu::route(logits, router);
    }
    let rule = &router.rule;
    rule.check(experts as usize, router.bias.as_ref().map(Array::size));
    let shape = [tokens, rule.per_token as i32];
    let routing = Routing { experts: empty_of(&shape, Dtype::Uint32), weights: empty(&shape) };
    let logits = resident_f32(logits);
    let parameters = RouterParameters {
        bias: router.device_bias(),
        experts,
        per_token: rule.per_token as i32,
        normalize: i32::from(rule.normalize),
        scores: match rule.scores {
            RouterScores::Softmax => 0,
            RouterScores::Sigmoid => 1,
        },
        eps: rule.eps,
        scale: rule.scale,
        groups: rule.n_group as i32,
        open_groups: rule.topk_group as i32,
    };
    let arguments = Arguments::new()
        .with(parameters)
        .with(logits.device_address())
        .with(routing.experts.device_address())
        .with(routing.weights.device_address());
    let name = if experts <= 256 { "route_256" } else { "route_1024" };
    launch(name, [tokens as usize, 1, 1], 32, 0, arguments);
    routing
}

impl Router {
    /// The bias's address on the device, or 0.
    #[track_caller]
    fn device_bias(&self) -> u64 {
        let Some(bias) = &self.bias else { return 0 };
        self.device_bias.get_or_init(|| resident_f32(bias).into_owned()).device_address()
    }
}

/// The sum of experts' outputs, as [`ExpertOutputs`](crate::moe::ExpertOutputs) has them, and of
/// what is added to it.
#[track_caller]
pub(crate) fn combine_experts(outputs: &Array, weights: &Array, with: CombineWith) -> Array {
    let (tokens, per_token, hidden) = (weights.dim(0), weights.dim(1), outputs.dim(-1));
    let added = [with.shared, with.gate, with.stream];
    if tokens == 0 || !added.iter().flatten().all(|array| is_f32(array)) || !is_f32(outputs) {
        return cpu::combine_experts(outputs, weights, with);
    }
    let appended = outputs.ndim() == 2;
    let out = empty(&[tokens, hidden]);
    let (outputs, weights) = (resident(outputs), resident_f32(weights));
    let added = added.map(|array| array.map(resident));
    let [own, gate, stream] =
        added.each_ref().map(|array| array.as_ref().map_or(0, |array| array.device_address()));
    let routed = [tokens, per_token, hidden].map(|dim| dim as u64).iter().product::<u64>();
    let after = outputs.device_address() + routed * size_of::<f32>() as u64;
    let shared = if appended { after } else { own };
    let arguments = Arguments::new()
        .with(outputs.device_address())
        .with(weights.device_address())
        .with(CombineArrays { shared, gate, stream })
        .with(out.device_address())
        .with(per_token)
        .with(hidden);
    launch("combine_experts", [tokens as usize, (hidden as usize).div_ceil(256), 1], 256, 0, arguments);
    out
}

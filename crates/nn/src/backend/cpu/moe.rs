//! Mixture of experts: choice of experts, and the sum of their outputs.

use mlx::{Array, Dtype, OutputSpec, apply, apply_many};

use super::values::{dispatch, like, weight_values, widened, write_rounded};
pub(crate) use crate::moe::expert_products as expert_outputs;
use crate::{Router, Routing, moe::CombineWith};

#[track_caller]
pub(crate) fn top_k(scores: &Array, k: i32) -> Array {
    let (rows, columns) = (scores.dim(0), scores.dim(1) as usize);
    let output = OutputSpec { shape: vec![rows, k], dtype: Dtype::Uint32 };
    let [out] = apply("top_k", &[scores], [output], move |inputs, outputs| {
        dispatch!(inputs[0].dtype(), T => {
            kernels::top_k::<T>(inputs[0].values(), columns, k as usize, outputs[0].values())
        })
    });
    out
}

/// See [`Router::route`].
#[track_caller]
pub(crate) fn route(logits: &Array, router: &Router) -> Routing {
    let (rule, experts) = (router.rule, logits.dim(1) as usize);
    let prepare = |bias| router.prepared_bias.get_or_init(|| weight_values(bias).into()).clone();
    let bias = router.bias.as_ref().map(prepare);
    let shape = vec![logits.dim(0), rule.per_token as i32];
    let output = |dtype| OutputSpec { shape: shape.clone(), dtype };
    let specs = [output(Dtype::Uint32), output(Dtype::Float32)];
    let outs = apply_many("route", &[logits], &specs, &[], move |inputs, outputs| {
        let [chosen, weights] = outputs else { unreachable!("two outputs") };
        let logits = widened(&inputs[0]);
        kernels::route(&logits, experts, &rule, bias.as_deref(), chosen.values(), weights.values());
    });
    let [experts, weights] = outs.try_into().unwrap_or_else(|_| unreachable!("two outputs"));
    Routing { experts, weights }
}

/// The sum of experts' outputs `[tokens, n, hidden]`, and of what is added to it.
#[track_caller]
pub(crate) fn combine_experts(outputs: &Array, weights: &Array, with: CombineWith) -> Array {
    let (tokens, hidden) = (outputs.dim(0), outputs.dim(2));
    let added = [with.shared, with.gate, with.stream];
    let present = added.map(|array| array.is_some());
    let inputs: Vec<&Array> = [outputs, weights].into_iter().chain(added.into_iter().flatten()).collect();
    let output = like(with.stream.unwrap_or(outputs), &[tokens, hidden]);
    let [out] = apply("combine_experts", &inputs, [output], move |inputs, outs| {
        let values: Vec<_> = inputs.iter().map(widened).collect();
        let mut rest = values[2..].iter();
        let [shared, gate, stream] =
            present.map(|there| if there { rest.next().map(|v| &**v) } else { None });
        let with = kernels::CombineWith { shared, gate, stream };
        write_rounded(outs, |outs| {
            kernels::combine_experts(&values[0], &values[1], with, outs[0], hidden as usize);
        });
    });
    out
}

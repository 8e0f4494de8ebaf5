//! Gated feed-forward block as one operation.

use kernels::{Activation, Precision, with_scratch};
use mlx::{Array, apply, profile};

use super::{
    linear::{PreparedLinear, output_shape, products},
    norm::with_normed,
    residual::PreparedAdd,
    values::{dispatch, like, widened, write_rounded},
};
use crate::{Linear, RmsNorm, precision, residual::ResidualAdd};

#[track_caller]
pub(crate) fn gated(gate: &Array, up: &Array, activation: Activation) -> Array {
    assert_eq!(gate.shape(), up.shape(), "a gate for each value");
    let [out] = apply("gated", &[gate, up], [like(gate, gate.shape())], move |inputs, outputs| {
        dispatch!(inputs[0].dtype(), T => {
            kernels::gated::<T>(inputs[0].values(), inputs[1].values(), outputs[0].values(), activation)
        })
    });
    out
}

/// `down(activation(gate(norm(x))) * up(norm(x)))`, added to a residual stream if there is one.
#[track_caller]
pub(crate) fn feed_forward(
    x: &Array,
    norm: Option<&RmsNorm>,
    linears: [&Linear; 3],
    activation: Activation,
    add: Option<ResidualAdd>,
) -> Array {
    let [gate, up, down] = linears.map(Linear::prepared);
    assert!(up.inputs == gate.inputs, "gate and up share their input");
    assert!(gate.outputs == up.outputs && up.outputs == down.inputs, "gate, up and down fit each other");
    let (norm, sum) = (norm.map(RmsNorm::prepared), add.as_ref().map(PreparedAdd::new));
    let shape = output_shape(x, gate.inputs, down.outputs);
    let output = match &add {
        Some(add) => add.output(&shape),
        None => like(x, &shape),
    };
    let inputs: Vec<&Array> = [x].into_iter().chain(add.map(|add| add.stream)).collect();
    let precision = precision();
    let [out] = apply("feed_forward", &inputs, [output], move |inputs, outputs| {
        let x = widened(&inputs[0]);
        with_scratch(x.len() / gate.inputs * gate.outputs, |values| {
            with_normed(norm.as_deref(), &x, |x| {
                gated_product(x, [&*gate, &*up], activation, values, precision);
            });
            write_rounded(outputs, |outs| {
                products(values, [&*down], outs, precision);
                if let Some(sum) = &sum {
                    sum.add_to(&inputs[1], outs[0]);
                }
            });
        });
    });
    out
}

/// `activation(gate(x)) * up(x)`.
fn gated_product(
    x: &[f32],
    [gate, up]: [&PreparedLinear; 2],
    activation: Activation,
    out: &mut [f32],
    precision: Precision,
) {
    if [gate, up].iter().all(|layer| layer.bias.is_none() && !layer.unrounded) {
        let [a, b] = [gate, up].map(|layer| layer.weight.view());
        let run = || kernels::gated_linear(x, a, b, activation, out, gate.inputs, gate.outputs, precision);
        return profile::part("products", run);
    }
    let (mut gates, mut ups) = (vec![0.0; out.len()], vec![0.0; out.len()]);
    products(x, [gate, up], &mut [&mut gates, &mut ups], precision);
    kernels::gated(&gates, &ups, out, activation);
}

//! Pieces of a layer as one operation each: what lies between two mixings of tokens needs no more than three.

use std::sync::Arc;

use kernels::{Activation, with_scratch};

use super::{
    like,
    parts::{LinearParts, NormParts, gated_product, products, with_normed, write_wide},
    product_shape,
};
use crate::{
    Array, Dtype, Input, Linear, OutputSpec, RmsNorm, apply, fast::Onto, kernel::apply_many,
    precision::precision,
};

/// `linear(norm(x))` of each linear layer.
#[track_caller]
pub(crate) fn project(x: &Array, norm: Option<&RmsNorm>, linears: &[&Linear]) -> Vec<Array> {
    let norm = norm.map(RmsNorm::parts);
    let layers: Vec<Arc<LinearParts>> = linears.iter().map(|linear| linear.parts()).collect();
    let shape = |layer: &Arc<LinearParts>| product_shape(x, layer.inputs as i32, layer.outputs as i32);
    let outputs: Vec<_> = layers.iter().map(|layer| like(x, shape(layer))).collect();
    let precision = precision();
    apply_many("project", &[x], &outputs, &[], move |inputs, outputs| {
        let x = inputs[0].wide();
        with_normed(norm.as_deref(), &x, |x| {
            write_wide(outputs, |outs| products(x, layers.iter().map(|layer| &**layer), outs, precision));
        });
    })
}

/// Rows `indices` of a layer's weight, if its format is one of ours.
#[track_caller]
pub(crate) fn rows(linear: &Linear, indices: &Array, dtype: Dtype) -> Option<Array> {
    let layer = linear.parts();
    if !layer.has_rows() {
        return None;
    }
    let output = OutputSpec { shape: vec![indices.dim(0), layer.inputs as i32], dtype };
    let [out] = apply("rows", &[indices], [output], move |inputs, outputs| {
        super::dispatch!(outputs[0].dtype(), T => {
            layer.rows::<T>(inputs[0].values(), outputs[0].values())
        })
    });
    Some(out)
}

/// `stream + after(linear(x))`.
#[track_caller]
pub(crate) fn add_projected(onto: Onto, x: &Array, linear: &Linear) -> Array {
    let (layer, sum) = (linear.parts(), Sum::of(&onto));
    let output = sum_like(&onto, x, &layer, &layer);
    let precision = precision();
    let [out] = apply("add_projected", &[x, onto.stream], [output], move |inputs, outputs| {
        write_wide(outputs, |outs| {
            products(&inputs[0].wide(), [&*layer], outs, precision);
            sum.add(&inputs[1], outs[0]);
        });
    });
    out
}

/// `stream + after(linear(silu(gate) * norm(x)))`, the norm over each head of `x`.
#[track_caller]
pub(crate) fn add_gated_norm(onto: Onto, x: &Array, gate: &Array, norm: &RmsNorm, linear: &Linear) -> Array {
    let (layer, norm, sum) = (linear.parts(), norm.parts(), Sum::of(&onto));
    assert_eq!(gate.shape(), x.shape(), "a gate for each value");
    assert!(layer.inputs.is_multiple_of(norm.size()), "heads of {} in {}", norm.size(), layer.inputs);
    let output = sum_like(&onto, x, &layer, &layer);
    let precision = precision();
    let [out] = apply("add_gated_norm", &[x, onto.stream, gate], [output], move |inputs, outputs| {
        let x = inputs[0].wide();
        with_scratch(x.len(), |gated| {
            norm.apply_gated(&x, &inputs[2].wide(), gated);
            write_wide(outputs, |outs| {
                products(gated, [&*layer], outs, precision);
                sum.add(&inputs[1], outs[0]);
            });
        });
    });
    out
}

/// `down(activation(gate(norm(x))) * up(norm(x)))`, added onto a stream if there is one.
#[track_caller]
pub(crate) fn feed_forward(
    x: &Array,
    norm: Option<&RmsNorm>,
    linears: [&Linear; 3],
    activation: Activation,
    onto: Option<Onto>,
) -> Array {
    let [gate, up, down] = linears.map(Linear::parts);
    assert!(up.inputs == gate.inputs, "gate and up share their input");
    assert!(gate.outputs == up.outputs && up.outputs == down.inputs, "gate, up and down fit each other");
    let (norm, sum) = (norm.map(RmsNorm::parts), onto.as_ref().map(Sum::of));
    let output = match &onto {
        Some(onto) => sum_like(onto, x, &gate, &down),
        None => like(x, product_shape(x, gate.inputs as i32, down.outputs as i32)),
    };
    let inputs: Vec<&Array> = [x].into_iter().chain(onto.map(|onto| onto.stream)).collect();
    let precision = precision();
    let [out] = apply("feed_forward", &inputs, [output], move |inputs, outputs| {
        let x = inputs[0].wide();
        with_scratch(x.len() / gate.inputs * gate.outputs, |values| {
            with_normed(norm.as_deref(), &x, |x| {
                gated_product(x, [&*gate, &*up], activation, values, precision);
            });
            write_wide(outputs, |outs| {
                products(values, [&*down], outs, precision);
                if let Some(sum) = &sum {
                    sum.add(&inputs[1], outs[0]);
                }
            });
        });
    });
    out
}

/// What an output is added to, for a kernel.
struct Sum {
    after: Option<Arc<NormParts>>,
}

impl Sum {
    #[track_caller]
    fn of(onto: &Onto) -> Sum {
        Sum { after: onto.after.map(RmsNorm::parts) }
    }

    /// `out = stream + after(out)`.
    fn add(&self, stream: &Input, out: &mut [f32]) {
        if let Some(after) = &self.after {
            after.apply(out, after.size(), 0..after.size());
        }
        super::dispatch!(stream.dtype(), T => kernels::add::<T>(out, stream.values()));
    }
}

/// The output of `x` through layers of which these are the first and the last, added onto a stream.
#[track_caller]
fn sum_like(onto: &Onto, x: &Array, first: &LinearParts, last: &LinearParts) -> OutputSpec {
    let shape = product_shape(x, first.inputs as i32, last.outputs as i32);
    assert_eq!(onto.stream.shape(), shape, "the stream that {:?} is added onto", x.shape());
    like(onto.stream, shape)
}

//! Products that are added to the residual stream, as one operation each.

use std::sync::Arc;

use kernels::with_scratch;
use mlx::{Array, Input, OutputSpec, apply};

use super::{
    linear::{output_shape, products},
    norm::{PreparedNorm, rms_norm},
    values::{dispatch, like, widened, write_rounded},
};
use crate::{Linear, RmsNorm, precision, residual::ResidualAdd};

/// `stream + post_norm(out)`.
#[track_caller]
pub(crate) fn add(add: ResidualAdd, out: Array) -> Array {
    match add.post_norm {
        Some(norm) => add.stream + rms_norm(&out, norm),
        None => add.stream + out,
    }
}

/// `stream + post_norm(linear(x))`.
#[track_caller]
pub(crate) fn add_projected(add: ResidualAdd, x: &Array, linear: &Linear) -> Array {
    let (layer, sum) = (linear.prepared(), PreparedAdd::new(&add));
    let output = add.output(&output_shape(x, layer.inputs, layer.outputs));
    let precision = precision();
    let [out] = apply("add_projected", &[x, add.stream], [output], move |inputs, outputs| {
        write_rounded(outputs, |outs| {
            products(&widened(&inputs[0]), [&*layer], outs, precision);
            sum.add_to(&inputs[1], outs[0]);
        });
    });
    out
}

/// `stream + post_norm(linear(silu(gate) * norm(x)))`, the norm over each head of `x`.
#[track_caller]
pub(crate) fn add_gated_norm(
    add: ResidualAdd,
    x: &Array,
    gate: &Array,
    norm: &RmsNorm,
    linear: &Linear,
) -> Array {
    let (layer, norm, sum) = (linear.prepared(), norm.prepared(), PreparedAdd::new(&add));
    assert_eq!(gate.shape(), x.shape(), "a gate for each value");
    assert!(layer.inputs.is_multiple_of(norm.size()), "heads of {} in {}", norm.size(), layer.inputs);
    let output = add.output(&output_shape(x, layer.inputs, layer.outputs));
    let precision = precision();
    let [out] = apply("add_gated_norm", &[x, add.stream, gate], [output], move |inputs, outputs| {
        let x = widened(&inputs[0]);
        with_scratch(x.len(), |gated| {
            norm.apply_gated(&x, &widened(&inputs[2]), gated);
            write_rounded(outputs, |outs| {
                products(gated, [&*layer], outs, precision);
                sum.add_to(&inputs[1], outs[0]);
            });
        });
    });
    out
}

impl ResidualAdd<'_> {
    /// The output of an operation whose own output, of this shape, is added to the stream.
    #[track_caller]
    pub(super) fn output(&self, shape: &[i32]) -> OutputSpec {
        assert_eq!(self.stream.shape(), shape, "residual stream and block output");
        like(self.stream, shape)
    }
}

/// A [`ResidualAdd`] as kernels take it; the stream is an input.
pub(super) struct PreparedAdd {
    post_norm: Option<Arc<PreparedNorm>>,
}

impl PreparedAdd {
    #[track_caller]
    pub(super) fn new(add: &ResidualAdd) -> PreparedAdd {
        PreparedAdd { post_norm: add.post_norm.map(RmsNorm::prepared) }
    }

    /// `out = stream + post_norm(out)`.
    pub(super) fn add_to(&self, stream: &Input, out: &mut [f32]) {
        if let Some(norm) = &self.post_norm {
            norm.apply(out, norm.size(), 0..norm.size());
        }
        dispatch!(stream.dtype(), T => kernels::add::<T>(out, stream.values()));
    }
}

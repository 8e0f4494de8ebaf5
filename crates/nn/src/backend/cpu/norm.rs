//! RMS norm.

use std::ops::Range;

use kernels::with_scratch;
use mlx::{Array, apply};

use super::values::{dispatch, like, weight_values};
use crate::RmsNorm;

#[track_caller]
pub(crate) fn rms_norm(x: &Array, norm: &RmsNorm) -> Array {
    let (weight, eps) = (&norm.weight, norm.eps);
    assert_eq!(weight.shape(), &x.shape()[x.ndim() - 1..], "norm weight for {:?}", x.shape());
    let [out] = apply("rms_norm", &[x, weight], [like(x, x.shape())], move |inputs, outputs| {
        dispatch!(inputs[0].dtype(), X => dispatch!(inputs[1].dtype(), W => {
            kernels::rms_norm::<X, W>(inputs[0].values(), inputs[1].values(), outputs[0].values(), eps)
        }))
    });
    out
}

/// An [`RmsNorm`] as kernels take it.
pub(crate) struct PreparedNorm {
    weight: Vec<f32>,
    eps: f32,
}

impl PreparedNorm {
    #[track_caller]
    pub(crate) fn new(norm: &RmsNorm) -> PreparedNorm {
        PreparedNorm { weight: weight_values(&norm.weight), eps: norm.eps }
    }

    /// Norm in place of each run of [`size`](PreparedNorm::size) values in some columns of rows of
    /// `width`.
    pub(crate) fn apply(&self, x: &mut [f32], width: usize, columns: Range<usize>) {
        kernels::rms_norm_columns(x, width, columns, &self.weight, self.eps);
    }

    /// `norm(x) * silu(gate)`.
    pub(crate) fn apply_gated(&self, x: &[f32], gate: &[f32], out: &mut [f32]) {
        kernels::gated_rms_norm(x, gate, &self.weight, out, self.eps);
    }

    pub(crate) fn size(&self) -> usize {
        self.weight.len()
    }
}

/// Calls `f` with `norm(x)`, or with `x` if there is no norm.
pub(super) fn with_normed<R>(norm: Option<&PreparedNorm>, x: &[f32], f: impl FnOnce(&[f32]) -> R) -> R {
    let Some(norm) = norm else { return f(x) };
    with_scratch(x.len(), |normed| {
        kernels::rms_norm(x, &norm.weight, normed, norm.eps);
        f(normed)
    })
}

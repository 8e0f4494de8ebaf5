//! Products that are added to the residual stream.

use mlx::Array;

use super::{
    linear::linear,
    mlp::gated,
    norm::{normed, rms_norm},
};
use crate::{Activation, Linear, RmsNorm, residual::ResidualAdd};

#[track_caller]
pub(crate) fn add_projected(residual: ResidualAdd, x: &Array, layer: &Linear) -> Array {
    add(residual, linear(x, layer))
}

#[track_caller]
pub(crate) fn add_gated_norm(
    residual: ResidualAdd,
    x: &Array,
    gate: &Array,
    norm: &RmsNorm,
    layer: &Linear,
) -> Array {
    let per_head = x.reshape(&[x.dim(0), -1, norm.weight.dim(0)]);
    let normed = rms_norm(&per_head, norm).reshape(x.shape());
    add(residual, linear(&gated(gate, &normed, Activation::Silu), layer))
}

#[track_caller]
pub(crate) fn add(residual: ResidualAdd, out: Array) -> Array {
    residual.stream + normed(&out, residual.post_norm)
}

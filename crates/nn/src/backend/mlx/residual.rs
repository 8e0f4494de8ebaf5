//! Products that are added to the residual stream.

use mlx::Array;

use super::{
    linear::linear,
    metal::{self, ProductInput},
    mlp::gated,
    norm::{normed, rms_norm},
};
use crate::{Activation, Linear, RmsNorm, residual::ResidualAdd};

#[track_caller]
pub(crate) fn add_projected(residual: ResidualAdd, x: &Array, layer: &Linear) -> Array {
    add(residual, linear(&ProductInput::new(x.clone()), layer))
}

#[track_caller]
pub(crate) fn add_gated_norm(
    residual: ResidualAdd,
    x: &Array,
    gate: &Array,
    norm: &RmsNorm,
    layer: &Linear,
) -> Array {
    let normed = metal::gated_norm(x, gate, norm).unwrap_or_else(|| {
        let per_head = x.reshape(&[x.dim(0), -1, norm.weight.dim(0)]);
        let normed = rms_norm(&per_head, norm).reshape(x.shape());
        gated(gate, &normed, Activation::Silu)
    });
    add(residual, linear(&ProductInput::new(normed), layer))
}

#[track_caller]
pub(crate) fn add(residual: ResidualAdd, out: Array) -> Array {
    residual.stream + normed(&out, residual.post_norm)
}

//! Products that are added to the residual stream.

use mlx::Array;

use super::{
    super::cpu,
    launch::{empty, is_f32, resident},
    linear::output_shape,
    products::{Product, Source, multiply},
};
use crate::{Activation, Linear, RmsNorm, residual::ResidualAdd, storage::WeightStorage};

/// `stream + post_norm(linear(x))`.
#[track_caller]
pub(crate) fn add_projected(residual: ResidualAdd, x: &Array, linear: &Linear) -> Array {
    if !matches!(linear.weight, WeightStorage::Device(_)) {
        return cpu::add_projected(residual, x, linear);
    }
    add_product(residual, Source::Plain { x }, x, linear)
}

/// `stream + post_norm(linear(silu(gate) * norm(x)))`, the norm over each head of `x`.
#[track_caller]
pub(crate) fn add_gated_norm(
    residual: ResidualAdd,
    x: &Array,
    gate: &Array,
    norm: &RmsNorm,
    linear: &Linear,
) -> Array {
    if !matches!(linear.weight, WeightStorage::Device(_)) {
        return cpu::add_gated_norm(residual, x, gate, norm, linear);
    }
    let dim = norm.weight.dim(0);
    if dim % 64 != 0 {
        let heads = [x.shape(), &[dim]].concat();
        let heads = x.reshape(&[&heads[..x.ndim() - 1], &[-1, dim]].concat());
        let normed = cpu::rms_norm(&heads, &norm.weight, norm.eps).reshape(x.shape());
        return add_projected(residual, &cpu::gated(gate, &normed, Activation::Silu), linear);
    }
    add_product(residual, Source::GatedNorm { x, gate, norm }, x, linear)
}

/// The stream with the product of `source`, which has the shape of `x`, added.
#[track_caller]
pub(super) fn add_product(residual: ResidualAdd, source: Source, x: &Array, linear: &Linear) -> Array {
    let out = empty(&output_shape(x, linear));
    assert_eq!(residual.stream.shape(), out.shape(), "residual stream and block output");
    let size = [x.size() as i32 / x.dim(-1), x.dim(-1)];
    if residual.post_norm.is_some() || !is_f32(residual.stream) {
        multiply(source, size, &[Product { linear, out: &out, stream: None }]);
        return add(residual, out.astype(residual.stream.dtype()));
    }
    let stream = resident(residual.stream);
    multiply(source, size, &[Product { linear, out: &out, stream: Some(&stream) }]);
    out
}

#[track_caller]
pub(super) fn add(residual: ResidualAdd, out: Array) -> Array {
    let out = residual.post_norm.map_or(out.clone(), |norm| norm.forward(&out));
    residual.stream + out
}

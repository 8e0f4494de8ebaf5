//! Products that are added to the residual stream.

use mlx::Array;

use super::{
    super::cpu,
    floats::{float_product, output_shape},
    launch::{empty, is_f32, resident},
    multiply::multiply,
    norm::{add_normed, gated_norm},
    products::{Product, Source},
};
use crate::{Linear, RmsNorm, residual::ResidualAdd, storage::WeightStorage};

/// `stream + post_norm(linear(x))`.
#[track_caller]
pub(crate) fn add_projected(residual: ResidualAdd, x: &Array, linear: &Linear) -> Array {
    match &linear.weight {
        WeightStorage::Device(_) => add_product(residual, Source::Plain { x }, x, linear),
        WeightStorage::DeviceFloats(weights) if x.size() > 0 => {
            let stream = (residual.post_norm.is_none() && is_f32(residual.stream)).then_some(residual.stream);
            let out = float_product(x, linear, weights, stream);
            if stream.is_some() { out } else { add(residual, out.astype(residual.stream.dtype())) }
        }
        _ => cpu::add_projected(residual, x, linear),
    }
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
    if !linear.weight.is_on_device() {
        return cpu::add_gated_norm(residual, x, gate, norm, linear);
    }
    if norm.weight.dim(0) % 64 != 0 || linear.on_device().is_none() {
        return add_projected(residual, &gated_norm(x, gate, norm), linear);
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
        multiply(source, size, &[Product::new(linear, &out, None)]);
        return add(residual, out.astype(residual.stream.dtype()));
    }
    let stream = resident(residual.stream);
    multiply(source, size, &[Product::new(linear, &out, Some(&stream))]);
    out
}

#[track_caller]
pub(crate) fn add(residual: ResidualAdd, out: Array) -> Array {
    match residual.post_norm {
        Some(norm) => add_normed(residual.stream, &out, norm),
        None => residual.stream + out,
    }
}

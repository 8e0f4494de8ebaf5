//! MLX's affine quantised format: value = code * scale + bias per group of inputs.

use crate::{Array, array::built, bridge, eval::unlist, fused};

/// How one matrix is quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantization {
    /// Inputs that share a scale and a bias: 32, 64 or 128.
    pub group_size: i32,
    /// Bits per code: 2, 3, 4, 5, 6 or 8.
    pub bits: i32,
}

/// `x · Wᵀ` for a quantised `[out, in]` matrix: `w` uint32 `[out, in * bits / 32]`, `scales` and `biases`
/// `[out, in / group_size]` of `x`'s type. Row-invariant on the CPU, as [`fast::linear`](crate::fast::linear).
#[track_caller]
pub fn matmul(x: &Array, w: &Array, scales: &Array, biases: &Array, q: Quantization) -> Array {
    if fused::runs(x, scales.dtype()) {
        return fused::quantized_matmul(x, w, scales, biases, q);
    }
    built(bridge::quantized_matmul(&x.0, &w.0, &scales.0, &biases.0, q.group_size, q.bits))
}

#[track_caller]
pub fn dequantize(w: &Array, scales: &Array, biases: &Array, q: Quantization) -> Array {
    built(bridge::dequantize(&w.0, &scales.0, &biases.0, q.group_size, q.bits))
}

/// Codes, scales and biases of a matrix `[out, in]`, as `mx.quantize` packs them.
#[track_caller]
pub fn quantize(w: &Array, q: Quantization) -> [Array; 3] {
    let parts = unlist(bridge::quantize(&w.0, q.group_size, q.bits));
    parts.try_into().unwrap_or_else(|_| panic!("affine quantisation has three parts"))
}

//! Short causal convolution.

use mlx::{Array, Dtype};

#[track_caller]
pub(crate) fn causal_conv(x: &Array, weight: &Array, state: &Array, silu: bool) -> (Array, Array) {
    let inputs = Array::concatenate([state, x], 0);
    let (tokens, width) = (x.dim(0), weight.dim(1));
    let tap = |j: i32| {
        let weight = weight.slice(1, j, j + 1).reshape(&[1, -1]).astype(Dtype::Float32);
        inputs.slice(0, j, j + tokens).astype(Dtype::Float32) * weight
    };
    let sum = (1..width).fold(tap(0), |sum, j| sum + tap(j));
    let out = if silu { &sum * sum.sigmoid() } else { sum };
    (out.astype(x.dtype()), inputs.slice(0, tokens, tokens + width - 1).contiguous())
}

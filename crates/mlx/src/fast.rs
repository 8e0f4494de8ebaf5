//! Fused operations of neural networks. On the CPU they are our kernels; elsewhere they are made of MLX's own.

pub use kernels::{Activation, RopePairs};

use crate::{Array, Dtype, Linear, RmsNorm, fused, portable};

/// Root-mean-square norm over the last axis, times `weight`, in `x`'s type.
#[track_caller]
pub fn rms_norm(x: &Array, weight: &Array, eps: f32) -> Array {
    if fused::runs(x, weight.dtype()) {
        return fused::rms_norm(x, weight, eps);
    }
    portable::rms_norm(x, weight, eps)
}

/// A rotary position embedding of one kind of layer (Su et al., "RoFormer", 2021).
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Radians per position of each pair.
    pub frequencies: Vec<f32>,
    pub pairs: RopePairs,
    /// Multiplies sine and cosine (YaRN's attention factor); 1 otherwise.
    pub scale: f32,
}

/// Rotates the first `2 * frequencies.len()` values of each head of `x` `[tokens, heads, head_dim]`, token `t` at
/// `positions[t]` (int32).
#[track_caller]
pub fn rope(x: &Array, positions: &Array, rope: &Rope) -> Array {
    if !crate::on_gpu() {
        return fused::rope(x, positions, rope);
    }
    portable::rope(x, positions, rope)
}

/// `x · weightᵀ` for a weight `[out, in]` as checkpoints store it. Each output row depends on its input row
/// alone, bit for bit, on the CPU.
#[track_caller]
pub fn linear(x: &Array, weight: &Array) -> Array {
    if fused::runs(x, weight.dtype()) {
        return fused::linear(x, weight);
    }
    portable::linear(x, weight)
}

/// One product per token and chosen matrix of a stack: `x` `[tokens, 1 or n, in]`, `weight` `[experts, out, in]`,
/// `experts` uint32 `[tokens, n]`; returns `[tokens, n, out]`. Rows that share a matrix are computed together, with the
/// bits of [`linear`].
#[track_caller]
pub fn grouped_linear(x: &Array, weight: &Array, experts: &Array) -> Array {
    if fused::runs(x, weight.dtype()) {
        return fused::grouped_linear(x, weight, experts);
    }
    portable::grouped_linear(x, weight, experts)
}

/// Indices (uint32 `[rows, k]`) of the `k` largest scores of each row of `[rows, n]`, largest first.
#[track_caller]
pub fn top_k(scores: &Array, k: i32) -> Array {
    if fused::runs(scores, scores.dtype()) {
        return fused::top_k(scores, k);
    }
    portable::top_k(scores, k)
}

/// Gated delta rule (Yang et al., "Gated Delta Networks", 2024), token by token.
///
/// `q`, `k` `[1, tokens, key_heads, key_dim]`; `v` `[1, tokens, value_heads, value_dim]`; `beta`
/// `[1, tokens, value_heads]`; the decay `g` likewise, or per channel `[1, tokens, value_heads, key_dim]`; `state`
/// `[1, value_heads, value_dim, key_dim]` in float32. Returns the outputs, shaped and typed like `v`, and the state
/// after the last token.
#[track_caller]
pub fn gated_delta(qkv: [&Array; 3], g: &Array, beta: &Array, state: &Array) -> (Array, Array) {
    if !crate::on_gpu() {
        return fused::gated_delta(qkv, g, beta, state);
    }
    portable::gated_delta(qkv, g, beta, state)
}

/// The causal depthwise convolution of recurrent layers, followed by SiLU if asked for.
///
/// `x` `[tokens, channels]`, `weight` `[channels, width]`, `state` `[width - 1, channels]`: the inputs before the first
/// token. Returns the output and the state after the last token.
#[track_caller]
pub fn causal_conv(x: &Array, weight: &Array, state: &Array, silu: bool) -> (Array, Array) {
    if !crate::on_gpu() {
        return fused::causal_conv(x, &weight.astype(x.dtype()), state, silu);
    }
    portable::causal_conv(x, weight, state, silu)
}

/// `activation(gate) * up`.
#[track_caller]
pub fn gated(gate: &Array, up: &Array, activation: Activation) -> Array {
    if fused::runs(gate, up.dtype()) {
        return fused::gated(gate, up, activation);
    }
    portable::gated(gate, up, activation)
}

/// The residual stream `[tokens, hidden]` that a block's output is added to, through a norm if there is one.
#[derive(Clone, Copy)]
pub struct Onto<'a> {
    pub stream: &'a Array,
    pub after: Option<&'a RmsNorm>,
}

/// `linear(norm(x))` of linear layers that share their input `x` `[.., inputs]`.
#[track_caller]
pub fn project<const N: usize>(x: &Array, norm: Option<&RmsNorm>, linears: [&Linear; N]) -> [Array; N] {
    let outs = match fused::runs(x, Dtype::Float32) {
        true => fused::project(x, norm, &linears),
        false => portable::project(x, norm, &linears),
    };
    outs.try_into().unwrap_or_else(|_| unreachable!("an output of each of {N} layers"))
}

/// `stream + after(linear(x))`.
#[track_caller]
pub fn add_projected(onto: Onto, x: &Array, linear: &Linear) -> Array {
    if fused::runs(x, Dtype::Float32) {
        return fused::add_projected(onto, x, linear);
    }
    portable::add_projected(onto, x, linear)
}

/// `stream + after(linear(silu(gate) * norm(x)))`; `x` and `gate` `[tokens, heads * dim]`, the norm over each head.
#[track_caller]
pub fn add_gated_norm(onto: Onto, x: &Array, gate: &Array, norm: &RmsNorm, linear: &Linear) -> Array {
    if fused::runs(x, gate.dtype()) {
        return fused::add_gated_norm(onto, x, gate, norm, linear);
    }
    portable::add_gated_norm(onto, x, gate, norm, linear)
}

/// `down(activation(gate(norm(x))) * up(norm(x)))` for the layers gate, up and down; added onto a stream if one is
/// given.
#[track_caller]
pub fn feed_forward(
    x: &Array,
    norm: Option<&RmsNorm>,
    linears: [&Linear; 3],
    activation: Activation,
    onto: Option<Onto>,
) -> Array {
    if fused::runs(x, Dtype::Float32) {
        return fused::feed_forward(x, norm, linears, activation, onto);
    }
    portable::feed_forward(x, norm, linears, activation, onto)
}

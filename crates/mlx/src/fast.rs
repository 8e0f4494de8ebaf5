//! Fused operations of neural networks. On the CPU several are our kernels; elsewhere MLX's own.

pub use kernels::{Activation, RopePairs};

use crate::{
    Array, Dtype,
    array::built,
    bridge,
    eval::{list, unlist},
    fused,
    kv::Softmax,
};

/// Root-mean-square norm over the last axis, times `weight`.
#[track_caller]
pub fn rms_norm(x: &Array, weight: &Array, eps: f32) -> Array {
    if fused::runs(x, weight.dtype()) {
        return fused::rms_norm(x, weight, eps);
    }
    // MLX would widen the result to a wider weight's type.
    built(bridge::rms_norm(&x.0, &weight.0, eps)).astype(x.dtype())
}

/// [`rms_norm`] without a weight.
#[track_caller]
pub fn rms_norm_plain(x: &Array, eps: f32) -> Array {
    built(bridge::rms_norm_plain(&x.0, eps))
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
    let half = rope.frequencies.len() as i32;
    let frequencies = Array::from_slice(&rope.frequencies, &[1, 1, half]);
    let angles = positions.astype(Dtype::Float32).reshape(&[-1, 1, 1]) * frequencies;
    let (sin, cos) = (angles.sin() * rope.scale, angles.cos() * rope.scale);
    let (tokens, heads) = (x.dim(0), x.dim(1));
    let turned = x.slice(-1, 0, 2 * half).astype(Dtype::Float32);
    // The axis along which a pair's two values lie.
    let (shape, axis) = match rope.pairs {
        RopePairs::Halves => ([tokens, heads, 2, half], 2),
        RopePairs::Adjacent => ([tokens, heads, half, 2], 3),
    };
    let pairs = turned.reshape(&shape);
    let part = |i| pairs.slice(axis, i, i + 1).reshape(&[tokens, heads, half]);
    let (a, b) = (part(0), part(1));
    let column = if axis == 2 { [tokens, heads, 1, half] } else { [tokens, heads, half, 1] };
    let turned = [&a * &cos - &b * &sin, &b * &cos + &a * &sin].map(|part| part.reshape(&column));
    let turned = Array::concatenate(&turned, axis).reshape(&[tokens, heads, 2 * half]).astype(x.dtype());
    Array::concatenate([&turned, &x.slice(-1, 2 * half, x.dim(-1))], -1)
}

/// Softmax attention, MLX's own; `q` `[batch, heads, tokens, dim]`, `k` and `v` `[batch, kv_heads, kv_tokens, dim]`.
/// Without a `mask` (bool `[tokens, kv_tokens]`) it is causal: the last query sees every key, the one before it one
/// less.
#[track_caller]
pub fn attention(q: &Array, k: &Array, v: &Array, softmax: &Softmax, mask: Option<Array>) -> Array {
    let causal = mask.is_none() && q.dim(2) > 1;
    let sinks = softmax.sinks.as_ref().map(|sinks| sinks.astype(q.dtype()));
    built(bridge::attention(&q.0, &k.0, &v.0, softmax.scale, causal, &list(&mask), &list(&sinks)))
}

/// `x · weightᵀ` for a weight `[out, in]` as checkpoints store it. Each output row depends on its input row
/// alone, bit for bit, on the CPU.
#[track_caller]
pub fn linear(x: &Array, weight: &Array) -> Array {
    if fused::runs(x, weight.dtype()) {
        fused::linear(x, weight)
    } else {
        x.matmul(&weight.transpose(&[1, 0]))
    }
}

/// One product per token and chosen matrix of a stack: `x` `[tokens, 1 or n, in]`, `weight` `[experts, out, in]`,
/// `experts` uint32 `[tokens, n]`; returns `[tokens, n, out]`. Rows that share a matrix are computed together, with the
/// bits of [`linear`].
#[track_caller]
pub fn grouped_linear(x: &Array, weight: &Array, experts: &Array) -> Array {
    if fused::runs(x, weight.dtype()) {
        return fused::grouped_linear(x, weight, experts);
    }
    let rows = x.reshape(&[x.dim(0), x.dim(1), 1, x.dim(2)]);
    let out = built(bridge::gather_mm(&rows.0, &weight.0, &experts.0));
    out.reshape(&[experts.dim(0), experts.dim(1), -1])
}

/// Indices (uint32 `[rows, k]`) of the `k` largest scores of each row of `[rows, n]`, largest first.
#[track_caller]
pub fn top_k(scores: &Array, k: i32) -> Array {
    if fused::runs(scores, scores.dtype()) {
        return fused::top_k(scores, k);
    }
    (-scores).argsort(-1).slice(-1, 0, k)
}

/// Gated delta rule (Yang et al., "Gated Delta Networks", 2024), token by token.
///
/// `q`, `k` `[1, tokens, key_heads, key_dim]`; `v` `[1, tokens, value_heads, value_dim]`; `beta`
/// `[1, tokens, value_heads]`; the decay `g` likewise, or per channel `[1, tokens, value_heads, key_dim]`; `state` `[1, value_heads, value_dim, key_dim]` in float32. Returns the outputs,
/// shaped and typed like `v`, and the state after the last token.
#[track_caller]
pub fn gated_delta(
    q: &Array,
    k: &Array,
    v: &Array,
    g: &Array,
    beta: &Array,
    state: &Array,
) -> (Array, Array) {
    if !crate::on_gpu() {
        return fused::gated_delta(q, k, v, g, beta, state);
    }
    gated_delta_mlx(q, k, v, g, beta, state)
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

/// `activation(gate) * up`.
#[track_caller]
pub fn gated(gate: &Array, up: &Array, activation: Activation) -> Array {
    if fused::runs(gate, up.dtype()) {
        return fused::gated(gate, up, activation);
    }
    match activation {
        Activation::Silu => gate * gate.sigmoid() * up,
        Activation::GeluTanh => {
            let cubed = gate * gate.square() * 0.044715 + gate;
            (gate * 0.5) * ((cubed * (2.0 / std::f32::consts::PI).sqrt()).tanh() + 1.0) * up
        }
    }
}

/// MLX's own [`gated_delta`], on any device: what ours is checked against.
#[track_caller]
pub fn gated_delta_mlx(
    q: &Array,
    k: &Array,
    v: &Array,
    g: &Array,
    beta: &Array,
    state: &Array,
) -> (Array, Array) {
    let out = unlist(bridge::gated_delta(&q.0, &k.0, &v.0, &g.0, &beta.0, &state.0));
    (out[0].astype(v.dtype()), out[1].clone())
}

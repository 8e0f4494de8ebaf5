//! Fused operations of neural networks. On the CPU several are our kernels; elsewhere MLX's own.

use crate::{Array, Dtype, array::built, bridge, eval::unlist, fused};

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

/// Rotary position embedding on the first `2 * frequencies.len()` values of each head of `x`
/// `[tokens, heads, head_dim]`, token `t` at `positions[t]` (int32). Pairs are the two halves; angles are
/// `position * frequency` radians.
#[track_caller]
pub fn rope(x: &Array, positions: &Array, frequencies: &[f32]) -> Array {
    if !crate::on_gpu() {
        return fused::rope(x, positions, frequencies);
    }
    let half = frequencies.len() as i32;
    let frequencies = Array::from_slice(frequencies, &[1, 1, half]);
    let angles = positions.astype(Dtype::Float32).reshape(&[-1, 1, 1]) * frequencies;
    let (sin, cos) = (angles.sin(), angles.cos());
    let parts = x.split(-1, &[half, half, x.dim(-1) - 2 * half]);
    let (a, b) = (parts[0].astype(Dtype::Float32), parts[1].astype(Dtype::Float32));
    let turned = [&a * &cos - &b * &sin, &b * &cos + &a * &sin].map(|part| part.astype(x.dtype()));
    Array::concatenate([&turned[0], &turned[1], &parts[2]], -1)
}

/// Softmax attention, MLX's own; `q` `[batch, heads, tokens, dim]`, `k` and `v` `[batch, kv_heads, kv_tokens, dim]`.
/// With `causal` the last query sees every key, the one before it one less.
#[track_caller]
pub fn attention(q: &Array, k: &Array, v: &Array, scale: f32, causal: bool) -> Array {
    built(bridge::attention(&q.0, &k.0, &v.0, scale, causal))
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

/// Gated delta rule (Yang et al., "Gated Delta Networks", 2024), token by token.
///
/// `q`, `k` `[1, tokens, key_heads, key_dim]`; `v` `[1, tokens, value_heads, value_dim]`; `g` (decay) and `beta`
/// `[1, tokens, value_heads]`; `state` `[1, value_heads, value_dim, key_dim]` in float32. Returns the outputs,
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

/// The causal depthwise convolution of recurrent layers followed by SiLU.
///
/// `x` `[tokens, channels]`, `weight` `[channels, width]`, `state` `[width - 1, channels]`: the inputs before the first
/// token. Returns the output and the state after the last token.
#[track_caller]
pub fn causal_conv_silu(x: &Array, weight: &Array, state: &Array) -> (Array, Array) {
    if !crate::on_gpu() {
        return fused::causal_conv_silu(x, &weight.astype(x.dtype()), state);
    }
    let inputs = Array::concatenate([state, x], 0);
    let (tokens, width) = (x.dim(0), weight.dim(1));
    let tap = |j: i32| {
        let weight = weight.slice(1, j, j + 1).reshape(&[1, -1]).astype(Dtype::Float32);
        inputs.slice(0, j, j + tokens).astype(Dtype::Float32) * weight
    };
    let sum = (1..width).fold(tap(0), |sum, j| sum + tap(j));
    let out = (&sum * sum.sigmoid()).astype(x.dtype());
    (out, inputs.slice(0, tokens, tokens + width - 1).contiguous())
}

/// `silu(gate) * up`.
#[track_caller]
pub fn swiglu(gate: &Array, up: &Array) -> Array {
    gate * gate.sigmoid() * up
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

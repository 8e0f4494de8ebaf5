//! The fused operations made of MLX's own: what runs on a GPU, and what our kernels are checked against on the CPU.

mod layer;

use kernels::{Activation, RopePairs};

use crate::{
    Array, Dtype,
    array::built,
    bridge,
    eval::{list, unlist},
    fast::Rope,
    kv::Softmax,
};

pub use layer::{add_gated_norm, add_projected, attend_heads, delta_net, feed_forward, project};

#[track_caller]
pub fn rms_norm(x: &Array, weight: &Array, eps: f32) -> Array {
    // MLX would widen the result to a wider weight's type.
    built(bridge::rms_norm(&x.0, &weight.0, eps)).astype(x.dtype())
}

#[track_caller]
pub fn rope(x: &Array, positions: &Array, rope: &Rope) -> Array {
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

/// Attention of `q` `[tokens, heads, dim]` over `k`, `v` `[1, kv_heads, length, dim]`; the queries are the last tokens.
#[track_caller]
pub fn attend(q: &Array, k: &Array, v: &Array, window: Option<i32>, softmax: &Softmax) -> Array {
    let (tokens, length) = (q.dim(0), k.dim(2));
    let mask = window.filter(|&window| window < length).map(|window| window_mask(tokens, length, window));
    let q = q.transpose(&[1, 0, 2]);
    let q = q.reshape(&[&[1], q.shape()].concat());
    let out = match softmax.softcap {
        Some(cap) => capped_attention(&q, k, v, softmax, cap, mask),
        None => attention(&q, k, v, softmax, mask),
    };
    let out = out.transpose(&[0, 2, 1, 3]);
    out.reshape(&out.shape()[1..])
}

/// MLX's fused attention: `q` `[1, heads, tokens, dim]`; causal without a mask (bool `[tokens, length]`).
fn attention(q: &Array, k: &Array, v: &Array, softmax: &Softmax, mask: Option<Array>) -> Array {
    let causal = mask.is_none() && q.dim(2) > 1;
    let sinks = softmax.sinks.as_ref().map(|sinks| sinks.astype(q.dtype()));
    built(bridge::attention(&q.0, &k.0, &v.0, softmax.scale, causal, &list(&mask), &list(&sinks)))
}

/// Bool `[tokens, length]`: which of `length` keys each of the last `tokens` queries sees.
fn window_mask(tokens: i32, length: i32, window: i32) -> Array {
    let queries = Array::arange(length - tokens, length, Dtype::Int32).reshape(&[tokens, 1]);
    let keys = Array::arange(0, length, Dtype::Int32).reshape(&[1, length]);
    let first = &queries - Array::from_slice(&[window - 1], &[1]);
    // Both hold: neither in the future nor out of the window.
    let inside =
        keys.greater_equal(&first).astype(Dtype::Int32) * keys.less_equal(&queries).astype(Dtype::Int32);
    inside.astype(Dtype::Bool)
}

/// Attention with capped scores, which MLX has no fused operation for.
fn capped_attention(
    q: &Array,
    k: &Array,
    v: &Array,
    softmax: &Softmax,
    cap: f32,
    mask: Option<Array>,
) -> Array {
    assert!(softmax.sinks.is_none(), "capped attention with sinks");
    let (heads, kv_heads, tokens, length) = (q.dim(1), k.dim(1), q.dim(2), k.dim(2));
    let grouped = q.reshape(&[1, kv_heads, heads / kv_heads * tokens, q.dim(3)]);
    let scores = grouped.matmul(&k.transpose(&[0, 1, 3, 2])) * softmax.scale;
    let scores = ((scores / cap).tanh() * cap).reshape(&[1, heads, tokens, length]);
    let mask = mask.unwrap_or_else(|| window_mask(tokens, length, length));
    let hidden = Array::scalar(f32::NEG_INFINITY, scores.dtype());
    let weights = mask.select(&scores, &hidden).softmax(-1);
    let out = weights.reshape(&[1, kv_heads, heads / kv_heads * tokens, length]).matmul(v);
    out.reshape(&[1, heads, tokens, v.dim(3)])
}

#[track_caller]
pub fn linear(x: &Array, weight: &Array) -> Array {
    x.matmul(&weight.transpose(&[1, 0]))
}

#[track_caller]
pub fn grouped_linear(x: &Array, weight: &Array, experts: &Array) -> Array {
    let rows = x.reshape(&[x.dim(0), x.dim(1), 1, x.dim(2)]);
    let out = built(bridge::gather_mm(&rows.0, &weight.0, &experts.0));
    out.reshape(&[experts.dim(0), experts.dim(1), -1])
}

#[track_caller]
pub fn top_k(scores: &Array, k: i32) -> Array {
    (-scores).argsort(-1).slice(-1, 0, k)
}

#[track_caller]
pub fn causal_conv(x: &Array, weight: &Array, state: &Array, silu: bool) -> (Array, Array) {
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

#[track_caller]
pub fn gated(gate: &Array, up: &Array, activation: Activation) -> Array {
    match activation {
        Activation::Silu => gate * gate.sigmoid() * up,
        Activation::GeluTanh => {
            let cubed = gate * gate.square() * 0.044715 + gate;
            (gate * 0.5) * ((cubed * (2.0 / std::f32::consts::PI).sqrt()).tanh() + 1.0) * up
        }
    }
}

#[track_caller]
pub fn gated_delta([q, k, v]: [&Array; 3], g: &Array, beta: &Array, state: &Array) -> (Array, Array) {
    let out = unlist(bridge::gated_delta(&q.0, &k.0, &v.0, &g.0, &beta.0, &state.0));
    (out[0].astype(v.dtype()), out[1].clone())
}

//! Fused operations of neural networks. On the CPU several are our kernels; elsewhere MLX's own.

use crate::{Array, Dtype, array::built, bridge, eval::unlist, fused};

/// Root-mean-square norm over the last axis, times `weight`.
#[track_caller]
pub fn rms_norm(x: &Array, weight: &Array, eps: f32) -> Array {
    if fused::runs(x, weight.dtype()) {
        return fused::rms_norm(x, weight, eps);
    }
    built(bridge::rms_norm(&x.0, &weight.0, eps))
}

/// [`rms_norm`] without a weight.
#[track_caller]
pub fn rms_norm_plain(x: &Array, eps: f32) -> Array {
    built(bridge::rms_norm_plain(&x.0, eps))
}

/// Rotary position embedding on the first `dims` of the last axis of `x` `[.., heads, tokens, head_dim]`, for
/// positions `offset..`. Pairs are the two halves of `dims`, or neighbours if `traditional`.
#[track_caller]
pub fn rope(x: &Array, dims: i32, traditional: bool, base: f32, scale: f32, offset: i32) -> Array {
    built(bridge::rope(&x.0, dims, traditional, base, scale, offset))
}

/// A growing buffer of keys or values, `[kv_heads, capacity, head_dim]`, written in place; hence no `Clone`.
pub struct KvBuffer(Array);

/// Capacity grows in steps of this many tokens.
const KV_STEP: i32 = 256;

impl KvBuffer {
    pub fn new(kv_heads: i32, head_dim: i32, dtype: Dtype) -> KvBuffer {
        KvBuffer(Array::zeros(&[kv_heads, 0, head_dim], dtype))
    }

    /// The array behind the buffer, to be evaluated with a step.
    pub fn array(&self) -> &Array {
        &self.0
    }

    /// Makes room for `length` tokens, by a quarter more than asked so that copies stay rare.
    #[track_caller]
    pub fn reserve(&mut self, length: i32) {
        let capacity = self.0.dim(1);
        if length <= capacity {
            return;
        }
        let target = length.max(capacity + capacity / 4);
        let target = (target + KV_STEP - 1) / KV_STEP * KV_STEP;
        let room = Array::zeros(&[self.0.dim(0), target - capacity, self.0.dim(2)], self.0.dtype());
        self.0 = Array::concatenate([&self.0, &room], 1);
    }
}

/// Softmax attention, MLX's own; `q` `[batch, heads, tokens, dim]`, `k` and `v` `[batch, kv_heads, kv_tokens, dim]`.
/// With `causal` the last query sees every key, the one before it one less.
#[track_caller]
pub fn attention(q: &Array, k: &Array, v: &Array, scale: f32, causal: bool) -> Array {
    built(bridge::attention(&q.0, &k.0, &v.0, scale, causal))
}

/// Appends `k` and `v` `[tokens, kv_heads, head_dim]` behind the `past` tokens of the buffers, then causal softmax
/// attention of `q` `[tokens, heads, head_dim]` over all of them; returns `[tokens, heads, head_dim]`.
///
/// Each row of the result depends on its own query and the keys before it alone, bit for bit, on the CPU.
#[track_caller]
pub fn attend(
    q: &Array,
    k: &Array,
    v: &Array,
    keys: &mut KvBuffer,
    values: &mut KvBuffer,
    past: i32,
    scale: f32,
) -> Array {
    let length = past + q.dim(0);
    keys.reserve(length);
    values.reserve(length);
    if !crate::on_gpu() {
        let [out, new_keys, new_values] = fused::attend(q, k, v, [&keys.0, &values.0], past, scale);
        (keys.0, values.0) = (new_keys, new_values);
        return out;
    }
    for (buffer, new) in [(&mut *keys, k), (&mut *values, v)] {
        buffer.0 = buffer.0.slice_update(1, past, &new.transpose(&[1, 0, 2]));
    }
    let batched = |x: &Array| x.reshape(&[&[1], x.shape()].concat());
    let live = |buffer: &KvBuffer| batched(&buffer.0.slice(1, 0, length));
    let q = batched(&q.transpose(&[1, 0, 2]));
    let out = attention(&q, &live(keys), &live(values), scale, q.dim(2) > 1).transpose(&[0, 2, 1, 3]);
    out.reshape(&out.shape()[1..])
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

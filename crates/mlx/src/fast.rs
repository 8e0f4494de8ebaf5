//! MLX's fused operations, as `mlx.fast` has them.

use crate::{
    Array,
    array::built,
    bridge,
    eval::{list, unlist},
};

/// Root-mean-square norm over the last axis, times `weight`, in the wider type of both.
#[track_caller]
pub fn rms_norm(x: &Array, weight: &Array, eps: f32) -> Array {
    built(bridge::rms_norm(&x.host(), &weight.host(), eps))
}

/// Softmax attention of `q` `[batch, heads, tokens, dim]` over `k`, `v`
/// `[batch, kv_heads, length, dim]`, causal or with a bool mask `[tokens, length]`; `sinks` is one
/// logit per head.
#[track_caller]
pub fn scaled_dot_product_attention(
    [q, k, v]: [&Array; 3],
    scale: f32,
    causal: bool,
    mask: Option<&Array>,
    sinks: Option<&Array>,
) -> Array {
    built(bridge::attention(&q.host(), &k.host(), &v.host(), scale, causal, &list(mask), &list(sinks)))
}

/// Gated delta rule: the outputs and the state after the last token, in types of MLX's choice.
#[track_caller]
pub fn gated_delta_update([q, k, v]: [&Array; 3], g: &Array, beta: &Array, state: &Array) -> (Array, Array) {
    let out =
        unlist(bridge::gated_delta(&q.host(), &k.host(), &v.host(), &g.host(), &beta.host(), &state.host()));
    (out[0].clone(), out[1].clone())
}

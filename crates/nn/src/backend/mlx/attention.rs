//! Attention of one sequence.

use std::ops::Range;

use mlx::{Array, Dtype, fast};

use super::row_calls;
use crate::{KvBuffer, Softmax};

/// More queries of a sequence are a prompt's.
const FEW_QUERIES: i32 = 64;

#[track_caller]
pub(crate) fn attend(
    q: &Array,
    kv: [&Array; 2],
    [keys, values]: [&mut KvBuffer; 2],
    past: i32,
    window: Option<i32>,
    softmax: &Softmax,
) -> Array {
    append_kv(kv, [&mut *keys, &mut *values], past);
    attend_cached(q, [keys, values], past + q.dim(0), window, softmax)
}

/// [`attend`] in which the queries of each of `images` attend to one another too.
#[track_caller]
pub(crate) fn attend_images(
    q: &Array,
    kv: [&Array; 2],
    [keys, values]: [&mut KvBuffer; 2],
    past: i32,
    window: Option<i32>,
    images: &[Range<i32>],
    softmax: &Softmax,
) -> Array {
    append_kv(kv, [&mut *keys, &mut *values], past);
    let (mut outs, mut done) = (vec![], 0);
    let mut until = |end: i32, image: bool, outs: &mut Vec<Array>| {
        if end > done {
            let (own, length) = (q.slice(0, done, end), past + end);
            let [k, v] = [&*keys, &*values].map(|buffer| first_tokens(buffer, length));
            outs.push(masked_attention(&own, &k, &v, window, image, softmax));
        }
        done = end;
    };
    for image in images {
        until(image.start, false, &mut outs);
        until(image.end, true, &mut outs);
    }
    until(q.dim(0), false, &mut outs);
    Array::concatenate(&outs, 0)
}

#[track_caller]
pub(crate) fn append_kv([k, v]: [&Array; 2], [keys, values]: [&mut KvBuffer; 2], past: i32) {
    let buffers = [keys.reserve_for(k, past, k.dtype()), values.reserve_for(v, past, v.dtype())];
    keys.refill(Some(write_tokens(&buffers[0], k, past)));
    values.refill(Some(write_tokens(&buffers[1], v, past)));
}

#[track_caller]
pub(crate) fn attend_cached(
    q: &Array,
    [keys, values]: [&KvBuffer; 2],
    length: i32,
    window: Option<i32>,
    softmax: &Softmax,
) -> Array {
    attention(q, &first_tokens(keys, length), &first_tokens(values, length), window, softmax)
}

#[track_caller]
pub(crate) fn attend_together(
    q: &Array,
    [keys, values]: [&KvBuffer; 2],
    length: i32,
    window: Option<i32>,
    softmax: &Softmax,
) -> Array {
    let [k, v] = [keys, values].map(|buffer| first_tokens(buffer, length));
    masked_attention(q, &k, &v, window, true, softmax)
}

#[track_caller]
pub(crate) fn attend_latent(
    q: &Array,
    latent: &Array,
    latents: &mut KvBuffer,
    value_dim: i32,
    past: i32,
    window: Option<i32>,
    softmax: &Softmax,
) -> Array {
    let buffer = latents.reserve_for(latent, past, latent.dtype());
    latents.refill(Some(write_tokens(&buffer, latent, past)));
    let keys = first_tokens(latents, past + q.dim(0));
    attention(q, &keys, &keys.slice(-1, 0, value_dim), window, softmax)
}

/// `buffer` with `new` `[tokens, kv_heads, dim]` written after `past` tokens.
#[track_caller]
fn write_tokens(buffer: &Array, new: &Array, past: i32) -> Array {
    buffer.slice_update(1, past, &new.transpose(&[1, 0, 2]))
}

/// The first `length` tokens as MLX's attention takes them: `[1, kv_heads, length, dim]`.
#[track_caller]
fn first_tokens(buffer: &KvBuffer, length: i32) -> Array {
    let tokens = buffer.filled().slice(1, 0, length);
    tokens.reshape(&[&[1], tokens.shape()].concat())
}

/// Attention of `q` `[tokens, heads, dim]` over `k`, `v` `[1, kv_heads, length, dim]`; the queries
/// are the last tokens.
#[track_caller]
pub(crate) fn attention(q: &Array, k: &Array, v: &Array, window: Option<i32>, softmax: &Softmax) -> Array {
    let (tokens, length) = (q.dim(0), k.dim(2));
    if !row_calls::is_needed() || !(2..=FEW_QUERIES).contains(&tokens) {
        return masked_attention(q, k, v, window, false, softmax);
    }
    // Each as if it were alone: MLX has other kernels for several queries, and divides the keys of
    // one by their number.
    let outs: Vec<Array> = (0..tokens)
        .map(|token| {
            let seen = length - tokens + token + 1;
            let (q, [k, v]) = (q.slice(0, token, token + 1), [k, v].map(|x| x.slice(2, 0, seen)));
            masked_attention(&q, &k, &v, window, false, softmax)
        })
        .collect();
    Array::concatenate(&outs, 0)
}

/// [`attention`], or with `together` that in which queries see the keys after their own too.
fn masked_attention(
    q: &Array,
    k: &Array,
    v: &Array,
    window: Option<i32>,
    together: bool,
    softmax: &Softmax,
) -> Array {
    let (tokens, length) = (q.dim(0), k.dim(2));
    let narrow = window.filter(|&window| window < length);
    let mask = match together {
        true => narrow.map(|window| keys_from(tokens, length, window)),
        false => narrow.map(|window| window_mask(tokens, length, window)),
    };
    let q = q.transpose(&[1, 0, 2]);
    let q = q.reshape(&[&[1], q.shape()].concat());
    let out = match softmax.softcap {
        Some(cap) => capped_attention(&q, k, v, softmax, cap, mask, together),
        None => {
            let causal = mask.is_none() && !together && q.dim(2) > 1;
            let sinks = softmax.sinks.as_ref().map(|sinks| sinks.astype(q.dtype()));
            let qkv = [&q, k, v];
            fast::scaled_dot_product_attention(qkv, softmax.scale, causal, mask.as_ref(), sinks.as_ref())
        }
    };
    let out = out.transpose(&[0, 2, 1, 3]);
    out.reshape(&out.shape()[1..])
}

/// Attention of `q`, `k` and `v` `[tokens, heads, dim]` of one sequence in both directions, over
/// tokens fewer than `window` away.
#[track_caller]
pub(crate) fn attend_both_ways(qkv: [&Array; 3], window: Option<i32>, scale: f32) -> Array {
    let tokens = qkv[0].dim(0);
    let mask = window.filter(|&window| window < tokens).map(|window| {
        let queries = Array::arange(0, tokens, Dtype::Int32).reshape(&[tokens, 1]);
        let keys = Array::arange(0, tokens, Dtype::Int32).reshape(&[1, tokens]);
        let away = Array::from_slice(&[window - 1], &[1]);
        let near = [keys.greater_equal(&(&queries - &away)), keys.less_equal(&(&queries + &away))];
        (near[0].astype(Dtype::Int32) * near[1].astype(Dtype::Int32)).astype(Dtype::Bool)
    });
    let [q, k, v] = qkv.map(|x| {
        let x = x.transpose(&[1, 0, 2]);
        x.reshape(&[&[1], x.shape()].concat())
    });
    let out = fast::scaled_dot_product_attention([&q, &k, &v], scale, false, mask.as_ref(), None);
    let out = out.transpose(&[0, 2, 1, 3]);
    out.reshape(&out.shape()[1..])
}

/// Bool `[tokens, length]`: the keys that each of the last `tokens` queries sees if it sees the
/// window before it and all keys after it.
fn keys_from(tokens: i32, length: i32, window: i32) -> Array {
    let queries = Array::arange(length - tokens, length, Dtype::Int32).reshape(&[tokens, 1]);
    let keys = Array::arange(0, length, Dtype::Int32).reshape(&[1, length]);
    keys.greater_equal(&(&queries - Array::from_slice(&[window - 1], &[1])))
}

/// Bool `[tokens, length]`: which of `length` keys each of the last `tokens` queries sees.
fn window_mask(tokens: i32, length: i32, window: i32) -> Array {
    let queries = Array::arange(length - tokens, length, Dtype::Int32).reshape(&[tokens, 1]);
    let keys = Array::arange(0, length, Dtype::Int32).reshape(&[1, length]);
    let first = &queries - Array::from_slice(&[window - 1], &[1]);
    // Neither in the future nor out of the window.
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
    together: bool,
) -> Array {
    assert!(softmax.sinks.is_none(), "capped attention with sinks");
    let (heads, kv_heads, tokens, length) = (q.dim(1), k.dim(1), q.dim(2), k.dim(2));
    let grouped = q.reshape(&[1, kv_heads, heads / kv_heads * tokens, q.dim(3)]);
    let scores = grouped.matmul(&k.transpose(&[0, 1, 3, 2])) * softmax.scale;
    let scores = ((scores / cap).tanh() * cap).reshape(&[1, heads, tokens, length]);
    let mask = mask.unwrap_or_else(|| match together {
        true => keys_from(tokens, length, length),
        false => window_mask(tokens, length, length),
    });
    let hidden = Array::scalar(f32::NEG_INFINITY, scores.dtype());
    let weights = mask.select(&scores, &hidden).softmax(-1);
    let out = weights.reshape(&[1, kv_heads, heads / kv_heads * tokens, length]).matmul(v);
    out.reshape(&[1, heads, tokens, v.dim(3)])
}

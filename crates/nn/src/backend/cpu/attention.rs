//! Attention of one sequence.

use kernels::{AttentionMask, AttentionShape};
use mlx::{Array, Input, apply, apply_in_place};

use super::values::{dispatch, dispatch_stored, like};
use crate::{KvBuffer, Softmax, precision::kv_cache_dtype};

#[track_caller]
pub(crate) fn attend(
    q: &Array,
    [k, v]: [&Array; 2],
    [key_buffer, value_buffer]: [&mut KvBuffer; 2],
    past: i32,
    window: Option<i32>,
    softmax: &Softmax,
) -> Array {
    let [keys, values] = reserve([k, v], [key_buffer, value_buffer], past);
    let shape = attention_shape(q, &keys, values.dim(2), past + q.dim(0), window);
    let outputs = [
        like(q, &[q.dim(0), q.dim(1), values.dim(2)]),
        like(&keys, keys.shape()),
        like(&values, values.shape()),
    ];
    let (prepared, past, kv_heads) = (PreparedSoftmax::new(softmax), past as usize, shape.kv_heads);
    let inputs = with_sinks(&[&keys, &values, q, k, v], softmax);
    // Outputs 1 and 2 are inputs 0 and 1, updated in place.
    let shared = [(1, 0), (2, 1)];
    let [out, keys, values] = apply_in_place("attend", &inputs, outputs, &shared, move |inputs, outputs| {
        let [out, keys, values] = outputs else { unreachable!("three outputs") };
        dispatch_stored!(inputs[2].dtype(), inputs[0].dtype(), [T, S] => {
            let [keys, values] = [keys.values::<S>(), values.values::<S>()];
            kernels::append_kv::<T, S>(keys, inputs[3].values(), past, kv_heads, shape.head_dim);
            kernels::append_kv::<T, S>(values, inputs[4].values(), past, kv_heads, shape.value_dim);
            let softmax = prepared.with_sinks(inputs.get(5));
            kernels::attention::<T, S>(shape, inputs[2].values(), keys, values, softmax, out.values())
        })
    });
    key_buffer.refill(Some(keys));
    value_buffer.refill(Some(values));
    out
}

#[track_caller]
pub(crate) fn append_kv([k, v]: [&Array; 2], [key_buffer, value_buffer]: [&mut KvBuffer; 2], past: i32) {
    let [keys, values] = reserve([k, v], [key_buffer, value_buffer], past);
    let outputs = [like(&keys, keys.shape()), like(&values, values.shape())];
    let (past, kv_heads) = (past as usize, k.dim(1) as usize);
    let [key_dim, value_dim] = [k, v].map(|x| x.dim(2) as usize);
    let (inputs, shared) = ([&keys, &values, k, v], [(0, 0), (1, 1)]);
    let [keys, values] = apply_in_place("append", &inputs, outputs, &shared, move |inputs, outputs| {
        let [keys, values] = outputs else { unreachable!("two outputs") };
        dispatch_stored!(inputs[2].dtype(), inputs[0].dtype(), [T, S] => {
            kernels::append_kv::<T, S>(keys.values(), inputs[2].values(), past, kv_heads, key_dim);
            kernels::append_kv::<T, S>(values.values(), inputs[3].values(), past, kv_heads, value_dim);
        })
    });
    key_buffer.refill(Some(keys));
    value_buffer.refill(Some(values));
}

#[track_caller]
pub(crate) fn attend_cached(
    q: &Array,
    [keys, values]: [&KvBuffer; 2],
    length: i32,
    window: Option<i32>,
    softmax: &Softmax,
) -> Array {
    attend_masked(q, [keys, values], length, window, AttentionMask::Causal, softmax)
}

#[track_caller]
pub(crate) fn attend_together(
    q: &Array,
    buffers: [&KvBuffer; 2],
    length: i32,
    window: Option<i32>,
    softmax: &Softmax,
) -> Array {
    attend_masked(q, buffers, length, window, AttentionMask::Together, softmax)
}

#[track_caller]
fn attend_masked(
    q: &Array,
    buffers: [&KvBuffer; 2],
    length: i32,
    window: Option<i32>,
    mask: AttentionMask,
    softmax: &Softmax,
) -> Array {
    let [keys, values] = buffers.map(KvBuffer::filled);
    let shape = AttentionShape { mask, ..attention_shape(q, keys, values.dim(2), length, window) };
    let output = like(q, &[q.dim(0), q.dim(1), values.dim(2)]);
    let prepared = PreparedSoftmax::new(softmax);
    let inputs = with_sinks(&[keys, values, q], softmax);
    let [out] = apply("attend_over", &inputs, [output], move |inputs, outputs| {
        dispatch_stored!(inputs[2].dtype(), inputs[0].dtype(), [T, S] => kernels::attention::<T, S>(
            shape, inputs[2].values(), inputs[0].values(), inputs[1].values(), prepared.with_sinks(inputs.get(3)),
            outputs[0].values(),
        ))
    });
    out
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
    let buffer = latents.reserve_for(latent, past, kv_cache_dtype(latent.dtype()));
    let shape = attention_shape(q, &buffer, value_dim, past + q.dim(0), window);
    let outputs = [like(q, &[q.dim(0), q.dim(1), value_dim]), like(&buffer, buffer.shape())];
    let (prepared, past) = (PreparedSoftmax::new(softmax), past as usize);
    let inputs = with_sinks(&[&buffer, q, latent], softmax);
    let shared = [(1, 0)];
    let [out, buffer] = apply_in_place("attend_latent", &inputs, outputs, &shared, move |inputs, outputs| {
        let [out, buffer] = outputs else { unreachable!("two outputs") };
        dispatch_stored!(inputs[1].dtype(), inputs[0].dtype(), [T, S] => {
            let buffer = buffer.values::<S>();
            kernels::append_kv::<T, S>(buffer, inputs[2].values(), past, shape.kv_heads, shape.head_dim);
            let softmax = prepared.with_sinks(inputs.get(3));
            kernels::latent_attention::<T, S>(shape, inputs[1].values(), buffer, softmax, out.values())
        })
    });
    latents.refill(Some(buffer));
    out
}

/// Takes the buffers out, with room for `k` and `v` after `past` tokens.
#[track_caller]
fn reserve([k, v]: [&Array; 2], [keys, values]: [&mut KvBuffer; 2], past: i32) -> [Array; 2] {
    let stored = kv_cache_dtype(k.dtype());
    [keys.reserve_for(k, past, stored), values.reserve_for(v, past, stored)]
}

#[track_caller]
fn attention_shape(
    q: &Array,
    keys: &Array,
    value_dim: i32,
    length: i32,
    window: Option<i32>,
) -> AttentionShape {
    AttentionShape {
        tokens: q.dim(0) as usize,
        heads: q.dim(1) as usize,
        kv_heads: keys.dim(0) as usize,
        head_dim: q.dim(2) as usize,
        value_dim: value_dim as usize,
        length: length as usize,
        capacity: keys.dim(1) as usize,
        window: window.map_or(usize::MAX, |window| window as usize),
        mask: AttentionMask::Causal,
    }
}

/// Attention of `q`, `k` and `v` `[tokens, heads, dim]` of one sequence in both directions, over
/// tokens fewer than `window` away.
#[track_caller]
pub(crate) fn attend_both_ways([q, k, v]: [&Array; 3], window: Option<i32>, scale: f32) -> Array {
    let (tokens, kv_heads) = (k.dim(0), k.dim(1));
    let shape = AttentionShape {
        tokens: q.dim(0) as usize,
        heads: q.dim(1) as usize,
        kv_heads: kv_heads as usize,
        head_dim: q.dim(2) as usize,
        value_dim: v.dim(2) as usize,
        length: tokens as usize,
        capacity: tokens as usize,
        window: window.map_or(usize::MAX, |window| window as usize),
        mask: AttentionMask::BothWays,
    };
    // Keys and values as kernels read them, head by head; outputs only so that they are allocated.
    let by_head = |x: &Array| like(x, &[kv_heads, tokens, x.dim(2)]);
    let outputs = [like(q, &[q.dim(0), q.dim(1), v.dim(2)]), by_head(k), by_head(v)];
    let [out, ..] = apply("attend_both_ways", &[q, k, v], outputs, move |inputs, outputs| {
        let [out, keys, values] = outputs else { unreachable!("three outputs") };
        dispatch!(inputs[0].dtype(), T => {
            let [keys, values] = [keys.values::<T>(), values.values::<T>()];
            kernels::append_kv::<T, T>(keys, inputs[1].values(), 0, shape.kv_heads, shape.head_dim);
            kernels::append_kv::<T, T>(values, inputs[2].values(), 0, shape.kv_heads, shape.value_dim);
            let softmax = kernels::Softmax { scale, softcap: None, sinks: None };
            kernels::attention::<T, T>(shape, inputs[0].values(), keys, values, softmax, out.values())
        })
    });
    out
}

fn with_sinks<'a>(inputs: &[&'a Array], softmax: &'a Softmax) -> Vec<&'a Array> {
    inputs.iter().copied().chain(&softmax.sinks).collect()
}

/// The numbers of a [`Softmax`] as kernels take them; its sinks are an input.
#[derive(Clone, Copy)]
pub(super) struct PreparedSoftmax {
    scale: f32,
    softcap: Option<f32>,
}

impl PreparedSoftmax {
    pub(super) fn new(softmax: &Softmax) -> PreparedSoftmax {
        PreparedSoftmax { scale: softmax.scale, softcap: softmax.softcap }
    }

    pub(super) fn with_sinks<'a>(&self, sinks: Option<&'a Input>) -> kernels::Softmax<'a> {
        kernels::Softmax {
            scale: self.scale,
            softcap: self.softcap,
            sinks: sinks.map(|sinks| sinks.values()),
        }
    }
}

//! Key/value buffers that grow in steps and are written in place, and attention over them.

use crate::{Array, Dtype, fused, portable};

/// A growing buffer of keys, values or latents, `[kv_heads, capacity, dim]`, written in place; hence no `Clone`.
/// It takes its shape and type from what is appended first.
#[derive(Default)]
pub struct KvBuffer(Option<Array>);

/// How scores become weights.
#[derive(Clone)]
pub struct Softmax {
    pub scale: f32,
    /// Scores become `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// One logit per head, float32 `[heads]`, that takes part in the normalisation alone.
    pub sinks: Option<Array>,
}

/// Tokens can be dropped from a buffer's front in multiples of this alone: within such blocks attention sums in order.
pub const KEY_BLOCK: i32 = kernels::KEY_BLOCK as i32;

/// Capacity grows in steps of this many tokens.
const KV_STEP: i32 = 256;

impl Softmax {
    pub fn scaled(scale: f32) -> Softmax {
        Softmax { scale, softcap: None, sinks: None }
    }
}

impl KvBuffer {
    /// The array behind the buffer, to be evaluated with a step.
    pub fn array(&self) -> Option<&Array> {
        self.0.as_ref()
    }

    /// Tokens there is room for.
    pub fn capacity(&self) -> i32 {
        self.0.as_ref().map_or(0, |array| array.dim(1))
    }

    /// Tokens `from..to`, `[kv_heads, to - from, dim]`, in memory of their own: what is appended later, and whatever
    /// becomes of the buffer, does not touch them. `None` if nothing was ever appended.
    #[track_caller]
    pub fn copy(&self, from: i32, to: i32) -> Option<Array> {
        self.0.as_ref().map(|array| cut(array, from, to))
    }

    /// A buffer that holds copies of `parts` one behind the other, each `[kv_heads, tokens, dim]`, with room for at
    /// least `room` tokens more.
    #[track_caller]
    pub fn joined(parts: &[Array], room: i32) -> KvBuffer {
        let Some(first) = parts.first() else { return KvBuffer::default() };
        let length: i32 = parts.iter().map(|part| part.dim(1)).sum();
        // Never none: one part alone would not be copied.
        let capacity = (length + room.max(1) + KV_STEP - 1) / KV_STEP * KV_STEP;
        let room = Array::zeros(&[first.dim(0), capacity - length, first.dim(2)], first.dtype());
        KvBuffer(Some(Array::concatenate(parts.iter().chain([&room]), 1)))
    }

    /// Keeps tokens `from..to`, moved to the front; into memory of its own. `from` is a multiple of [`KEY_BLOCK`].
    #[track_caller]
    pub fn slide(&mut self, from: i32, to: i32) {
        assert_eq!(from % KEY_BLOCK, 0, "tokens {from}..{to} start inside a block");
        self.0 = self.0.as_ref().map(|array| array.slice(1, from, to).contiguous());
    }

    /// Takes the buffer out, with room for `length` tokens of `dim` numbers in each of `heads`; by a quarter more than
    /// asked, so that copies stay rare.
    #[track_caller]
    pub(crate) fn reserve(&mut self, length: i32, heads: i32, dim: i32, dtype: Dtype) -> Array {
        let array = self.0.take().unwrap_or_else(|| Array::zeros(&[heads, 0, dim], dtype));
        let capacity = array.dim(1);
        if length <= capacity {
            return array;
        }
        let target = length.max(capacity + capacity / 4);
        let target = (target + KV_STEP - 1) / KV_STEP * KV_STEP;
        let room = Array::zeros(&[heads, target - capacity, dim], array.dtype());
        Array::concatenate([&array, &room], 1)
    }

    /// Puts in what became of the buffer.
    pub(crate) fn refill(&mut self, array: Option<Array>) {
        self.0 = array;
    }

    /// The first `length` tokens, as MLX's attention takes them: `[1, kv_heads, length, dim]`.
    #[track_caller]
    fn live(&self, length: i32) -> Array {
        let array = self.filled();
        batched(&array.slice(1, 0, length))
    }

    #[track_caller]
    fn filled(&self) -> &Array {
        self.0.as_ref().unwrap_or_else(|| panic!("attention over keys that nobody has written"))
    }
}

/// Appends `k` and `v` `[tokens, kv_heads, dim]` behind the `past` tokens of the buffers, then causal softmax
/// attention of `q` `[tokens, heads, head_dim]` over all of them, or over the last `window` of each query; returns
/// `[tokens, heads, value_dim]`.
///
/// Each row of the result depends on its own query and the keys before it alone, bit for bit, on the CPU.
#[track_caller]
pub fn attend(
    q: &Array,
    [k, v]: [&Array; 2],
    keys: &mut KvBuffer,
    values: &mut KvBuffer,
    past: i32,
    window: Option<i32>,
    softmax: &Softmax,
) -> Array {
    if !crate::on_gpu() {
        let room = [reserve(keys, past, k), reserve(values, past, v)];
        let [out, new_keys, new_values] = fused::attend(q, [k, v], room.each_ref(), past, window, softmax);
        (keys.0, values.0) = (Some(new_keys), Some(new_values));
        return out;
    }
    attend_mlx(q, [k, v], keys, values, past, window, softmax)
}

/// Appends `k` and `v` `[tokens, kv_heads, dim]` behind the `past` tokens of the buffers.
#[track_caller]
pub fn append([k, v]: [&Array; 2], keys: &mut KvBuffer, values: &mut KvBuffer, past: i32) {
    let room = [reserve(keys, past, k), reserve(values, past, v)];
    let [new_keys, new_values] = match crate::on_gpu() {
        true => [appended(&room[0], k, past), appended(&room[1], v, past)],
        false => fused::append([k, v], room.each_ref(), past),
    };
    (keys.0, values.0) = (Some(new_keys), Some(new_values));
}

/// Tokens `from..to` of `[kv_heads, tokens, dim]`, in memory of their own.
#[track_caller]
pub fn cut(array: &Array, from: i32, to: i32) -> Array {
    let part = array.slice(1, from, to);
    // `contiguous` may share memory with what is row-major already; putting something behind it always copies.
    let nothing = Array::zeros(&[array.dim(0), 0, array.dim(2)], array.dtype());
    Array::concatenate([&part, &nothing], 1)
}

/// [`attend`] by MLX's own operations.
#[track_caller]
pub(crate) fn attend_mlx(
    q: &Array,
    [k, v]: [&Array; 2],
    keys: &mut KvBuffer,
    values: &mut KvBuffer,
    past: i32,
    window: Option<i32>,
    softmax: &Softmax,
) -> Array {
    let length = past + q.dim(0);
    let [all_keys, all_values] = [reserve(keys, past, k), reserve(values, past, v)];
    keys.0 = Some(appended(&all_keys, k, past));
    values.0 = Some(appended(&all_values, v, past));
    portable::attend(q, &keys.live(length), &values.live(length), window, softmax)
}

/// As [`attend`], over the `length` tokens that are in the buffers already; the queries are the last of them.
#[track_caller]
pub fn attend_over(
    q: &Array,
    keys: &KvBuffer,
    values: &KvBuffer,
    length: i32,
    window: Option<i32>,
    softmax: &Softmax,
) -> Array {
    if !crate::on_gpu() {
        return fused::attend_over(q, [keys.filled(), values.filled()], length, window, softmax);
    }
    portable::attend(q, &keys.live(length), &values.live(length), window, softmax)
}

/// As [`attend`] where keys and values are one latent `[tokens, 1, head_dim]`: values are its first `value_dim`
/// numbers (multi-head latent attention, DeepSeek-V2, 2024).
#[track_caller]
pub fn attend_latent(
    q: &Array,
    latent: &Array,
    buffer: &mut KvBuffer,
    value_dim: i32,
    past: i32,
    window: Option<i32>,
    softmax: &Softmax,
) -> Array {
    let length = past + q.dim(0);
    let room = reserve(buffer, past, latent);
    if !crate::on_gpu() {
        let [out, new] = fused::attend_latent(q, latent, &room, value_dim, past, window, softmax);
        buffer.0 = Some(new);
        return out;
    }
    buffer.0 = Some(appended(&room, latent, past));
    let keys = buffer.live(length);
    portable::attend(q, &keys, &keys.slice(-1, 0, value_dim), window, softmax)
}

/// The buffer with room for `new` `[tokens, kv_heads, dim]` behind `past` tokens.
#[track_caller]
fn reserve(buffer: &mut KvBuffer, past: i32, new: &Array) -> Array {
    buffer.reserve(past + new.dim(0), new.dim(1), new.dim(2), new.dtype())
}

fn appended(buffer: &Array, new: &Array, past: i32) -> Array {
    buffer.slice_update(1, past, &new.transpose(&[1, 0, 2]))
}

fn batched(x: &Array) -> Array {
    x.reshape(&[&[1], x.shape()].concat())
}

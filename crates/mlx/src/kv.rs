//! Key/value buffers that grow in steps and are written in place, and attention over them.

use crate::{Array, Dtype, fast::attention, fused};

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
    fn reserve(&mut self, length: i32) {
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

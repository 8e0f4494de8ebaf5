//! Core attention of a batch.

use mlx::Array;

use super::{
    attention::{attend, attend_images},
    batch::for_each_row,
    metal,
    norm::normed,
    rope::rope,
};
use crate::{CoreAttention, KvRow};

#[track_caller]
pub(crate) fn core_attention(
    attention: &CoreAttention,
    [q, k, v]: [&Array; 3],
    positions: &Array,
    rows: &mut [KvRow],
) -> Array {
    let CoreAttention { heads, kv_heads, head_dim: dim, .. } = *attention;
    let v = v.reshape(&[-1, kv_heads, dim]);
    let [rotated_q, k] = metal::rotated(attention, [q, k], positions)
        .unwrap_or_else(|| normed_and_rotated(attention, [q, k], positions));
    let step = |row: &mut KvRow, [q, k, v]: [Array; 3]| {
        let buffers = [&mut *row.keys, &mut *row.values];
        match row.images {
            [] => attend(&q, [&k, &v], buffers, row.past, row.window, &attention.softmax),
            images => attend_images(&q, [&k, &v], buffers, row.past, row.window, images, &attention.softmax),
        }
    };
    let outs = for_each_row(rows, |row| row.tokens, [&rotated_q, &k, &v], step);
    let out = if attention.output_gate { gated(&outs, q, [heads, dim]) } else { outs };
    out.reshape(&[out.dim(0), -1])
}

/// Queries and keys after their norms and rotation, `[tokens, heads, dim]`.
#[track_caller]
fn normed_and_rotated(attention: &CoreAttention, [q, k]: [&Array; 2], positions: &Array) -> [Array; 2] {
    let CoreAttention { heads, kv_heads, head_dim: dim, .. } = *attention;
    let stride = if attention.output_gate { 2 * dim } else { dim };
    let q = q.reshape(&[-1, heads, stride]).slice(-1, 0, dim);
    let k = k.reshape(&[-1, kv_heads, dim]);
    let [q, k] = match &attention.qk_norm {
        Some([q_norm, k_norm]) => [normed(&q, Some(q_norm)), normed(&k, Some(k_norm))],
        None => [q, k],
    };
    [q, k].map(|x| rope(&x, positions, &attention.rope))
}

/// Outputs `[tokens, heads, dim]` times the sigmoid of the gate after each head's query in `q`.
#[track_caller]
fn gated(outs: &Array, q: &Array, [heads, dim]: [i32; 2]) -> Array {
    metal::sigmoid_gated(outs, q).unwrap_or_else(|| {
        let gate = q.reshape(&[-1, heads, 2 * dim]).slice(-1, dim, 2 * dim);
        outs * gate.sigmoid()
    })
}

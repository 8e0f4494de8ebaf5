//! Core attention of a batch.

use mlx::Array;

use super::{
    attention::{attend, attend_images},
    batch::for_each_row,
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
    let split = |x: &Array, heads| x.reshape(&[-1, heads, dim]);
    let (q, gate) = match attention.output_gate {
        true => {
            let both = q.reshape(&[-1, heads, 2 * dim]);
            (both.slice(-1, 0, dim), Some(both.slice(-1, dim, 2 * dim)))
        }
        false => (split(q, heads), None),
    };
    let (k, v) = (split(k, kv_heads), split(v, kv_heads));
    let [q, k] = match &attention.qk_norm {
        Some([q_norm, k_norm]) => [normed(&q, Some(q_norm)), normed(&k, Some(k_norm))],
        None => [q, k],
    };
    let [q, k] = [q, k].map(|x| rope(&x, positions, &attention.rope));
    let step = |row: &mut KvRow, [q, k, v]: [Array; 3]| {
        let buffers = [&mut *row.keys, &mut *row.values];
        match row.images {
            [] => attend(&q, [&k, &v], buffers, row.past, row.window, &attention.softmax),
            images => attend_images(&q, [&k, &v], buffers, row.past, row.window, images, &attention.softmax),
        }
    };
    let outs = for_each_row(rows, |row| row.tokens, [&q, &k, &v], step);
    let out = match gate {
        Some(gate) => outs * gate.sigmoid(),
        None => outs,
    };
    out.reshape(&[out.dim(0), -1])
}

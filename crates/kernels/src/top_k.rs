//! The indices of the largest scores of each row.

use crate::{parallel::for_each_chunk, scalar::Scalar};

/// Columns of the `k` largest of each row of `scores` `[rows, columns]`, largest first, into
/// `indices` `[rows, k]`. Equal scores are in the order of their columns; NaN comes last.
pub fn top_k<T: Scalar>(scores: &[T], columns: usize, k: usize, indices: &mut [u32]) {
    assert!(k <= columns && u32::try_from(columns).is_ok(), "the {k} largest of {columns}");
    if k == 0 || scores.is_empty() {
        return assert!(indices.is_empty(), "no indices to find");
    }
    let rows = scores.len() / columns;
    assert_eq!((scores.len(), indices.len()), (rows * columns, rows * k), "rows of {columns}, {k} of each");
    // Selection costs about as much as a few passes over a row.
    for_each_chunk(indices, k, 8 * scores.len(), |row, indices| {
        let row = &scores[row * columns..][..columns];
        let mut keys: Vec<u64> =
            row.iter().zip(0u64..).map(|(s, i)| descending_key(s.to_f32()) << 32 | i).collect();
        if k < columns {
            keys.select_nth_unstable(k);
        }
        keys[..k].sort_unstable();
        indices.iter_mut().zip(&keys).for_each(|(index, key)| *index = *key as u32);
    });
}

/// A 32-bit number that decreases as `score` increases.
pub(crate) fn descending_key(score: f32) -> u64 {
    // Bits of floats of one sign are ordered by magnitude; adding 0 makes -0 equal 0.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    if score.is_nan() { u32::MAX as u64 } else { !ascending as u64 }
}

//! The indices of the largest scores of each row.

use crate::{parallel::for_each_chunk, scalar::Scalar};

/// Columns from which a row is searched block by block: a vocabulary, not the experts of a layer.
const LONG_ROW: usize = 4096;
const BLOCK: usize = 128;

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
        let mut keys = candidates(&scores[row * columns..][..columns], k);
        if k < keys.len() {
            keys.select_nth_unstable(k);
        }
        keys[..k].sort_unstable();
        indices.iter_mut().zip(&keys).for_each(|(index, key)| *index = *key as u32);
    });
}

/// Keys of the columns that may be among the `k` largest: score above, column below.
fn candidates<T: Scalar>(row: &[T], k: usize) -> Vec<u64> {
    let key = |column: usize| descending_key(row[column].to_f32()) << 32 | column as u64;
    if row.len() >= LONG_ROW && k <= row.len() / BLOCK {
        let maxima: Vec<f32> = row.chunks(BLOCK).map(maximum).collect();
        let mut sorted = maxima.clone();
        let (_, least, _) = sorted.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
        // `k` blocks have a score that large, if none of them is all NaN.
        let least = *least;
        let blocks = (0..maxima.len()).filter(|&block| maxima[block] >= least);
        let columns = blocks.flat_map(|block| block * BLOCK..row.len().min((block + 1) * BLOCK));
        let keys: Vec<u64> = columns.filter(|&column| row[column].to_f32() >= least).map(key).collect();
        if keys.len() >= k {
            return keys;
        }
    }
    (0..row.len()).map(key).collect()
}

/// The largest score; minus infinity if all are NaN.
fn maximum<T: Scalar>(scores: &[T]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (chunks, rest) = scores.as_chunks::<16>();
    let mut lanes = [f32::NEG_INFINITY; 16];
    for chunk in chunks {
        for (lane, score) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, score.to_f32());
        }
    }
    rest.iter().map(|score| score.to_f32()).chain(lanes).fold(f32::NEG_INFINITY, larger)
}

/// A 32-bit number that decreases as `score` increases.
pub(crate) fn descending_key(score: f32) -> u64 {
    // Bits of floats of one sign are ordered by magnitude; adding 0 makes -0 equal 0.
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    if score.is_nan() { u32::MAX as u64 } else { !ascending as u64 }
}

//! Causal softmax attention over a growing key/value buffer.

use crate::{
    lanes::{LANES, exp, fma, load, load_scalar, reduce},
    parallel::for_each_chunk,
    scalar::{Scalar, widen},
    simd::{Work, vectorize},
};

/// Sizes of one call: `tokens` queries at the end of `length` keys, in buffers with room for `capacity`.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    pub tokens: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Keys in the buffer, the queries' own included.
    pub length: usize,
    pub capacity: usize,
}

/// Writes `new` `[tokens, kv_heads, head_dim]` at position `at` of `buffer` `[kv_heads, capacity, head_dim]`.
pub fn append_kv<T: Scalar>(buffer: &mut [T], new: &[T], at: usize, kv_heads: usize, head_dim: usize) {
    let capacity = buffer.len() / (kv_heads * head_dim);
    for (t, token) in new.chunks_exact(kv_heads * head_dim).enumerate() {
        for (head, values) in token.chunks_exact(head_dim).enumerate() {
            buffer[(head * capacity + at + t) * head_dim..][..head_dim].copy_from_slice(values);
        }
    }
}

/// `out = softmax(q kᵀ * scale) v` with a causal mask: query `t` sees keys up to `length - tokens + t`.
///
/// `q`, `out` `[tokens, heads, head_dim]`; `k`, `v` `[kv_heads, capacity, head_dim]`. Query head `h` uses key head
/// `h / (heads / kv_heads)`.
pub fn attention<T: Scalar>(shape: AttentionShape, q: &[T], k: &[T], v: &[T], scale: f32, out: &mut [T]) {
    let AttentionShape { tokens, heads, kv_heads, head_dim, length, capacity } = shape;
    assert!(tokens <= length && length <= capacity && heads.is_multiple_of(kv_heads), "{shape:?}");
    assert_eq!((q.len(), out.len()), (tokens * heads * head_dim, q.len()), "queries of {shape:?}");
    assert_eq!((k.len(), v.len()), (kv_heads * capacity * head_dim, k.len()), "buffers of {shape:?}");
    let group = heads / kv_heads;
    let padded = head_dim.next_multiple_of(LANES);
    let q = widen(q, head_dim, LANES);
    for_each_chunk(out, group * head_dim, 2 * q.len() * length, |i, out| {
        let (token, kv_head) = (i / kv_heads, i % kv_heads);
        let keys = length - tokens + token + 1;
        let live = kv_head * capacity * head_dim..(kv_head * capacity + keys) * head_dim;
        let q = &q[i * group * padded..][..group * padded];
        vectorize(Queries { q, k: &k[live.clone()], v: &v[live], head_dim, scale, out });
    });
}

/// The query heads of one token that share a key head, against the keys that token sees.
struct Queries<'a, T> {
    /// `[heads, head_dim]`, each head padded to whole lanes.
    q: &'a [f32],
    /// `[keys, head_dim]`, as `v`.
    k: &'a [T],
    v: &'a [T],
    head_dim: usize,
    scale: f32,
    out: &'a mut [T],
}

impl<T: Scalar> Work for Queries<'_, T> {
    #[inline(always)]
    fn run(self) {
        let heads = self.out.len() / self.head_dim;
        let padded = self.head_dim.next_multiple_of(LANES);
        let mut scores = vec![0.0f32; heads.min(4) * (self.k.len() / self.head_dim)];
        let mut first = 0;
        while first < heads {
            let count = (heads - first).min(4);
            let q = &self.q[first * padded..][..count * padded];
            let out = &mut self.out[first * self.head_dim..][..count * self.head_dim];
            let mut tile = Tile { q, k: self.k, v: self.v, head_dim: self.head_dim, scale: self.scale, out };
            match count {
                1 => tile.run::<1>(&mut scores),
                2 => tile.run::<2>(&mut scores),
                3 => tile.run::<3>(&mut scores),
                _ => tile.run::<4>(&mut scores),
            }
            first += count;
        }
    }
}

/// M query heads at once: every key and value is loaded once for all of them.
struct Tile<'a, 'b, T> {
    q: &'a [f32],
    k: &'a [T],
    v: &'a [T],
    head_dim: usize,
    scale: f32,
    out: &'b mut [T],
}

impl<T: Scalar> Tile<'_, '_, T> {
    #[inline(always)]
    fn run<const M: usize>(&mut self, scores: &mut [f32]) {
        let keys = self.k.len() / self.head_dim;
        let scores = &mut scores[..M * keys];
        self.scores::<M>(scores, keys);
        let mut totals = [0.0; M];
        for (total, scores) in totals.iter_mut().zip(scores.chunks_exact_mut(keys)) {
            *total = softmax_numerators(scores);
        }
        self.weighted_values::<M>(scores, &totals, keys);
    }

    #[inline(always)]
    fn scores<const M: usize>(&self, scores: &mut [f32], keys: usize) {
        let padded = self.head_dim.next_multiple_of(LANES);
        for (j, key) in self.k.chunks_exact(self.head_dim).enumerate() {
            let mut sums = [[0.0; LANES]; M];
            for chunk in 0..padded / LANES {
                let key = load_scalar(key, chunk);
                for (m, sum) in sums.iter_mut().enumerate() {
                    fma(sum, &load(&self.q[m * padded..], chunk), &key);
                }
            }
            for (m, sum) in sums.iter().enumerate() {
                scores[m * keys + j] = reduce(sum) * self.scale;
            }
        }
    }

    #[inline(always)]
    fn weighted_values<const M: usize>(&mut self, scores: &[f32], totals: &[f32; M], keys: usize) {
        for chunk in 0..self.head_dim.div_ceil(LANES) {
            let mut sums = [[0.0; LANES]; M];
            for (j, value) in self.v.chunks_exact(self.head_dim).enumerate() {
                let value = load_scalar(value, chunk);
                for (m, sum) in sums.iter_mut().enumerate() {
                    fma(sum, &[scores[m * keys + j]; LANES], &value);
                }
            }
            for m in 0..M {
                let out = &mut self.out[m * self.head_dim..][..self.head_dim][chunk * LANES..];
                out.iter_mut().zip(&sums[m]).for_each(|(out, sum)| *out = T::from_f32(sum / totals[m]));
            }
        }
    }
}

/// Replaces scores by `exp(score - max)` and returns their sum.
#[inline(always)]
fn softmax_numerators(scores: &mut [f32]) -> f32 {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|s| *s = exp(*s - max));
    let mut sums = [0.0; LANES];
    for chunk in scores.chunks(LANES) {
        sums.iter_mut().zip(chunk).for_each(|(sum, s)| *sum += s);
    }
    reduce(&sums)
}

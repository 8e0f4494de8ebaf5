//! Causal softmax attention over a growing key/value buffer.

use crate::{
    lanes::{LANES, exp, fma, load, load_scalar, reduce, tanh},
    parallel::for_each_chunk,
    scalar::{Scalar, widen},
    simd::{Work, vectorize},
};

/// Query heads computed together: every key and value is loaded once for all of them.
const TILE: usize = 4;

/// Sizes of one call: `tokens` queries at the end of `length` keys, in buffers with room for `capacity`.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    pub tokens: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Values in each key's row of values.
    pub value_dim: usize,
    /// Keys in the buffer, the queries' own included.
    pub length: usize,
    pub capacity: usize,
    /// Most keys a query sees, its own included; `usize::MAX` for all.
    pub window: usize,
}

/// How scores become weights.
#[derive(Clone, Copy, Debug)]
pub struct Softmax<'a> {
    /// Multiplies every score.
    pub scale: f32,
    /// Scaled scores become `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// One more logit per head, `[heads]`, that takes part in the normalisation only.
    pub sinks: Option<&'a [f32]>,
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

/// `out = softmax(q kᵀ * scale) v`, causal: query `t` stands at `p = length - tokens + t` and sees keys up to `p`,
/// the last `window` of them.
///
/// `q` `[tokens, heads, head_dim]`, `out` `[tokens, heads, value_dim]`; `k` `[kv_heads, capacity, head_dim]`, `v`
/// `[kv_heads, capacity, value_dim]`. Query head `h` uses key head `h / (heads / kv_heads)`.
pub fn attention<T: Scalar>(
    shape: AttentionShape,
    q: &[T],
    k: &[T],
    v: &[T],
    softmax: Softmax,
    out: &mut [T],
) {
    let AttentionShape { kv_heads, capacity, value_dim, .. } = shape;
    assert_eq!(v.len(), kv_heads * capacity * value_dim, "values of {shape:?}");
    attend(shape, q, k, Values { rows: v, stride: value_dim, dim: value_dim }, softmax, out);
}

/// As [`attention`], where a key's values are its own first `value_dim` numbers (DeepSeek-V2's latent attention,
/// with queries already projected into the latent space): `kv` `[kv_heads, capacity, head_dim]` serves as both.
pub fn latent_attention<T: Scalar>(
    shape: AttentionShape,
    q: &[T],
    kv: &[T],
    softmax: Softmax,
    out: &mut [T],
) {
    let AttentionShape { head_dim, value_dim, .. } = shape;
    assert!(value_dim <= head_dim, "values inside the keys of {shape:?}");
    attend(shape, q, kv, Values { rows: kv, stride: head_dim, dim: value_dim }, softmax, out);
}

fn attend<T: Scalar>(shape: AttentionShape, q: &[T], k: &[T], v: Values<T>, softmax: Softmax, out: &mut [T]) {
    let AttentionShape { tokens, heads, kv_heads, head_dim, value_dim, length, capacity, window } = shape;
    assert!(tokens <= length && length <= capacity && heads.is_multiple_of(kv_heads), "{shape:?}");
    assert!(window > 0 && head_dim > 0 && value_dim > 0, "{shape:?}");
    assert_eq!(q.len(), tokens * heads * head_dim, "queries of {shape:?}");
    assert_eq!(out.len(), tokens * heads * value_dim, "outputs of {shape:?}");
    assert_eq!(k.len(), kv_heads * capacity * head_dim, "keys of {shape:?}");
    assert!(softmax.sinks.is_none_or(|sinks| sinks.len() == heads), "sinks of {shape:?}");
    let padded = head_dim.next_multiple_of(LANES);
    let q = widen(q, head_dim, LANES);
    let work = tokens * heads * (head_dim + value_dim) * length.min(window);
    // Heads that share keys, TILE at a time; the index of a tile's first query rides along.
    let group = heads / kv_heads;
    let mut tiles: Vec<(usize, &mut [T])> = vec![];
    for (i, out) in out.chunks_mut(group * value_dim).enumerate() {
        let tiled = out.chunks_mut(TILE * value_dim).enumerate();
        tiles.extend(tiled.map(|(j, out)| (i * group + j * TILE, out)));
    }
    for_each_chunk(&mut tiles, 1, work, |_, tile| {
        let [(first, out)] = tile else { unreachable!("chunks of one tile") };
        let (token, head) = (*first / heads, *first % heads);
        let end = length - tokens + token + 1;
        let (buffer, start) = (head / group * capacity, end - end.min(window));
        let count = out.len() / value_dim;
        vectorize(Tile {
            q: &q[*first * padded..][..count * padded],
            k: &k[(buffer + start) * head_dim..(buffer + end) * head_dim],
            v: Values { rows: &v.rows[(buffer + start) * v.stride..(buffer + end) * v.stride], ..v },
            head_dim,
            softmax: Softmax { sinks: softmax.sinks.map(|sinks| &sinks[head..][..count]), ..softmax },
            out,
        });
    });
}

/// Rows of values `stride` apart, of which the first `dim` numbers count.
#[derive(Clone, Copy)]
struct Values<'a, T> {
    rows: &'a [T],
    stride: usize,
    dim: usize,
}

/// Up to TILE query heads of one token that share a key head, against the keys that token sees.
struct Tile<'a, T> {
    /// `[heads, head_dim]`, each head padded to whole lanes.
    q: &'a [f32],
    /// `[keys, head_dim]`
    k: &'a [T],
    v: Values<'a, T>,
    head_dim: usize,
    /// Its sinks are those of these heads.
    softmax: Softmax<'a>,
    out: &'a mut [T],
}

impl<T: Scalar> Work for Tile<'_, T> {
    #[inline(always)]
    fn run(self) {
        match self.out.len() / self.v.dim {
            1 => self.heads::<1>(),
            2 => self.heads::<2>(),
            3 => self.heads::<3>(),
            _ => self.heads::<TILE>(),
        }
    }
}

impl<T: Scalar> Tile<'_, T> {
    #[inline(always)]
    fn heads<const M: usize>(mut self) {
        let keys = self.k.len() / self.head_dim;
        let mut scores = vec![0.0; M * keys];
        self.scores::<M>(&mut scores, keys);
        let mut totals = [0.0; M];
        for (m, scores) in scores.chunks_exact_mut(keys).enumerate() {
            if let Some(cap) = self.softmax.softcap {
                for s in scores.iter_mut() {
                    *s = cap * tanh(*s / cap);
                }
            }
            totals[m] = softmax_numerators(scores, self.softmax.sinks.map(|sinks| sinks[m]));
        }
        self.weighted_values::<M>(&scores, &totals, keys);
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
                scores[m * keys + j] = reduce(sum) * self.softmax.scale;
            }
        }
    }

    #[inline(always)]
    fn weighted_values<const M: usize>(&mut self, scores: &[f32], totals: &[f32; M], keys: usize) {
        let Values { rows, stride, dim } = self.v;
        for chunk in 0..dim.div_ceil(LANES) {
            let mut sums = [[0.0; LANES]; M];
            for (j, row) in rows.chunks_exact(stride).enumerate() {
                let value = load_scalar(&row[..dim], chunk);
                for (m, sum) in sums.iter_mut().enumerate() {
                    fma(sum, &[scores[m * keys + j]; LANES], &value);
                }
            }
            for m in 0..M {
                let out = &mut self.out[m * dim..][..dim][chunk * LANES..];
                for (out, sum) in out.iter_mut().zip(&sums[m]) {
                    *out = T::from_f32(sum / totals[m]);
                }
            }
        }
    }
}

/// Replaces scores by `exp(score - max)` and returns their sum, the sink's term included.
#[inline(always)]
fn softmax_numerators(scores: &mut [f32], sink: Option<f32>) -> f32 {
    let mut max = sink.unwrap_or(f32::NEG_INFINITY);
    for s in scores.iter() {
        max = max.max(*s);
    }
    for s in scores.iter_mut() {
        *s = exp(*s - max);
    }
    let mut sums = [0.0; LANES];
    for chunk in scores.chunks(LANES) {
        for (sum, s) in sums.iter_mut().zip(chunk) {
            *sum += s;
        }
    }
    reduce(&sums) + sink.map_or(0.0, |sink| exp(sink - max))
}

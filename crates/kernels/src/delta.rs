//! The gated delta rule, evaluated token by token in the same order in prefill and decode.

use crate::{
    lanes::{LANES, dot, fma, load},
    parallel::for_each_chunk,
    scalar::{Scalar, widen},
    simd::{Work, vectorize},
};

/// Sizes of one call; `value_heads` is a multiple of `key_heads`.
#[derive(Clone, Copy, Debug)]
pub struct DeltaShape {
    pub tokens: usize,
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
}

/// Per token and head: `S *= g; S += beta * (v - S k) kᵀ; out = S q` (Yang et al., "Gated Delta Networks", 2024).
///
/// `q`, `k` `[tokens, key_heads, key_dim]`; `v`, `out` `[tokens, value_heads, value_dim]`; `beta`
/// `[tokens, value_heads]`; `state` `[value_heads, value_dim, key_dim]`, updated in place. Value head `h` uses key
/// head `h / (value_heads / key_heads)`. `g` is either one decay per head, `[tokens, value_heads]`, or one per key
/// channel, `[tokens, value_heads, key_dim]` (`S[:, j] *= g[j]`, Kimi Team, "Kimi Linear", 2025).
pub fn gated_delta<T: Scalar>(
    shape: DeltaShape,
    [q, k, v]: [&[T]; 3],
    g: &[f32],
    beta: &[f32],
    state: &mut [f32],
    out: &mut [T],
) {
    let DeltaShape { tokens, key_heads, value_heads, key_dim, value_dim } = shape;
    assert_eq!(state.len(), value_heads * value_dim * key_dim, "state of {shape:?}");
    assert_eq!(
        (q.len(), k.len(), v.len(), out.len()),
        (
            tokens * key_heads * key_dim,
            tokens * key_heads * key_dim,
            tokens * value_heads * value_dim,
            tokens * value_heads * value_dim
        ),
        "inputs of {shape:?}"
    );
    let per_head = tokens * value_heads;
    let by_channel = g.len() != per_head;
    assert!(!by_channel || g.len() == per_head * key_dim, "{} decays for {shape:?}", g.len());
    assert_eq!(beta.len(), per_head, "beta of {shape:?}");
    if tokens == 0 {
        return;
    }
    let padded = key_dim.next_multiple_of(LANES);
    let (q, k) = (widen(q, key_dim, LANES), widen(k, key_dim, LANES));
    let channels = if by_channel { widen(g, key_dim, LANES) } else { vec![] };
    let g = if by_channel { Decays::Channels(&channels) } else { Decays::Heads(g) };
    // One piece of memory per head: its output behind its state.
    let (states, outputs) = (value_dim * key_dim, tokens * value_dim);
    let mut heads = vec![0.0f32; value_heads * (states + outputs)];
    for (to, from) in heads.chunks_exact_mut(states + outputs).zip(state.chunks_exact(states)) {
        to[..states].copy_from_slice(from);
    }
    for_each_chunk(&mut heads, states + outputs, 4 * tokens * value_heads * states, |head, memory| {
        let (state, out) = memory.split_at_mut(states);
        vectorize(Head { shape, head, padded, q: &q, k: &k, v, g, beta, state, out });
    });
    for (head, memory) in heads.chunks_exact(states + outputs).enumerate() {
        state[head * states..][..states].copy_from_slice(&memory[..states]);
        for (token, from) in memory[states..].chunks_exact(value_dim).enumerate() {
            let out = &mut out[(token * value_heads + head) * value_dim..][..value_dim];
            out.iter_mut().zip(from).for_each(|(out, &value)| *out = T::from_f32(value));
        }
    }
}

/// Factors on the state: of each head, or of each of its padded key channels.
#[derive(Clone, Copy)]
enum Decays<'a> {
    Heads(&'a [f32]),
    Channels(&'a [f32]),
}

struct Head<'a, T> {
    shape: DeltaShape,
    head: usize,
    padded: usize,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [T],
    g: Decays<'a>,
    beta: &'a [f32],
    state: &'a mut [f32],
    out: &'a mut [f32],
}

impl<T: Scalar> Work for Head<'_, T> {
    #[inline(always)]
    fn run(self) {
        let DeltaShape { tokens, key_heads, value_heads, key_dim, value_dim } = self.shape;
        let key_head = self.head / (value_heads / key_heads);
        let mut rows = widen(self.state, key_dim, LANES);
        for t in 0..tokens {
            let q = &self.q[(t * key_heads + key_head) * self.padded..][..self.padded];
            let k = &self.k[(t * key_heads + key_head) * self.padded..][..self.padded];
            let at = t * value_heads + self.head;
            let v = &self.v[at * value_dim..][..value_dim];
            let out = &mut self.out[t * value_dim..][..value_dim];
            for ((row, v), out) in rows.chunks_exact_mut(self.padded).zip(v).zip(out) {
                self.g.apply(row, at);
                *out = step(row, q, k, v.to_f32(), self.beta[at]);
            }
        }
        for (to, from) in self.state.chunks_exact_mut(key_dim).zip(rows.chunks_exact(self.padded)) {
            to.copy_from_slice(&from[..key_dim]);
        }
    }
}

impl Decays<'_> {
    /// Decays one row of the state; `at` counts heads over all tokens.
    #[inline(always)]
    fn apply(self, row: &mut [f32], at: usize) {
        match self {
            Decays::Heads(g) => {
                for s in row {
                    *s *= g[at];
                }
            }
            Decays::Channels(g) => {
                let g = &g[at * row.len()..][..row.len()];
                for (s, g) in row.iter_mut().zip(g) {
                    *s *= g;
                }
            }
        }
    }
}

/// One row of the decayed state through one token.
#[inline(always)]
fn step(row: &mut [f32], q: &[f32], k: &[f32], v: f32, beta: f32) -> f32 {
    let delta = [(v - dot(row, k)) * beta; LANES];
    for chunk in 0..row.len() / LANES {
        let mut lanes = load(row, chunk);
        fma(&mut lanes, &delta, &load(k, chunk));
        row[chunk * LANES..][..LANES].copy_from_slice(&lanes);
    }
    dot(row, q)
}

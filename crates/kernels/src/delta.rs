//! The gated delta rule, evaluated token by token in the same order in prefill and decode.

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "vectors of one family of instructions")]
mod avx2;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "vectors of one family of instructions")]
mod avx512;

use std::ops::Range;

use crate::{
    lanes::{LANES, dot, reduce},
    parallel::{for_each_chunk, threads},
    scalar::Scalar,
    shared::{Aligned, Parts, prefetch, with_scratch},
    simd::{SimdLevel, Work, simd_level, vectorize},
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
///
/// What is rounded, in this order: `g k`; `S (g k)`, and from it `delta`; `S g`, to which `delta kᵀ` is added; `S q`.
pub fn gated_delta<T: Scalar>(
    shape: DeltaShape,
    [q, k, v]: [&[T]; 3],
    g: &[f32],
    beta: &[f32],
    state: &mut [f32],
    out: &mut [T],
) {
    let (keys, values, width) = (shape.keys(), shape.values(), shape.width());
    let parts = [(q, keys), (k, keys), (v, values)];
    for (x, width) in parts {
        assert_eq!(x.len(), shape.tokens * width, "inputs of {shape:?}");
    }
    with_scratch(shape.tokens * width, |qkv| {
        for_each_chunk(qkv, width, shape.tokens * width, |t, mut to| {
            for (x, width) in parts {
                let part;
                (part, to) = to.split_at_mut(width);
                vectorize(Widen { from: &x[t * width..][..width], to: part });
            }
        });
        let tokens = DeltaTokens { qkv, g, beta };
        gated_delta_speculative(shape, shape.tokens, [DeltaTokens::default(), tokens], state, None, out);
    });
}

/// Tokens as [`gated_delta`] has them, but `qkv` `[tokens, width]`: each one's queries, keys and values side by side.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeltaTokens<'a> {
    pub qkv: &'a [f32],
    pub g: &'a [f32],
    pub beta: &'a [f32],
}

/// As [`gated_delta`], but the `tokens` come behind those of `before`, which the state has not taken in yet and whose
/// outputs nobody asks for, and only the first `certain` of them are there to stay: `state` becomes what it is behind
/// these, while `out` is that of all, and `behind` what the state is behind all. All bits are those of one token at a time.
pub fn gated_delta_speculative<T: Scalar>(
    shape: DeltaShape,
    certain: usize,
    [before, tokens]: [DeltaTokens; 2],
    state: &mut [f32],
    behind: Option<&mut [f32]>,
    out: &mut [T],
) {
    let DeltaShape { value_heads, key_dim, value_dim, .. } = shape;
    assert_eq!(state.len(), value_heads * value_dim * key_dim, "state of {shape:?}");
    assert!(behind.as_ref().is_none_or(|behind| behind.len() == state.len()), "states differ in length");
    assert_eq!(tokens.count(shape), shape.tokens, "gates of {shape:?}");
    assert_eq!(out.len(), shape.tokens * shape.values(), "outputs of {shape:?}");
    assert!(certain <= shape.tokens, "{certain} of {} tokens are certain", shape.tokens);
    let by_channel = [before, tokens].iter().any(|tokens| tokens.g.len() != tokens.beta.len());
    for tokens in [before, tokens] {
        let heads = tokens.count(shape) * value_heads;
        assert_eq!(tokens.qkv.len(), tokens.count(shape) * shape.width(), "inputs of {shape:?}");
        assert_eq!(tokens.g.len(), heads * if by_channel { key_dim } else { 1 }, "decays of {shape:?}");
        assert_eq!(tokens.beta.len(), heads, "beta of {shape:?}");
    }
    let count = before.count(shape) + shape.tokens;
    let (out, state, behind) = (Parts::new(out), Parts::new(state), behind.map(Parts::new));
    let slice = shape.slice();
    let call =
        Call { shape, slice, certain, before, tokens, by_channel, level: simd_level(), out, state, behind };
    let work = 4 * count * shape.values() * key_dim;
    let mut tasks: Vec<usize> = (0..value_heads * value_dim.div_ceil(slice)).collect();
    for_each_chunk(&mut tasks, 1, work, |_, task| {
        with_scratch(slice * key_dim, |copy| vectorize(Slice { call: &call, task: task[0], copy }));
    });
}

impl DeltaShape {
    fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Rows of a head's state that one thread takes through all tokens: as many as stay in its cache, unless threads would have
    /// nothing to do.
    fn slice(&self) -> usize {
        let most = (SLICE / self.key_dim.max(1)).clamp(TOGETHER, ROWS);
        let each = (self.value_heads * self.value_dim).div_ceil(threads());
        most.min(each.next_multiple_of(TOGETHER))
    }

    /// Queries, keys and values of a token.
    fn width(&self) -> usize {
        2 * self.keys() + self.values()
    }
}

impl DeltaTokens<'_> {
    fn count(&self, shape: DeltaShape) -> usize {
        self.beta.len() / shape.value_heads
    }
}

/// Numbers of a state that stay in a thread's innermost cache while it takes them through all tokens.
const SLICE: usize = 4096;
/// Most rows of a slice.
const ROWS: usize = 64;
/// Keys for which there is room on the stack.
const KEYS: usize = 128;
/// Slices are so many rows, or a multiple: as many as AVX-512 sums up together.
const TOGETHER: usize = LANES;

/// What one call was given.
struct Call<'a, T> {
    shape: DeltaShape,
    /// Rows of a head's state that one thread takes through all tokens.
    slice: usize,
    certain: usize,
    before: DeltaTokens<'a>,
    tokens: DeltaTokens<'a>,
    by_channel: bool,
    level: SimdLevel,
    out: Parts<'a, T>,
    state: Parts<'a, f32>,
    behind: Option<Parts<'a, f32>>,
}

struct Slice<'a, T> {
    call: &'a Call<'a, T>,
    task: usize,
    /// Room for its rows of the state.
    copy: &'a mut [f32],
}

impl<T: Scalar> Work for Slice<'_, T> {
    #[inline(always)]
    #[allow(unsafe_code, reason = "slices write parts of their own")]
    fn run(self) {
        let Call { shape, slice, certain, before, by_channel, level, ref state, ref behind, .. } = *self.call;
        let DeltaShape { tokens, key_dim, value_dim, .. } = shape;
        let per_head = value_dim.div_ceil(slice);
        let (head, first) = (self.task / per_head, self.task % per_head * slice);
        let rows = (value_dim - first).min(slice);
        let at = (head * value_dim + first) * key_dim;
        // SAFETY: each row of a state belongs to one task.
        let state = unsafe { state.part(at, rows * key_dim) };
        let place = Place { shape, head, first, by_channel, level };
        let earlier = before.count(shape);
        place.walk::<false, true>(0..earlier, before, state, |_, _| {});
        self.call.tokens::<true>(place, 0..certain, state);
        let ahead = certain..tokens;
        // SAFETY: as above.
        let behind = behind.as_ref().map(|behind| unsafe { behind.part(at, rows * key_dim) });
        if ahead.is_empty() && behind.is_none() {
            return;
        }
        if ahead.len() == 1 && behind.is_none() && place.can_spare_writes(rows) {
            return self.call.tokens::<false>(place, ahead, state);
        }
        let copy = behind.unwrap_or(&mut self.copy[..state.len()]);
        copy.copy_from_slice(state);
        self.call.tokens::<true>(place, ahead, copy);
    }
}

impl<T: Scalar> Call<'_, T> {
    /// The rows through some of the tokens; without `KEEP`, which is for a single one, the state stays as it was.
    #[inline(always)]
    #[allow(unsafe_code, reason = "slices write parts of their own")]
    fn tokens<const KEEP: bool>(&self, place: Place, range: Range<usize>, state: &mut [f32]) {
        let Call { tokens, ref out, .. } = *self;
        place.walk::<true, KEEP>(range, tokens, state, |at: usize, values: &[f32]| {
            // SAFETY: each row of values belongs to one task.
            let out = unsafe { out.part(at, values.len()) };
            for (to, from) in out.iter_mut().zip(values) {
                *to = T::from_f32(*from);
            }
        });
    }
}

/// Some rows of a head.
#[derive(Clone, Copy)]
struct Place {
    shape: DeltaShape,
    head: usize,
    first: usize,
    by_channel: bool,
    level: SimdLevel,
}

impl Place {
    /// Whether a token can go by without the state being written.
    #[inline(always)]
    fn can_spare_writes(self, rows: usize) -> bool {
        let whole = self.shape.key_dim.is_multiple_of(LANES) && rows.is_multiple_of(TOGETHER);
        self.level > SimdLevel::Portable && whole
    }

    /// The rows through the tokens `range`; `write` gets where each one's outputs begin, and those, with `OUT`. The state
    /// becomes what it is behind them with `KEEP`.
    #[inline(always)]
    fn walk<const OUT: bool, const KEEP: bool>(
        self,
        range: Range<usize>,
        tokens: DeltaTokens,
        state: &mut [f32],
        write: impl Fn(usize, &[f32]),
    ) {
        if range.is_empty() {
            return;
        }
        let Place { shape, head, first, by_channel, level } = self;
        let DeltaShape { value_heads, key_dim, value_dim, .. } = shape;
        let rows = state.len() / key_dim;
        // Decays of one token, and its decayed keys.
        let (mut few, mut many) = (Aligned([0.0; 2 * KEYS]), vec![]);
        let factors = if key_dim <= KEYS {
            &mut few.0[..2 * key_dim]
        } else {
            many.resize(2 * key_dim, 0.0);
            &mut many[..]
        };
        let (decay, decayed) = factors.split_at_mut(key_dim);
        let mut values = [0.0; ROWS];
        for t in range {
            let [q, k, v] = self.inputs(tokens, t, rows);
            let at = t * value_heads + head;
            match by_channel {
                true => decay.copy_from_slice(&tokens.g[at * key_dim..][..key_dim]),
                false => decay.fill(tokens.g[at]),
            }
            for ((to, g), k) in decayed.iter_mut().zip(&*decay).zip(k) {
                *to = g * k;
            }
            if t + 1 < tokens.count(shape) {
                // Tokens lie too far apart for the processor to guess.
                for next in self.inputs(tokens, t + 1, rows) {
                    prefetch(next);
                }
            }
            values[..rows].copy_from_slice(v);
            let token = Token { q, k, decay, decayed, beta: tokens.beta[at] };
            token.step::<OUT, KEEP>(state, &mut values[..rows], level);
            write(at * value_dim + first, &values[..rows]);
        }
    }

    /// Token `t`'s query, key and values for so many rows.
    #[inline(always)]
    fn inputs<'a>(self, tokens: DeltaTokens<'a>, t: usize, rows: usize) -> [&'a [f32]; 3] {
        let Place { shape, head, first, .. } = self;
        let (q, rest) = tokens.qkv[t * shape.width()..][..shape.width()].split_at(shape.keys());
        let key = head / (shape.value_heads / shape.key_heads) * shape.key_dim;
        let value = shape.keys() + head * shape.value_dim + first;
        [&q[key..][..shape.key_dim], &rest[key..][..shape.key_dim], &rest[value..][..rows]]
    }
}

/// What the rows of a head share at one token: `[key_dim]` each.
#[derive(Clone, Copy)]
struct Token<'a> {
    q: &'a [f32],
    k: &'a [f32],
    decay: &'a [f32],
    /// `decay * k`
    decayed: &'a [f32],
    beta: f32,
}

impl Token<'_> {
    /// Rows of the state through the token; `values` become outputs, or nothing in particular without `OUT`. The state is
    /// not written without `KEEP`, where that [can be spared](Place::can_spare_writes).
    #[inline(always)]
    #[allow(unsafe_code, reason = "entering functions compiled for some instructions")]
    fn step<const OUT: bool, const KEEP: bool>(
        &self,
        state: &mut [f32],
        values: &mut [f32],
        level: SimdLevel,
    ) {
        let key_dim = self.k.len();
        let done = match level {
            _ if !key_dim.is_multiple_of(LANES) => 0,
            SimdLevel::Portable => 0,
            // SAFETY: the processor has the features, and rows are whole vectors.
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2 => unsafe { avx2::step::<OUT, KEEP>(self, state, values) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            _ => unsafe { avx512::step::<OUT, KEEP>(self, state, values) },
            #[cfg(not(target_arch = "x86_64"))]
            _ => 0,
        };
        // Not skipped to by the iterator: that would be left out of line, see [`Work`].
        for (row, value) in state[done * key_dim..].chunks_exact_mut(key_dim).zip(&mut values[done..]) {
            *value = match key_dim.is_multiple_of(LANES) {
                true => self.row::<OUT>(row, *value),
                false => self.ragged_row::<OUT>(row, *value),
            };
        }
    }

    /// One row, of whole vectors.
    #[inline(always)]
    fn row<const OUT: bool>(&self, row: &mut [f32], v: f32) -> f32 {
        let delta = (v - dot(row, self.decayed)) * self.beta;
        for ((s, k), g) in row.iter_mut().zip(self.k).zip(self.decay) {
            *s = delta.mul_add(*k, *s * g);
        }
        if OUT { dot(row, self.q) } else { delta }
    }

    /// As [`row`](Token::row), of any length.
    #[inline(always)]
    fn ragged_row<const OUT: bool>(&self, row: &mut [f32], v: f32) -> f32 {
        let mut sums = [0.0; LANES];
        for (j, s) in row.iter().enumerate() {
            sums[j % LANES] = s.mul_add(self.decayed[j], sums[j % LANES]);
        }
        let delta = (v - reduce(&sums)) * self.beta;
        let mut sums = [0.0; LANES];
        for (j, s) in row.iter_mut().enumerate() {
            *s = delta.mul_add(self.k[j], *s * self.decay[j]);
            if OUT {
                sums[j % LANES] = s.mul_add(self.q[j], sums[j % LANES]);
            }
        }
        reduce(&sums)
    }
}

struct Widen<'a, T> {
    from: &'a [T],
    to: &'a mut [f32],
}

impl<T: Scalar> Work for Widen<'_, T> {
    #[inline(always)]
    fn run(self) {
        for (to, from) in self.to.iter_mut().zip(self.from) {
            *to = from.to_f32();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_together_are_rows_one_by_one() {
        let number = |i: usize| (i * i * 31 % 1009) as f32 / 1009.0 - 0.5;
        let numbers = |seed: usize, n: usize| -> Vec<f32> { (seed..seed + n).map(number).collect() };
        let (q, k, decay, state) = (numbers(1, 48), numbers(60, 48), numbers(120, 48), numbers(200, 39 * 48));
        let decayed: Vec<f32> = decay.iter().zip(&k).map(|(g, k)| g * k).collect();
        let token = Token { q: &q, k: &k, decay: &decay, decayed: &decayed, beta: 0.7 };
        let run = |level: SimdLevel| {
            let (mut state, mut values) = (state.clone(), numbers(900, 39));
            token.step::<true, true>(&mut state, &mut values, level);
            (state, values)
        };
        assert_eq!(run(simd_level()), run(SimdLevel::Portable));
    }
}

//! The gated delta rule, evaluated token by token in the same order in prefill and decode.

use std::ops::Range;

use crate::{
    lanes::{LANES, dot, reduce},
    panel::wide_registers,
    parallel::{for_each_chunk, threads},
    scalar::Scalar,
    shared::{Aligned, Parts, prefetch, with_scratch},
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
        gated_delta_ahead(shape, shape.tokens, [DeltaTokens::default(), tokens], state, None, out);
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
pub fn gated_delta_ahead<T: Scalar>(
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
    let call = Call {
        shape,
        slice,
        certain,
        before,
        tokens,
        by_channel,
        wide: wide_registers(),
        out,
        state,
        behind,
    };
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
/// Rows whose vectors are summed up together.
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
    wide: bool,
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
        let Call { shape, slice, certain, before, by_channel, wide, ref state, ref behind, .. } = *self.call;
        let DeltaShape { tokens, key_dim, value_dim, .. } = shape;
        let per_head = value_dim.div_ceil(slice);
        let (head, first) = (self.task / per_head, self.task % per_head * slice);
        let rows = (value_dim - first).min(slice);
        let at = (head * value_dim + first) * key_dim;
        // SAFETY: each row of a state belongs to one task.
        let state = unsafe { state.part(at, rows * key_dim) };
        let place = Place { shape, head, first, by_channel, wide };
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
    wide: bool,
}

impl Place {
    /// Whether a token can go by without the state being written.
    #[inline(always)]
    fn can_spare_writes(self, rows: usize) -> bool {
        self.wide && self.shape.key_dim.is_multiple_of(LANES) && rows.is_multiple_of(TOGETHER)
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
        let Place { shape, head, first, by_channel, wide } = self;
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
            token.step::<OUT, KEEP>(state, &mut values[..rows], wide);
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
    #[allow(unsafe_code, reason = "entering functions compiled for AVX-512")]
    fn step<const OUT: bool, const KEEP: bool>(&self, state: &mut [f32], values: &mut [f32], wide: bool) {
        let key_dim = self.k.len();
        let mut done = 0;
        #[cfg(target_arch = "x86_64")]
        if wide && key_dim.is_multiple_of(LANES) {
            // First all rows are read, then all are written: no row waits for the sums of the one before.
            let values = values.as_chunks_mut::<TOGETHER>().0;
            done = TOGETHER * values.len();
            for (state, values) in state.chunks_exact(TOGETHER * key_dim).zip(&mut *values) {
                // SAFETY: `wide` says that the processor has AVX-512; so many rows of whole vectors.
                unsafe { self.read(state, values) };
            }
            for (state, values) in state.chunks_exact_mut(TOGETHER * key_dim).zip(values) {
                // SAFETY: as above.
                unsafe { self.write::<OUT, KEEP>(state, values) };
            }
        }
        let _ = wide;
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

    /// The first half of [`row`](Token::row), to the bit, for rows that share loads and the work of summing up: `values`
    /// become deltas.
    ///
    /// # Safety
    /// So many rows of whole vectors.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    #[allow(unsafe_code, reason = "loads of whole vectors")]
    unsafe fn read(&self, state: &[f32], values: &mut [f32; TOGETHER]) {
        use std::arch::x86_64::*;
        let key_dim = self.decayed.len();
        assert!(state.len() == TOGETHER * key_dim);
        // SAFETY: all reads end at key_dim, of rows key_dim apart.
        unsafe {
            let mut sums = [_mm512_setzero_ps(); TOGETHER];
            for at in (0..key_dim).step_by(LANES) {
                let k = _mm512_loadu_ps(self.decayed.as_ptr().add(at));
                for (r, sum) in sums.iter_mut().enumerate() {
                    let s = _mm512_loadu_ps(state.as_ptr().add(r * key_dim + at));
                    *sum = _mm512_fmadd_ps(s, k, *sum);
                }
            }
            let v = _mm512_sub_ps(_mm512_loadu_ps(values.as_ptr()), reduce_all(&sums));
            _mm512_storeu_ps(values.as_mut_ptr(), _mm512_mul_ps(v, _mm512_set1_ps(self.beta)));
        }
    }

    /// The second half: deltas become outputs.
    ///
    /// # Safety
    /// So many rows of whole vectors.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    #[inline]
    #[allow(unsafe_code, reason = "loads and stores of whole vectors")]
    unsafe fn write<const OUT: bool, const KEEP: bool>(
        &self,
        state: &mut [f32],
        values: &mut [f32; TOGETHER],
    ) {
        use std::arch::x86_64::*;
        let key_dim = self.k.len();
        assert!(state.len() == TOGETHER * key_dim && self.q.len() == key_dim && self.decay.len() == key_dim);
        let state = state.as_mut_ptr();
        // SAFETY: all reads and writes end at key_dim, of rows key_dim apart.
        unsafe {
            let mut sums = [_mm512_setzero_ps(); TOGETHER];
            for at in (0..key_dim).step_by(LANES) {
                let k = _mm512_loadu_ps(self.k.as_ptr().add(at));
                let q = _mm512_loadu_ps(self.q.as_ptr().add(at));
                let decay = _mm512_loadu_ps(self.decay.as_ptr().add(at));
                for r in 0..TOGETHER {
                    let s = _mm512_mul_ps(_mm512_loadu_ps(state.add(r * key_dim + at)), decay);
                    let s = _mm512_fmadd_ps(_mm512_set1_ps(values[r]), k, s);
                    if KEEP {
                        _mm512_storeu_ps(state.add(r * key_dim + at), s);
                    }
                    if OUT {
                        sums[r] = _mm512_fmadd_ps(s, q, sums[r]);
                    }
                }
            }
            if OUT {
                _mm512_storeu_ps(values.as_mut_ptr(), reduce_all(&sums));
            }
        }
    }
}

/// [`reduce`] of each vector. Two that are half as wide become one, whose sums go on together.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
fn reduce_all(sums: &[std::arch::x86_64::__m512; TOGETHER]) -> std::arch::x86_64::__m512 {
    use std::arch::x86_64::*;
    // Lanes 8 apart; each half is a row.
    let halves = |a: __m512, b: __m512| {
        _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b))
    };
    // 4 apart; each quarter is a row.
    let quarters = |r: usize| {
        let (a, b) = (halves(sums[r], sums[r + 1]), halves(sums[r + 2], sums[r + 3]));
        _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b))
    };
    // 2 apart; each quarter is of rows 4 apart.
    let pairs = |r: usize| {
        let (a, b) = (_mm512_castps_pd(quarters(r)), _mm512_castps_pd(quarters(r + 4)));
        let (low, high) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
        _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
    };
    let (a, b) = (pairs(0), pairs(8));
    let turned = _mm512_add_ps(_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b));
    let rows = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_permutexvar_ps(rows, turned)
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
        let run = |wide: bool| {
            let (mut state, mut values) = (state.clone(), numbers(900, 39));
            token.step::<true, true>(&mut state, &mut values, wide);
            (state, values)
        };
        assert_eq!(run(wide_registers()), run(false));
    }
}

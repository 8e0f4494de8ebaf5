//! The gated delta rule, evaluated token by token, in the same order in prefill and decode.

mod slice;
pub(crate) mod token;
mod update;

use slice::{DeltaCall, StateSlice, slice_rows};

use crate::{
    disjoint::DisjointMut,
    memory::with_scratch,
    parallel::for_each_chunk,
    scalar::Scalar,
    simd::{WithSimd, dispatch, simd_level},
};

/// Sizes of one call. `value_heads` is a multiple of `key_heads`.
#[derive(Clone, Copy, Debug)]
pub struct DeltaShape {
    pub tokens: usize,
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
}

/// Per token and head: `S *= g; S += beta * (v - S k) kᵀ; out = S q` (Yang et al., "Gated Delta
/// Networks", 2024).
///
/// `q`, `k` `[tokens, key_heads, key_dim]`; `v`, `out` `[tokens, value_heads, value_dim]`; `beta`
/// `[tokens, value_heads]`; `state` `[value_heads, value_dim, key_dim]`, updated in place. Value
/// head `h` uses key head `h / (value_heads / key_heads)`. `g` is either one decay per head,
/// `[tokens, value_heads]`, or one per key channel, `[tokens, value_heads, key_dim]`
/// (`S[:, j] *= g[j]`, Kimi Team, "Kimi Linear", 2025).
///
/// Order of rounding: `g k`; `S (g k)`, and `delta` from it; `S g`, plus `delta kᵀ`; `S q`.
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
                dispatch(Widen { from: &x[t * width..][..width], to: part });
            }
        });
        let tokens = DeltaTokens { qkv, g, beta };
        gated_delta_speculative(shape, shape.tokens, [DeltaTokens::default(), tokens], state, None, out);
    });
}

/// Tokens of [`gated_delta`], but `qkv` `[tokens, width]`: queries, keys and values of each token
/// side by side.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeltaTokens<'a> {
    pub qkv: &'a [f32],
    pub g: &'a [f32],
    pub beta: &'a [f32],
}

/// [`gated_delta`] for speculative decoding. `tokens` follow the `uncommitted` tokens of earlier
/// steps, which `state` does not include yet and whose outputs are not needed. Only the first
/// `num_committed` of `tokens` are final: `state` becomes the state after those, `final_state` the
/// state after all tokens; `out` is that of all `tokens`. Bits are those of one token at a time.
pub fn gated_delta_speculative<T: Scalar>(
    shape: DeltaShape,
    num_committed: usize,
    [uncommitted, tokens]: [DeltaTokens; 2],
    state: &mut [f32],
    final_state: Option<&mut [f32]>,
    out: &mut [T],
) {
    let DeltaShape { value_heads, key_dim, value_dim, .. } = shape;
    assert_eq!(state.len(), value_heads * value_dim * key_dim, "state of {shape:?}");
    assert!(final_state.as_ref().is_none_or(|last| last.len() == state.len()), "states differ in length");
    assert_eq!(tokens.count(shape), shape.tokens, "gates of {shape:?}");
    assert_eq!(out.len(), shape.tokens * shape.values(), "outputs of {shape:?}");
    assert!(num_committed <= shape.tokens, "{num_committed} of {} tokens are committed", shape.tokens);
    let by_channel = [uncommitted, tokens].iter().any(|tokens| tokens.g.len() != tokens.beta.len());
    for tokens in [uncommitted, tokens] {
        let heads = tokens.count(shape) * value_heads;
        assert_eq!(tokens.qkv.len(), tokens.count(shape) * shape.width(), "inputs of {shape:?}");
        assert_eq!(tokens.g.len(), heads * if by_channel { key_dim } else { 1 }, "decays of {shape:?}");
        assert_eq!(tokens.beta.len(), heads, "beta of {shape:?}");
    }
    let count = uncommitted.count(shape) + shape.tokens;
    let rows = slice_rows(&shape);
    let call = DeltaCall {
        shape,
        slice_rows: rows,
        num_committed,
        uncommitted,
        tokens,
        by_channel,
        level: simd_level(),
        out: DisjointMut::new(out),
        state: DisjointMut::new(state),
        final_state: final_state.map(DisjointMut::new),
    };
    let work = 4 * count * shape.values() * key_dim;
    let mut tasks: Vec<usize> = (0..value_heads * value_dim.div_ceil(rows)).collect();
    for_each_chunk(&mut tasks, 1, work, |_, task| {
        with_scratch(rows * key_dim, |copy| dispatch(StateSlice { call: &call, task: task[0], copy }));
    });
}

impl DeltaShape {
    #[inline]
    fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    #[inline]
    fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Queries, keys and values of a token.
    #[inline]
    fn width(&self) -> usize {
        2 * self.keys() + self.values()
    }
}

impl DeltaTokens<'_> {
    #[inline]
    fn count(&self, shape: DeltaShape) -> usize {
        self.beta.len() / shape.value_heads
    }
}

struct Widen<'a, T> {
    from: &'a [T],
    to: &'a mut [f32],
}

impl<T: Scalar> WithSimd for Widen<'_, T> {
    #[inline(always)]
    fn run(self) {
        for (to, from) in self.to.iter_mut().zip(self.from) {
            *to = from.to_f32();
        }
    }
}

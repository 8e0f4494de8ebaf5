//! A slice of a state, which one thread updates with all tokens.

use std::ops::Range;

use super::{DeltaShape, DeltaTokens, token::Token, update::update_rows};
use crate::{
    disjoint::DisjointMut,
    lanes::LANES,
    memory::{Aligned, prefetch},
    parallel::threads,
    scalar::Scalar,
    simd::{SimdLevel, WithSimd},
};

/// Elements of a slice that stay in the first-level cache for all tokens.
const SLICE_ELEMENTS: usize = 4096;
/// Most rows of a slice.
const MAX_SLICE_ROWS: usize = 64;
/// Key dimensions up to this one need no heap memory.
const STACK_KEY_DIM: usize = 128;
/// Slices are multiples of this many rows, which AVX-512 updates together.
const ROW_GROUP: usize = LANES;

/// Rows of a head's state in a slice: as many as stay in the cache, unless threads would be idle.
pub(super) fn slice_rows(shape: &DeltaShape) -> usize {
    let max = (SLICE_ELEMENTS / shape.key_dim.max(1)).clamp(ROW_GROUP, MAX_SLICE_ROWS);
    let per_thread = (shape.value_heads * shape.value_dim).div_ceil(threads());
    max.min(per_thread.next_multiple_of(ROW_GROUP))
}

/// The arguments of [`gated_delta_speculative`](super::gated_delta_speculative).
pub(super) struct DeltaCall<'a, T> {
    pub shape: DeltaShape,
    pub slice_rows: usize,
    pub num_committed: usize,
    pub uncommitted: DeltaTokens<'a>,
    pub tokens: DeltaTokens<'a>,
    pub by_channel: bool,
    pub level: SimdLevel,
    pub out: DisjointMut<'a, T>,
    pub state: DisjointMut<'a, f32>,
    pub final_state: Option<DisjointMut<'a, f32>>,
}

/// All tokens of a call on slice `task`.
pub(super) struct StateSlice<'a, T> {
    pub call: &'a DeltaCall<'a, T>,
    pub task: usize,
    /// Memory for a copy of its rows.
    pub copy: &'a mut [f32],
}

impl<T: Scalar> WithSimd for StateSlice<'_, T> {
    #[inline(always)]
    fn run(self) {
        let DeltaCall { shape, slice_rows, num_committed, by_channel, level, .. } = *self.call;
        let DeltaCall { uncommitted, ref state, ref final_state, .. } = *self.call;
        let DeltaShape { tokens, key_dim, value_dim, .. } = shape;
        let per_head = value_dim.div_ceil(slice_rows);
        let (head, first) = (self.task / per_head, self.task % per_head * slice_rows);
        let rows = (value_dim - first).min(slice_rows);
        let at = (head * value_dim + first) * key_dim;
        // SAFETY: each row of a state belongs to one task.
        let state = unsafe { state.part(at, rows * key_dim) };
        let slice = HeadRows { shape, head, first, by_channel, level };
        slice.walk::<false, true>(0..uncommitted.count(shape), uncommitted, state, |_, _| {});
        self.call.update::<true>(slice, 0..num_committed, state);
        let draft = num_committed..tokens;
        // SAFETY: as above.
        let final_state = final_state.as_ref().map(|last| unsafe { last.part(at, rows * key_dim) });
        if draft.is_empty() && final_state.is_none() {
            return;
        }
        if draft.len() == 1 && final_state.is_none() && slice.can_skip_state_writes(rows) {
            return self.call.update::<false>(slice, draft, state);
        }
        let copy = final_state.unwrap_or(&mut self.copy[..state.len()]);
        copy.copy_from_slice(state);
        self.call.update::<true>(slice, draft, copy);
    }
}

impl<T: Scalar> DeltaCall<'_, T> {
    /// Updates the rows with some tokens and writes their outputs. Without `KEEP`, for a single
    /// token, the state is left unchanged.
    #[inline(always)]
    fn update<const KEEP: bool>(&self, slice: HeadRows, range: Range<usize>, state: &mut [f32]) {
        let DeltaCall { tokens, ref out, .. } = *self;
        slice.walk::<true, KEEP>(range, tokens, state, |at: usize, values: &[f32]| {
            // SAFETY: each row of values belongs to one task.
            let out = unsafe { out.part(at, values.len()) };
            for (to, from) in out.iter_mut().zip(values) {
                *to = T::from_f32(*from);
            }
        });
    }
}

/// Rows of a head's state from row `first`.
#[derive(Clone, Copy)]
struct HeadRows {
    shape: DeltaShape,
    head: usize,
    first: usize,
    by_channel: bool,
    level: SimdLevel,
}

impl HeadRows {
    /// Whether the outputs of a token can be computed without writing the state.
    #[inline(always)]
    fn can_skip_state_writes(self, rows: usize) -> bool {
        let whole = self.shape.key_dim.is_multiple_of(LANES) && rows.is_multiple_of(ROW_GROUP);
        self.level > SimdLevel::Portable && whole
    }

    /// Updates the rows with tokens `range`, without `KEEP` leaving the state unchanged. With
    /// `OUT`, calls `write` with the position of each token's outputs and the outputs.
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
        let HeadRows { shape, head, first, by_channel, level } = self;
        let DeltaShape { value_heads, key_dim, value_dim, .. } = shape;
        let rows = state.len() / key_dim;
        // Decays of one token, and its decayed keys.
        let (mut on_stack, mut on_heap) = (Aligned([0.0; 2 * STACK_KEY_DIM]), vec![]);
        let factors = if key_dim <= STACK_KEY_DIM {
            &mut on_stack.0[..2 * key_dim]
        } else {
            on_heap.resize(2 * key_dim, 0.0);
            &mut on_heap[..]
        };
        let (decay, decayed) = factors.split_at_mut(key_dim);
        let mut values = [0.0; MAX_SLICE_ROWS];
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
                // Tokens are too far apart for the hardware prefetcher.
                for next in self.inputs(tokens, t + 1, rows) {
                    prefetch(next);
                }
            }
            values[..rows].copy_from_slice(v);
            let token = Token { q, k, decay, decayed, beta: tokens.beta[at] };
            update_rows::<OUT, KEEP>(&token, state, &mut values[..rows], level);
            write(at * value_dim + first, &values[..rows]);
        }
    }

    /// Token `t`'s query, key and values of `rows` rows.
    #[inline(always)]
    fn inputs<'a>(self, tokens: DeltaTokens<'a>, t: usize, rows: usize) -> [&'a [f32]; 3] {
        let HeadRows { shape, head, first, .. } = self;
        let (q, rest) = tokens.qkv[t * shape.width()..][..shape.width()].split_at(shape.keys());
        let key = head / (shape.value_heads / shape.key_heads) * shape.key_dim;
        let value = shape.keys() + head * shape.value_dim + first;
        [&q[key..][..shape.key_dim], &rest[key..][..shape.key_dim], &rest[value..][..rows]]
    }
}

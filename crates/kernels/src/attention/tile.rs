//! Queries that share a key head: which keys they attend to, and their partial softmax.

use crate::lanes::{LANES, tanh};

/// Keys whose softmax is computed separately. A buffer that drops keys from the front must drop
/// whole blocks: otherwise the bits of later results change.
pub const KEY_BLOCK: usize = 256;

/// Which keys a query attends to; a window limits them further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionMask {
    /// Those up to its own.
    Causal,
    /// Also those after its own.
    BothWays,
    /// Also those of all queries of the call, which are an image.
    Together,
}

/// Sizes of one call: `tokens` queries at the end of `length` keys, in buffers of `capacity` keys.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    pub tokens: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Values per key.
    pub value_dim: usize,
    /// Keys in the buffer, including the queries' own.
    pub length: usize,
    pub capacity: usize,
    /// Most keys a query attends to, including its own; `usize::MAX` for all.
    pub window: usize,
    pub mask: AttentionMask,
}

/// How scores become attention weights.
#[derive(Clone, Copy, Debug)]
pub struct Softmax<'a> {
    /// Multiplies every score.
    pub scale: f32,
    /// Scaled scores become `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// One more logit per head, `[heads]`, which only takes part in the normalisation.
    pub sinks: Option<&'a [f32]>,
}

/// Queries `first..first + rows` of a key head: its query heads, token by token.
#[derive(Clone, Copy)]
pub(super) struct QueryTile<'a> {
    pub shape: AttentionShape,
    pub softmax: Softmax<'a>,
    pub first: usize,
    pub rows: usize,
}

impl QueryTile<'_> {
    /// The keys that a row attends to.
    #[inline(always)]
    pub(super) fn visible(&self, row: usize) -> (usize, usize) {
        let AttentionShape { tokens, heads, kv_heads, length, window, mask, .. } = self.shape;
        let token = (self.first + row) / (heads / kv_heads);
        let end = length - tokens + token + 1;
        let start = end.saturating_sub(window);
        match mask {
            AttentionMask::Causal => (start, end),
            AttentionMask::BothWays => (start, length.min((end - 1).saturating_add(window))),
            AttentionMask::Together => (start, length),
        }
    }

    /// The part of `from..to` that a row attends to; `(from, from)` if empty.
    #[inline(always)]
    pub(super) fn visible_part(&self, row: usize, from: usize, to: usize) -> (usize, usize) {
        let (start, end) = self.visible(row);
        let (start, end) = (start.max(from), end.min(to));
        if start < end { (start, end) } else { (from, from) }
    }

    /// The keys that any row attends to.
    pub(super) fn all_visible(&self) -> (usize, usize) {
        (self.visible(0).0, self.visible(self.rows - 1).1)
    }

    #[inline]
    pub(super) fn value_stride(&self) -> usize {
        self.shape.value_dim.next_multiple_of(LANES)
    }

    /// Floats of a [`SoftmaxPartial`].
    pub(super) fn partial_length(&self) -> usize {
        (self.rows * (2 + self.value_stride())).next_multiple_of(LANES)
    }

    /// Scales scores and caps them.
    #[inline(always)]
    pub(super) fn scale(&self, scores: &mut [f32; LANES]) {
        for score in &mut *scores {
            *score *= self.softmax.scale;
        }
        if let Some(cap) = self.softmax.softcap {
            for score in scores {
                *score = cap * tanh(*score / cap);
            }
        }
    }
}

/// The softmax of rows over some keys: the largest score, and the sum of `exp(score - max)`, alone
/// and weighted with the values.
pub(super) struct SoftmaxPartial<'a> {
    pub max: &'a mut [f32],
    pub total: &'a mut [f32],
    /// `[rows, value_dim rounded up to 16]`
    pub sums: &'a mut [f32],
}

impl SoftmaxPartial<'_> {
    pub(super) fn new(memory: &mut [f32], rows: usize) -> SoftmaxPartial<'_> {
        let (sums, rest) = memory.split_at_mut((memory.len() - 2 * rows) / LANES * LANES);
        let (max, rest) = rest.split_at_mut(rows);
        SoftmaxPartial { max, total: &mut rest[..rows], sums }
    }
}

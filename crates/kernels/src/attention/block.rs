//! Some queries that share a key head, against one block of keys: a softmax of its own, to be merged with those of the
//! other blocks.

use super::{
    AttentionShape, BLOCK, Head, Softmax,
    scores::{FewScores, Numerators, Scores},
    weighted::Weighted,
};
use crate::{
    lanes::{LANES, exp, fma, load},
    panel::{PANEL, Rows},
    scalar::Scalar,
    simd::{Work, vectorize},
};

/// Up to so many queries meet keys and values as they come out of memory; for more, these are laid out in panels first.
const FEW: usize = 16;

/// Queries `first..first + rows` of a key head: its query heads token by token.
#[derive(Clone, Copy)]
pub struct Tile<'a> {
    pub shape: AttentionShape,
    pub softmax: Softmax<'a>,
    pub first: usize,
    pub rows: usize,
}

impl Tile<'_> {
    /// The keys a row sees.
    #[inline(always)]
    pub fn seen(&self, row: usize) -> (usize, usize) {
        let AttentionShape { tokens, heads, kv_heads, length, window, .. } = self.shape;
        let token = (self.first + row) / (heads / kv_heads);
        let end = length - tokens + token + 1;
        (end.saturating_sub(window), end)
    }

    /// The part of `from..to` that a row sees; empty as `(from, from)`.
    #[inline(always)]
    pub fn part(&self, row: usize, from: usize, to: usize) -> (usize, usize) {
        let (start, end) = self.seen(row);
        let (start, end) = (start.max(from), end.min(to));
        if start < end { (start, end) } else { (from, from) }
    }

    /// The keys that any row sees.
    pub fn all_seen(&self) -> (usize, usize) {
        (self.seen(0).0, self.seen(self.rows - 1).1)
    }

    pub fn value_stride(&self) -> usize {
        self.shape.value_dim.next_multiple_of(LANES)
    }

    /// Floats of a [`Partial`].
    pub fn partial_length(&self) -> usize {
        (self.rows * (2 + self.value_stride())).next_multiple_of(LANES)
    }

    /// Floats that [`attend`](Tile::attend) needs beside.
    pub fn scratch_length(&self) -> usize {
        let AttentionShape { head_dim, value_dim, .. } = self.shape;
        let keys = head_dim.next_multiple_of(LANES) * PANEL;
        keys.max(value_dim.next_multiple_of(PANEL) * PANEL) + self.rows * BLOCK
    }

    /// Queries `q` `[rows, head_dim]` against block `block` of the keys: into `partial`.
    pub fn attend<T: Scalar>(
        &self,
        head: &Head<T>,
        q: &[f32],
        block: usize,
        scratch: &mut [f32],
        partial: &mut [f32],
    ) {
        let (scores, panels) = scratch.split_at_mut(self.rows * BLOCK);
        let mut partial = Partial::of(partial, self.rows);
        let (first, last) = self.all_seen();
        let few = self.rows <= FEW && head.whole();
        let step = if few { LANES } else { PANEL };
        let (base, end) = (block * BLOCK, ((block + 1) * BLOCK).min(last));
        let start = base.max(first / step * step);
        let strips = (start..end).step_by(step).map(|from| (from, (from + step).min(end)));
        scores.fill(0.0);
        partial.sums.fill(0.0);
        if few {
            vectorize(FewScores { tile: *self, q, head, base, keys: start..end, scores });
        } else {
            for (from, to) in strips.clone() {
                head.keys(from, to, panels);
                let scores = &mut scores[from - base..];
                vectorize(Scores { tile: *self, q, panel: panels, from, to, scores });
            }
        }
        vectorize(Numerators { tile: *self, base, scores, partial: &mut partial });
        for (from, to) in strips {
            let from = from.max(first);
            let (scores, partial) = (&scores[from - base..], &mut partial);
            if few {
                let values = head.value_rows(from);
                vectorize(Weighted { tile: *self, values, width: 1, ahead: true, from, to, scores, partial });
            } else {
                head.values(from, to, panels);
                let (values, width) = (Rows { values: &*panels, stride: PANEL }, to - from);
                vectorize(Weighted { tile: *self, values, width, ahead: false, from, to, scores, partial });
            }
        }
    }

    /// Adds the result of block `block` to that of the blocks before it.
    pub fn merge(&self, total: &mut [f32], partial: &mut [f32], block: usize) {
        let (total, partial) = (Partial::of(total, self.rows), Partial::of(partial, self.rows));
        vectorize(Merge { tile: *self, block, total, partial });
    }

    /// Nothing seen yet.
    pub fn clear(&self, total: &mut [f32]) {
        let total = Partial::of(total, self.rows);
        total.max.fill(f32::NEG_INFINITY);
        total.total.fill(0.0);
        total.sums.fill(0.0);
    }

    /// The weighted means, `[rows, value_dim rounded up to 16]`, after all blocks.
    pub fn finish<'a>(&self, total: &'a mut [f32]) -> &'a [f32] {
        let mut total = Partial::of(total, self.rows);
        vectorize(Finish { tile: *self, total: &mut total });
        &total.sums[..self.rows * self.value_stride()]
    }
}

/// What rows know of the softmax over some keys: the largest score, and of `exp(score - max)` the sum and the
/// sum weighted with the values.
pub struct Partial<'a> {
    pub max: &'a mut [f32],
    pub total: &'a mut [f32],
    /// `[rows, value_dim rounded up to 16]`
    pub sums: &'a mut [f32],
}

impl Partial<'_> {
    fn of(memory: &mut [f32], rows: usize) -> Partial<'_> {
        let (sums, rest) = memory.split_at_mut((memory.len() - 2 * rows) / LANES * LANES);
        let (max, rest) = rest.split_at_mut(rows);
        Partial { max, total: &mut rest[..rows], sums }
    }
}

struct Merge<'a> {
    tile: Tile<'a>,
    block: usize,
    total: Partial<'a>,
    partial: Partial<'a>,
}

impl Work for Merge<'_> {
    #[inline(always)]
    fn run(self) {
        let (from, stride) = (self.block * BLOCK, self.tile.value_stride());
        let (total, partial) = (self.total, self.partial);
        for row in 0..self.tile.rows {
            let (start, end) = self.tile.part(row, from, from + BLOCK);
            if start == end {
                continue;
            }
            let max = total.max[row].max(partial.max[row]);
            let (old, new) = (exp(total.max[row] - max), exp(partial.max[row] - max));
            total.max[row] = max;
            total.total[row] = old.mul_add(total.total[row], new * partial.total[row]);
            let sums = &mut total.sums[row * stride..][..stride];
            for (chunk, sums) in sums.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                let mut lanes = load(&partial.sums[row * stride..], chunk);
                for lane in &mut lanes {
                    *lane *= new;
                }
                fma(&mut lanes, &[old; LANES], sums);
                *sums = lanes;
            }
        }
    }
}

struct Finish<'a, 'b> {
    tile: Tile<'a>,
    total: &'a mut Partial<'b>,
}

impl Work for Finish<'_, '_> {
    #[inline(always)]
    fn run(self) {
        let AttentionShape { heads, kv_heads, .. } = self.tile.shape;
        let stride = self.tile.value_stride();
        for row in 0..self.tile.rows {
            let (mut factor, mut total) = (1.0, self.total.total[row]);
            if let Some(sinks) = self.tile.softmax.sinks {
                let sink = sinks[(self.tile.first + row) % (heads / kv_heads)];
                let max = self.total.max[row].max(sink);
                factor = exp(self.total.max[row] - max);
                total = factor.mul_add(total, exp(sink - max));
            }
            for sums in self.total.sums[row * stride..][..stride].as_chunks_mut::<LANES>().0 {
                for sum in sums {
                    *sum = *sum * factor / total;
                }
            }
        }
    }
}

//! Attention of a tile of queries to one block of keys, and the merging of blocks.

use super::{
    head::KvHead,
    scores::{FewScores, Numerators, Scores},
    tile::{AttentionShape, KEY_BLOCK, QueryTile, SoftmaxPartial},
    weighted::WeightedValues,
};
use crate::{
    lanes::{LANES, exp, fma, load},
    panel::{PANEL_COLUMNS, StridedRows},
    scalar::Scalar,
    simd::{WithSimd, dispatch},
};

/// Up to this many queries read keys and values in place; for more, these are copied to panels
/// first.
const MAX_IN_PLACE: usize = 16;

impl QueryTile<'_> {
    /// Floats of scratch memory that [`attend`](QueryTile::attend) needs.
    pub(super) fn scratch_length(&self) -> usize {
        let AttentionShape { head_dim, value_dim, .. } = self.shape;
        let keys = head_dim.next_multiple_of(LANES) * PANEL_COLUMNS;
        keys.max(value_dim.next_multiple_of(PANEL_COLUMNS) * PANEL_COLUMNS) + self.rows * KEY_BLOCK
    }

    /// Attention of queries `q` `[rows, head_dim]` to key block `block`, into `partial`.
    pub(super) fn attend<T: Scalar>(
        &self,
        head: &KvHead<T>,
        q: &[f32],
        block: usize,
        scratch: &mut [f32],
        partial: &mut [f32],
    ) {
        let (scores, panels) = scratch.split_at_mut(self.rows * KEY_BLOCK);
        let mut partial = SoftmaxPartial::new(partial, self.rows);
        let (first, last) = self.all_visible();
        let few = self.rows <= MAX_IN_PLACE && head.is_whole_lanes();
        let step = if few { LANES } else { PANEL_COLUMNS };
        let (base, end) = (block * KEY_BLOCK, ((block + 1) * KEY_BLOCK).min(last));
        let start = base.max(first / step * step);
        let strips = (start..end).step_by(step).map(|from| (from, (from + step).min(end)));
        scores.fill(0.0);
        partial.sums.fill(0.0);
        if few {
            dispatch(FewScores { tile: *self, q, head, base, keys: start..end, scores });
        } else {
            for (from, to) in strips.clone() {
                head.keys_to_panel(from, to, panels);
                let scores = &mut scores[from - base..];
                dispatch(Scores { tile: *self, q, panel: panels, from, to, scores });
            }
        }
        dispatch(Numerators { tile: *self, base, scores, partial: &mut partial });
        for (from, to) in strips {
            let from = from.max(first);
            let (scores, partial) = (&scores[from - base..], &mut partial);
            if few {
                let values = head.value_rows(from);
                dispatch(WeightedValues {
                    tile: *self,
                    values,
                    width: 1,
                    prefetch: true,
                    from,
                    to,
                    scores,
                    partial,
                });
            } else {
                head.values_to_panels(from, to, panels);
                let (values, width) = (StridedRows { values: &*panels, stride: PANEL_COLUMNS }, to - from);
                dispatch(WeightedValues {
                    tile: *self,
                    values,
                    width,
                    prefetch: false,
                    from,
                    to,
                    scores,
                    partial,
                });
            }
        }
    }

    /// Merges the partial softmax of block `block` into that of the blocks before it.
    pub(super) fn merge(&self, total: &mut [f32], partial: &mut [f32], block: usize) {
        let (total, partial) =
            (SoftmaxPartial::new(total, self.rows), SoftmaxPartial::new(partial, self.rows));
        dispatch(MergePartials { tile: *self, block, total, partial });
    }

    /// The partial softmax over no keys.
    pub(super) fn clear(&self, total: &mut [f32]) {
        let total = SoftmaxPartial::new(total, self.rows);
        total.max.fill(f32::NEG_INFINITY);
        total.total.fill(0.0);
        total.sums.fill(0.0);
    }

    /// The weighted means, `[rows, value_dim rounded up to 16]`, after all blocks.
    pub(super) fn finish<'a>(&self, total: &'a mut [f32]) -> &'a [f32] {
        let mut total = SoftmaxPartial::new(total, self.rows);
        dispatch(NormaliseSums { tile: *self, total: &mut total });
        &total.sums[..self.rows * self.value_stride()]
    }
}

struct MergePartials<'a> {
    tile: QueryTile<'a>,
    block: usize,
    total: SoftmaxPartial<'a>,
    partial: SoftmaxPartial<'a>,
}

impl WithSimd for MergePartials<'_> {
    #[inline(always)]
    fn run(self) {
        let (from, stride) = (self.block * KEY_BLOCK, self.tile.value_stride());
        let (total, partial) = (self.total, self.partial);
        for row in 0..self.tile.rows {
            let (start, end) = self.tile.visible_part(row, from, from + KEY_BLOCK);
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

struct NormaliseSums<'a, 'b> {
    tile: QueryTile<'a>,
    total: &'a mut SoftmaxPartial<'b>,
}

impl WithSimd for NormaliseSums<'_, '_> {
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

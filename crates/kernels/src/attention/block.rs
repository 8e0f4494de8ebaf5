//! Some queries that share a key head, against one block of keys: a softmax of its own, to be merged with those of the
//! other blocks.

use std::ops::Range;

use super::{AttentionShape, BLOCK, Head, Softmax};
use crate::{
    lanes::{LANES, exp, fma, load, reduce, tanh},
    panel::{PANEL, ROWS, Rows, add_product},
    scalar::Scalar,
    shared::prefetch,
    simd::{Work, vectorize},
    transpose::transpose,
};

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
    fn part(&self, row: usize, from: usize, to: usize) -> (usize, usize) {
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
        let (base, end) = (block * BLOCK, ((block + 1) * BLOCK).min(last));
        let start = base.max(first / PANEL * PANEL);
        scores.fill(0.0);
        partial.sums.fill(0.0);
        let few = self.rows <= FEW && head.whole();
        if few {
            vectorize(FewScores { tile: *self, q, head, base, keys: start..end, scores });
        } else {
            for from in (start..end).step_by(PANEL) {
                let to = (from + PANEL).min(end);
                head.keys(from, to, panels);
                let scores = &mut scores[from - base..];
                vectorize(Scores { tile: *self, q, panel: panels, from, to, scores });
            }
        }
        vectorize(Numerators { tile: *self, base, scores, partial: &mut partial });
        let step = if few { LANES } else { PANEL };
        for from in (start..end).step_by(step) {
            let (from, to) = (from.max(first), (from + step).min(end));
            if from >= to {
                continue;
            }
            let scores = &scores[from - base..];
            if few {
                let values = Rows { values: &head.v.rows[from * head.v.stride..], stride: head.v.stride };
                vectorize(Weighted {
                    tile: *self,
                    values,
                    width: 1,
                    ahead: true,
                    from,
                    to,
                    scores,
                    partial: &mut partial,
                });
            } else {
                head.values(from, to, panels);
                let values = Rows { values: &*panels, stride: PANEL };
                vectorize(Weighted {
                    tile: *self,
                    values,
                    width: to - from,
                    ahead: false,
                    from,
                    to,
                    scores,
                    partial: &mut partial,
                });
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
struct Partial<'a> {
    max: &'a mut [f32],
    total: &'a mut [f32],
    /// `[rows, value_dim rounded up to 16]`
    sums: &'a mut [f32],
}

impl Partial<'_> {
    fn of(memory: &mut [f32], rows: usize) -> Partial<'_> {
        let (sums, rest) = memory.split_at_mut((memory.len() - 2 * rows) / LANES * LANES);
        let (max, rest) = rest.split_at_mut(rows);
        Partial { max, total: &mut rest[..rows], sums }
    }
}

/// Dot products of the queries with a panel of keys; each sums its products in order.
struct Scores<'a> {
    tile: Tile<'a>,
    q: &'a [f32],
    panel: &'a [f32],
    from: usize,
    to: usize,
    /// `[rows, BLOCK]`, from the panel's first key on.
    scores: &'a mut [f32],
}

/// Up to so many queries meet keys and values as they come out of memory; for more, these are laid out in panels first.
const FEW: usize = 16;

/// Rows of a panel that stay in the innermost cache while all queries pass.
const DEPTH: usize = 64;

impl Work for Scores<'_> {
    #[inline(always)]
    fn run(self) {
        let head_dim = self.tile.shape.head_dim;
        for at in (0..head_dim).step_by(DEPTH) {
            let depth = (head_dim - at).min(DEPTH);
            let mut row = 0;
            while row < self.tile.rows {
                let a = Rows { values: &self.q[row * head_dim + at..], stride: head_dim };
                let panel = &self.panel[at * PANEL..][..depth * PANEL];
                let rows = if row + ROWS <= self.tile.rows { ROWS } else { 1 };
                let (first, last) = (self.tile.seen(row).0, self.tile.seen(row + rows - 1).1);
                if first < self.to && last > self.from {
                    let scores = &mut self.scores[row * BLOCK..];
                    let columns = self.to.min(last) - self.from;
                    let (panel, size) = (Rows { values: panel, stride: PANEL }, [depth, columns]);
                    match rows {
                        ROWS => add_product::<ROWS, f32>(scores, BLOCK, a, panel, size),
                        _ => add_product::<1, f32>(scores, BLOCK, a, panel, size),
                    }
                }
                row += rows;
            }
        }
    }
}

/// As [`Scores`] of all panels, for few queries, with keys as they come out of memory: to the same bits.
struct FewScores<'a, T> {
    tile: Tile<'a>,
    q: &'a [f32],
    head: &'a Head<'a, T>,
    base: usize,
    keys: Range<usize>,
    /// `[rows, BLOCK]`, from key `base` on.
    scores: &'a mut [f32],
}

impl<T: Scalar> Work for FewScores<'_, T> {
    #[inline(always)]
    fn run(self) {
        let FewScores { tile, q, head, base, keys, scores } = self;
        let mut square = [[0.0; LANES]; LANES];
        for from in keys.clone().step_by(LANES) {
            let to = (from + LANES).min(keys.end);
            for chunk in 0..head.head_dim / LANES {
                head.square(from, to, chunk, &mut square);
                transpose(&mut square);
                let columns = Rows { values: square.as_flattened(), stride: LANES };
                let mut row = 0;
                while row < tile.rows {
                    let q = Rows { values: &q[row * head.head_dim + chunk * LANES..], stride: head.head_dim };
                    let scores = &mut scores[row * BLOCK + from - base..];
                    if row + ROWS <= tile.rows {
                        add_product::<ROWS, f32>(scores, BLOCK, q, columns, [LANES; 2]);
                        row += ROWS;
                    } else {
                        add_product::<1, f32>(scores, BLOCK, q, columns, [LANES; 2]);
                        row += 1;
                    }
                }
            }
        }
    }
}

/// From scores to `exp(score - max)`: 0 for keys a row does not see.
struct Numerators<'a, 'b> {
    tile: Tile<'a>,
    base: usize,
    scores: &'a mut [f32],
    partial: &'a mut Partial<'b>,
}

impl Work for Numerators<'_, '_> {
    #[inline(always)]
    fn run(self) {
        for (row, scores) in self.scores.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
            let (start, end) = self.tile.part(row, self.base, self.base + BLOCK);
            let (start, end) = (start - self.base, end - self.base);
            let chunks = start / LANES..end.div_ceil(LANES);
            let mut largest = [f32::NEG_INFINITY; LANES];
            for chunk in chunks.clone() {
                let mut lanes = load(scores, chunk);
                self.tile.scale(&mut lanes);
                if chunk * LANES < start || (chunk + 1) * LANES > end {
                    for (i, lane) in lanes.iter_mut().enumerate() {
                        // Wraps to a large number before the start.
                        let at = ((chunk * LANES + i) as u32).wrapping_sub(start as u32);
                        *lane = if at < (end - start) as u32 { *lane } else { f32::NEG_INFINITY };
                    }
                }
                for i in 0..LANES {
                    largest[i] = if lanes[i] > largest[i] { lanes[i] } else { largest[i] };
                }
                scores[chunk * LANES..][..LANES].copy_from_slice(&lanes);
            }
            let mut max = f32::NEG_INFINITY;
            for lane in largest {
                max = max.max(lane);
            }
            let mut sums = [0.0; LANES];
            for chunk in chunks {
                let mut lanes = load(scores, chunk);
                for i in 0..LANES {
                    lanes[i] = exp(lanes[i] - max);
                    sums[i] += lanes[i];
                }
                scores[chunk * LANES..][..LANES].copy_from_slice(&lanes);
            }
            self.partial.max[row] = max;
            self.partial.total[row] = reduce(&sums);
        }
    }
}

impl Tile<'_> {
    #[inline(always)]
    fn scale(&self, scores: &mut [f32; LANES]) {
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

/// Values times weights; each sum in the order of the keys, of those the row sees alone.
struct Weighted<'a, 'b, T> {
    tile: Tile<'a>,
    /// Rows of values; those of 64 columns on begin `width` times as many numbers on.
    values: Rows<'a, T>,
    width: usize,
    /// Whether to ask memory for the values that follow.
    ahead: bool,
    from: usize,
    to: usize,
    /// `[rows, BLOCK]`, from key `from` on.
    scores: &'a [f32],
    partial: &'a mut Partial<'b>,
}

impl<T: Scalar> Work for Weighted<'_, '_, T> {
    #[inline(always)]
    fn run(mut self) {
        let Tile { rows, .. } = self.tile;
        let Rows { values, stride } = self.values;
        for at in (0..self.tile.value_stride()).step_by(PANEL) {
            for next in self.to - self.from..2 * (self.to - self.from) {
                if self.ahead
                    && let Some(next) = values.get(next * stride + at..)
                {
                    prefetch(&next[..PANEL.min(next.len())]);
                }
            }
            let mut row = 0;
            while row < rows {
                if row + ROWS > rows {
                    let (start, end) = self.tile.part(row, self.from, self.to);
                    self.add::<1>(row, at, start, end);
                    row += 1;
                    continue;
                }
                // Keys that all four rows see go together; at the edges each row is by itself.
                let (mut start, mut end) = self.tile.part(row, self.from, self.to);
                for r in row + 1..row + ROWS {
                    let part = self.tile.part(r, self.from, self.to);
                    (start, end) = (start.max(part.0), end.min(part.1));
                }
                let end = end.max(start);
                for r in row..row + ROWS {
                    let part = self.tile.part(r, self.from, self.to);
                    self.add::<1>(r, at, part.0, part.1.min(start));
                }
                self.add::<ROWS>(row, at, start, end);
                for r in row..row + ROWS {
                    let part = self.tile.part(r, self.from, self.to);
                    self.add::<1>(r, at, part.0.max(end), part.1);
                }
                row += ROWS;
            }
        }
    }
}

impl<T: Scalar> Weighted<'_, '_, T> {
    #[inline(always)]
    fn add<const R: usize>(&mut self, row: usize, at: usize, start: usize, end: usize) {
        if start >= end {
            return;
        }
        let stride = self.tile.value_stride();
        let Rows { values, stride: step } = self.values;
        let values = Rows { values: &values[at * self.width + (start - self.from) * step..], stride: step };
        let a = Rows { values: &self.scores[row * BLOCK + start - self.from..], stride: BLOCK };
        let size = [end - start, (stride - at).min(PANEL)];
        let sums = &mut self.partial.sums[row * stride + at..];
        add_product::<R, T>(sums, stride, a, values, size);
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

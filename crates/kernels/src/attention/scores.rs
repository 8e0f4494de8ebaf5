//! Attention scores, and the numerators of their softmax.

use std::ops::Range;

use super::{
    head::KvHead,
    tile::{KEY_BLOCK, QueryTile, SoftmaxPartial},
};
use crate::{
    lanes::{LANES, exp, load, reduce},
    panel::{PANEL_COLUMNS, REGISTER_ROWS, StridedRows, add_product},
    scalar::Scalar,
    simd::WithSimd,
    transpose::transpose,
};

/// Dot products of the queries with a panel of keys, each summed in order.
pub(super) struct Scores<'a> {
    pub tile: QueryTile<'a>,
    pub q: &'a [f32],
    pub panel: &'a [f32],
    pub from: usize,
    pub to: usize,
    /// `[rows, KEY_BLOCK]`, from the panel's first key.
    pub scores: &'a mut [f32],
}

/// Rows of a panel that stay in the first-level cache for all queries.
const DEPTH: usize = 64;

impl WithSimd for Scores<'_> {
    #[inline(always)]
    fn run(self) {
        let head_dim = self.tile.shape.head_dim;
        for at in (0..head_dim).step_by(DEPTH) {
            let depth = (head_dim - at).min(DEPTH);
            let mut row = 0;
            while row < self.tile.rows {
                let a = StridedRows { values: &self.q[row * head_dim + at..], stride: head_dim };
                let panel = &self.panel[at * PANEL_COLUMNS..][..depth * PANEL_COLUMNS];
                let rows = if row + REGISTER_ROWS <= self.tile.rows { REGISTER_ROWS } else { 1 };
                let (first, last) = (self.tile.visible(row).0, self.tile.visible(row + rows - 1).1);
                if first < self.to && last > self.from {
                    let scores = &mut self.scores[row * KEY_BLOCK..];
                    let columns = self.to.min(last) - self.from;
                    let (panel, size) =
                        (StridedRows { values: panel, stride: PANEL_COLUMNS }, [depth, columns]);
                    match rows {
                        REGISTER_ROWS => add_product::<REGISTER_ROWS, f32>(scores, KEY_BLOCK, a, panel, size),
                        _ => add_product::<1, f32>(scores, KEY_BLOCK, a, panel, size),
                    }
                }
                row += rows;
            }
        }
    }
}

/// [`Scores`] of all panels for few queries, reading keys in place, bit-identical.
pub(super) struct FewScores<'a, T> {
    pub tile: QueryTile<'a>,
    pub q: &'a [f32],
    pub head: &'a KvHead<'a, T>,
    pub base: usize,
    pub keys: Range<usize>,
    /// `[rows, KEY_BLOCK]`, from key `base`.
    pub scores: &'a mut [f32],
}

impl<T: Scalar> WithSimd for FewScores<'_, T> {
    #[inline(always)]
    fn run(self) {
        let FewScores { tile, q, head, base, keys, scores } = self;
        let (mut square, mut columns) = ([[0.0; LANES]; LANES], [[0.0; LANES]; LANES]);
        for from in keys.clone().step_by(LANES) {
            let to = (from + LANES).min(keys.end);
            for chunk in 0..head.head_dim / LANES {
                head.key_square(from, to, chunk, &mut square);
                transpose(&square, &mut columns);
                let columns = StridedRows { values: columns.as_flattened(), stride: LANES };
                let mut row = 0;
                while row < tile.rows {
                    let q = StridedRows {
                        values: &q[row * head.head_dim + chunk * LANES..],
                        stride: head.head_dim,
                    };
                    let scores = &mut scores[row * KEY_BLOCK + from - base..];
                    if row + REGISTER_ROWS <= tile.rows {
                        add_product::<REGISTER_ROWS, f32>(scores, KEY_BLOCK, q, columns, [LANES; 2]);
                        row += REGISTER_ROWS;
                    } else {
                        add_product::<1, f32>(scores, KEY_BLOCK, q, columns, [LANES; 2]);
                        row += 1;
                    }
                }
            }
        }
    }
}

/// Replaces scores by `exp(score - max)`, 0 for keys that a row does not attend to.
pub(super) struct Numerators<'a, 'b> {
    pub tile: QueryTile<'a>,
    pub base: usize,
    pub scores: &'a mut [f32],
    pub partial: &'a mut SoftmaxPartial<'b>,
}

impl WithSimd for Numerators<'_, '_> {
    #[inline(always)]
    fn run(self) {
        for (row, scores) in self.scores.as_chunks_mut::<KEY_BLOCK>().0.iter_mut().enumerate() {
            let (start, end) = self.tile.visible_part(row, self.base, self.base + KEY_BLOCK);
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

//! What queries make of keys: dot products, and from them the numerators of a softmax.

use std::ops::Range;

use super::{
    BLOCK, Head,
    block::{Partial, Tile},
};
use crate::{
    lanes::{LANES, exp, load, reduce, tanh},
    panel::{PANEL, ROWS, Rows, add_product},
    scalar::Scalar,
    simd::Work,
    transpose::transpose,
};

/// Dot products of the queries with a panel of keys; each sums its products in order.
pub struct Scores<'a> {
    pub tile: Tile<'a>,
    pub q: &'a [f32],
    pub panel: &'a [f32],
    pub from: usize,
    pub to: usize,
    /// `[rows, BLOCK]`, from the panel's first key on.
    pub scores: &'a mut [f32],
}

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
pub struct FewScores<'a, T> {
    pub tile: Tile<'a>,
    pub q: &'a [f32],
    pub head: &'a Head<'a, T>,
    pub base: usize,
    pub keys: Range<usize>,
    /// `[rows, BLOCK]`, from key `base` on.
    pub scores: &'a mut [f32],
}

impl<T: Scalar> Work for FewScores<'_, T> {
    #[inline(always)]
    fn run(self) {
        let FewScores { tile, q, head, base, keys, scores } = self;
        let (mut square, mut columns) = ([[0.0; LANES]; LANES], [[0.0; LANES]; LANES]);
        for from in keys.clone().step_by(LANES) {
            let to = (from + LANES).min(keys.end);
            for chunk in 0..head.head_dim / LANES {
                head.square(from, to, chunk, &mut square);
                transpose(&square, &mut columns);
                let columns = Rows { values: columns.as_flattened(), stride: LANES };
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
pub struct Numerators<'a, 'b> {
    pub tile: Tile<'a>,
    pub base: usize,
    pub scores: &'a mut [f32],
    pub partial: &'a mut Partial<'b>,
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

//! What queries make of values.

use super::{
    BLOCK,
    block::{Partial, Tile},
};
use crate::{
    panel::{PANEL, ROWS, Rows, add_product},
    scalar::Scalar,
    shared::prefetch,
    simd::Work,
};

/// Values times weights; each sum in the order of the keys, of those the row sees alone.
pub struct Weighted<'a, 'b, T> {
    pub tile: Tile<'a>,
    /// Rows of values; those of 64 columns on begin `width` times as many numbers on.
    pub values: Rows<'a, T>,
    pub width: usize,
    /// Whether to ask memory for as many values more; all at once would be more than are let on their way.
    pub ahead: bool,
    pub from: usize,
    pub to: usize,
    /// `[rows, BLOCK]`, from key `from` on.
    pub scores: &'a [f32],
    pub partial: &'a mut Partial<'b>,
}

impl<T: Scalar> Work for Weighted<'_, '_, T> {
    #[inline(always)]
    fn run(mut self) {
        let Tile { rows, .. } = self.tile;
        for at in (0..self.tile.value_stride()).step_by(PANEL) {
            if self.ahead {
                self.ask(at);
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
    /// Asks for the values that follow, from column `at` on.
    #[inline(always)]
    fn ask(&self, at: usize) {
        let count = self.to - self.from;
        for next in count..2 * count {
            if let Some(next) = self.values.values.get(next * self.values.stride + at..) {
                prefetch(&next[..PANEL.min(next.len())]);
            }
        }
    }

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

//! Sums of values weighted with scores.

use super::tile::{KEY_BLOCK, QueryTile, SoftmaxPartial};
use crate::{
    memory::prefetch,
    panel::{PANEL_COLUMNS, REGISTER_ROWS, StridedRows, add_product},
    scalar::Scalar,
    simd::WithSimd,
};

/// Values times weights, summed in the order of the keys that the row attends to.
pub(super) struct WeightedValues<'a, 'b, T> {
    pub tile: QueryTile<'a>,
    /// Rows of values; each 64 columns start `width * 64` numbers after the previous ones.
    pub values: StridedRows<'a, T>,
    pub width: usize,
    /// Whether to prefetch the values that follow, as many as these, 64 columns at a time: more
    /// would exceed the lines that the processor fetches at once.
    pub prefetch: bool,
    pub from: usize,
    pub to: usize,
    /// `[rows, KEY_BLOCK]`, from key `from`.
    pub scores: &'a [f32],
    pub partial: &'a mut SoftmaxPartial<'b>,
}

impl<T: Scalar> WithSimd for WeightedValues<'_, '_, T> {
    #[inline(always)]
    fn run(mut self) {
        let QueryTile { rows, .. } = self.tile;
        for at in (0..self.tile.value_stride()).step_by(PANEL_COLUMNS) {
            if self.prefetch {
                self.prefetch_next(at);
            }
            let mut row = 0;
            while row < rows {
                if row + REGISTER_ROWS > rows {
                    let (start, end) = self.tile.visible_part(row, self.from, self.to);
                    self.add::<1>(row, at, start, end);
                    row += 1;
                    continue;
                }
                // Keys that all four rows attend to are added together, the others row by row.
                let (mut start, mut end) = self.tile.visible_part(row, self.from, self.to);
                for r in row + 1..row + REGISTER_ROWS {
                    let part = self.tile.visible_part(r, self.from, self.to);
                    (start, end) = (start.max(part.0), end.min(part.1));
                }
                let end = end.max(start);
                for r in row..row + REGISTER_ROWS {
                    let part = self.tile.visible_part(r, self.from, self.to);
                    self.add::<1>(r, at, part.0, part.1.min(start));
                }
                self.add::<REGISTER_ROWS>(row, at, start, end);
                for r in row..row + REGISTER_ROWS {
                    let part = self.tile.visible_part(r, self.from, self.to);
                    self.add::<1>(r, at, part.0.max(end), part.1);
                }
                row += REGISTER_ROWS;
            }
        }
    }
}

impl<T: Scalar> WeightedValues<'_, '_, T> {
    /// Prefetches the values that follow, from column `at`.
    #[inline(always)]
    fn prefetch_next(&self, at: usize) {
        let count = self.to - self.from;
        for next in count..2 * count {
            if let Some(next) = self.values.values.get(next * self.values.stride + at..) {
                prefetch(&next[..PANEL_COLUMNS.min(next.len())]);
            }
        }
    }

    #[inline(always)]
    fn add<const R: usize>(&mut self, row: usize, at: usize, start: usize, end: usize) {
        if start >= end {
            return;
        }
        let stride = self.tile.value_stride();
        let StridedRows { values, stride: step } = self.values;
        let values =
            StridedRows { values: &values[at * self.width + (start - self.from) * step..], stride: step };
        let a =
            StridedRows { values: &self.scores[row * KEY_BLOCK + start - self.from..], stride: KEY_BLOCK };
        let size = [end - start, (stride - at).min(PANEL_COLUMNS)];
        let sums = &mut self.partial.sums[row * stride + at..];
        add_product::<R, T>(sums, stride, a, values, size);
    }
}

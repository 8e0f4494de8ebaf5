//! The keys and values of one key head, of whatever type.

use crate::{
    lanes::{LANES, Lanes},
    panel::{Rows, pack_columns, pack_rows},
    scalar::Scalar,
    shared::prefetch,
    simd::{Work, vectorize},
};

/// Rows of values `stride` apart, of which the first `dim` numbers count.
#[derive(Clone, Copy)]
pub struct Values<'a, T> {
    pub rows: &'a [T],
    pub stride: usize,
    pub dim: usize,
}

/// What queries that share a key head attend to.
pub struct Head<'a, T> {
    /// `[capacity, head_dim]`
    pub k: &'a [T],
    pub v: Values<'a, T>,
    pub head_dim: usize,
}

impl<T: Scalar> Head<'_, T> {
    /// Whether keys and values are whole vectors of 16.
    pub fn whole(&self) -> bool {
        [self.head_dim, self.v.dim].iter().all(|dim| dim.is_multiple_of(LANES))
    }

    /// Keys `from..to`, at most 64, as columns of a panel: `[head_dim, 64]`.
    pub fn keys(&self, from: usize, to: usize, panel: &mut [f32]) {
        let rows = &self.k[from * self.head_dim..];
        vectorize(Keys { rows, count: to - from, dim: self.head_dim, panel });
    }

    /// Numbers `16 * chunk ..` of keys `from..to`, at most 16 whole ones, and zeros behind them; the keys that follow are asked
    /// for.
    #[inline(always)]
    pub fn square(&self, from: usize, to: usize, chunk: usize, square: &mut [Lanes; LANES]) {
        let keys = &self.k[from * self.head_dim + chunk * LANES..];
        for (i, lanes) in square.iter_mut().enumerate() {
            if let Some(next) = keys.get((i + LANES) * self.head_dim..) {
                prefetch(&next[..next.len().min(1)]);
            }
            if i < to - from {
                // An array of its own, lest the compiler copy number by number.
                let mut row = [0.0; LANES];
                let (values, _) = keys[i * self.head_dim..].as_chunks::<LANES>();
                for j in 0..LANES {
                    row[j] = values[0][j].to_f32();
                }
                *lanes = row;
            } else {
                *lanes = [0.0; LANES];
            }
        }
    }

    /// Values from the `from`th on, as they lie in memory.
    pub fn value_rows(&self, from: usize) -> Rows<'_, T> {
        Rows { values: &self.v.rows[from * self.v.stride..], stride: self.v.stride }
    }

    /// Values `from..to` as rows of panels, `[value panels, to - from, 64]`.
    pub fn values(&self, from: usize, to: usize, panels: &mut [f32]) {
        let Values { rows, stride, dim } = self.v;
        vectorize(PackValues { rows: &rows[from * stride..], count: to - from, stride, dim, panels });
    }
}

struct Keys<'a, T> {
    rows: &'a [T],
    count: usize,
    dim: usize,
    panel: &'a mut [f32],
}

impl<T: Scalar> Work for Keys<'_, T> {
    #[inline(always)]
    fn run(self) {
        pack_columns(self.rows, self.count, self.dim, self.panel);
    }
}

struct PackValues<'a, T> {
    rows: &'a [T],
    count: usize,
    stride: usize,
    dim: usize,
    panels: &'a mut [f32],
}

impl<T: Scalar> Work for PackValues<'_, T> {
    #[inline(always)]
    fn run(self) {
        pack_rows(self.rows, self.count, self.stride, self.dim, self.panels);
    }
}

//! The keys and values of one key head.

use crate::{
    lanes::{LANES, Lanes},
    memory::prefetch,
    panel::{StridedRows, copy_to_panels, transpose_to_panel},
    scalar::Scalar,
    simd::{WithSimd, dispatch},
};

/// Rows of values, `stride` apart, of which the first `dim` numbers are used.
#[derive(Clone, Copy)]
pub(super) struct ValueRows<'a, T> {
    pub rows: &'a [T],
    pub stride: usize,
    pub dim: usize,
}

/// The keys and values that the queries of a key head attend to.
pub(super) struct KvHead<'a, T> {
    /// `[capacity, head_dim]`
    pub k: &'a [T],
    pub v: ValueRows<'a, T>,
    pub head_dim: usize,
}

impl<T: Scalar> KvHead<'_, T> {
    /// Whether keys and values are multiples of 16.
    pub(super) fn is_whole_lanes(&self) -> bool {
        [self.head_dim, self.v.dim].iter().all(|dim| dim.is_multiple_of(LANES))
    }

    /// Copies keys `from..to`, at most 64, to the columns of a panel `[head_dim, 64]`.
    pub(super) fn keys_to_panel(&self, from: usize, to: usize, panel: &mut [f32]) {
        let rows = &self.k[from * self.head_dim..];
        dispatch(KeysToPanel { rows, count: to - from, dim: self.head_dim, panel });
    }

    /// Numbers `16 * chunk ..` of keys `from..to`, at most 16, then zeros. Prefetches the keys that
    /// follow.
    #[inline(always)]
    pub(super) fn key_square(&self, from: usize, to: usize, chunk: usize, square: &mut [Lanes; LANES]) {
        let keys = &self.k[from * self.head_dim + chunk * LANES..];
        for (i, lanes) in square.iter_mut().enumerate() {
            if let Some(next) = keys.get((i + LANES) * self.head_dim..) {
                prefetch(&next[..next.len().min(1)]);
            }
            if i < to - from {
                // A separate array: otherwise the compiler copies number by number.
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

    /// Values from row `from`, in place.
    pub(super) fn value_rows(&self, from: usize) -> StridedRows<'_, T> {
        StridedRows { values: &self.v.rows[from * self.v.stride..], stride: self.v.stride }
    }

    /// Copies values `from..to` to the rows of panels `[value panels, to - from, 64]`.
    pub(super) fn values_to_panels(&self, from: usize, to: usize, panels: &mut [f32]) {
        let ValueRows { rows, stride, dim } = self.v;
        dispatch(ValuesToPanels { rows: &rows[from * stride..], count: to - from, stride, dim, panels });
    }
}

struct KeysToPanel<'a, T> {
    rows: &'a [T],
    count: usize,
    dim: usize,
    panel: &'a mut [f32],
}

impl<T: Scalar> WithSimd for KeysToPanel<'_, T> {
    #[inline(always)]
    fn run(self) {
        transpose_to_panel(self.rows, self.count, self.dim, self.panel);
    }
}

struct ValuesToPanels<'a, T> {
    rows: &'a [T],
    count: usize,
    stride: usize,
    dim: usize,
    panels: &'a mut [f32],
}

impl<T: Scalar> WithSimd for ValuesToPanels<'_, T> {
    #[inline(always)]
    fn run(self) {
        copy_to_panels(self.rows, self.count, self.stride, self.dim, self.panels);
    }
}

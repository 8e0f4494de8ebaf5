//! Products with panels, 64 columns of a matrix stored row by row.
//!
//! Each element of a product is one chain of fused multiply-adds, in the order of the rows of the
//! right matrix.

use crate::{
    lanes::{LANES, Lanes, fma, load, load_scalar},
    memory::prefetch,
    scalar::Scalar,
    transpose::transpose,
};

/// Columns of a panel.
pub(crate) const PANEL_COLUMNS: usize = 64;
/// Rows of the left matrix that share each load of the right.
pub(crate) const REGISTER_ROWS: usize = 4;

/// Whether a tile of [`REGISTER_ROWS`] by a whole panel fits in registers; otherwise by 16 columns.
pub(crate) fn wide_registers() -> bool {
    #[cfg(target_arch = "x86_64")]
    return crate::simd::simd_level() >= crate::simd::SimdLevel::Avx512;
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Rows of numbers, `stride` apart.
#[derive(Clone, Copy)]
pub(crate) struct StridedRows<'a, T = f32> {
    pub values: &'a [T],
    pub stride: usize,
}

impl<T> StridedRows<'_, T> {
    /// The columns from column `at`.
    #[inline(always)]
    fn from(self, at: usize) -> Self {
        StridedRows { values: &self.values[at..], ..self }
    }
}

/// `out[r] += sum_d a[r][d] * b[d]`, `d` in order, for `R` rows, the first `depth` rows of `b` and
/// its first `columns` columns, rounded up to whole lanes. Rows of `out` are `out_stride`
/// apart.
#[inline(always)]
pub(crate) fn add_product<const R: usize, T: Scalar>(
    out: &mut [f32],
    out_stride: usize,
    a: StridedRows,
    b: StridedRows<T>,
    [depth, columns]: [usize; 2],
) {
    if columns > PANEL_COLUMNS - LANES && wide_registers() {
        return tile::<R, 4, T>(out, out_stride, a, b, depth);
    }
    for at in (0..columns).step_by(LANES) {
        tile::<R, 1, T>(&mut out[at..], out_stride, a, b.from(at), depth);
    }
}

#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "closures do not get the instruction set of their callers")]
fn tile<const R: usize, const N: usize, T: Scalar>(
    out: &mut [f32],
    out_stride: usize,
    a: StridedRows,
    b: StridedRows<T>,
    depth: usize,
) {
    let mut sums = [[[0.0; LANES]; N]; R];
    let mut left: [&[f32]; R] = [&[]; R];
    for r in 0..R {
        left[r] = &a.values[r * a.stride..][..depth];
        for (n, sum) in sums[r].iter_mut().enumerate() {
            *sum = load(&out[r * out_stride..], n);
        }
    }
    for d in 0..depth {
        let row = &b.values[d * b.stride..][..N * LANES];
        let mut lanes: [Lanes; N] = [[0.0; LANES]; N];
        for (n, lanes) in lanes.iter_mut().enumerate() {
            *lanes = load_scalar(row, n);
        }
        for r in 0..R {
            let x = [left[r][d]; LANES];
            for n in 0..N {
                fma(&mut sums[r][n], &x, &lanes[n]);
            }
        }
    }
    for r in 0..R {
        for n in 0..N {
            out[r * out_stride + n * LANES..][..LANES].copy_from_slice(&sums[r][n]);
        }
    }
}

/// Copies the first `count` rows of `dim` numbers, `stride` apart, to panels `[panels, count, 64]`.
/// Prefetches the rows after them.
#[inline(always)]
pub(crate) fn copy_to_panels<T: Scalar>(
    rows: &[T],
    count: usize,
    stride: usize,
    dim: usize,
    panels: &mut [f32],
) {
    // Row by row, to read memory in order.
    for (r, row) in rows.chunks(stride).enumerate().take(count) {
        if let Some(next) = rows.get((r + PREFETCH_ROWS) * stride..) {
            prefetch(&next[..dim.min(next.len())]);
        }
        for (p, row) in row[..dim].chunks(PANEL_COLUMNS).enumerate() {
            let to = &mut panels[(p * count + r) * PANEL_COLUMNS..][..PANEL_COLUMNS];
            for chunk in 0..row.len().div_ceil(LANES) {
                to[chunk * LANES..][..LANES].copy_from_slice(&load_scalar(row, chunk));
            }
        }
    }
}

/// Prefetch distance in rows.
const PREFETCH_ROWS: usize = 8;

/// Transposes the first `count` rows, at most 64, of `dim` numbers to a panel
/// `[dim rounded up to 16, 64]`. Prefetches the rows after them.
#[inline(always)]
pub(crate) fn transpose_to_panel<T: Scalar>(rows: &[T], count: usize, dim: usize, panel: &mut [f32]) {
    let mut columns = [[0.0; LANES]; LANES];
    for at in 0..count.div_ceil(LANES) {
        let next = &rows[((at + 1) * LANES * dim).min(rows.len())..];
        let rows = &rows[at * LANES * dim..((at + 1) * LANES).min(count) * dim];
        let squares = panel.as_chunks_mut::<{ LANES * PANEL_COLUMNS }>().0;
        for (chunk, to) in squares.iter_mut().enumerate().take(dim.div_ceil(LANES)) {
            let mut square = [[0.0; LANES]; LANES];
            for (to, row) in square.iter_mut().zip(rows.chunks_exact(dim)) {
                *to = load_scalar(row, chunk);
            }
            for row in next.chunks_exact(dim).take(LANES) {
                prefetch(&row[chunk * LANES..][..1]);
            }
            transpose(&square, &mut columns);
            for (to, column) in to.chunks_exact_mut(PANEL_COLUMNS).zip(&columns) {
                to[at * LANES..][..LANES].copy_from_slice(column);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transpose_to_panel_swaps_rows_and_columns() {
        for count in [64, 19] {
            let dim = 37;
            let rows: Vec<f32> = (0..count * dim).map(|i| i as f32).collect();
            let mut panel = vec![f32::NAN; 48 * PANEL_COLUMNS];
            transpose_to_panel(&rows, count, dim, &mut panel);
            for i in 0..count * dim {
                assert_eq!(panel[i % dim * PANEL_COLUMNS + i / dim], rows[i]);
            }
        }
    }
}

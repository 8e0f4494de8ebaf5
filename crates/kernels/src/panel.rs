//! Products with panels: 64 columns of a matrix side by side, row behind row, as the registers want them.
//!
//! Every element of a product is one chain of fused multiply-adds, in the order of the panel's rows.

use crate::{
    lanes::{LANES, Lanes, fma, load, load_scalar},
    scalar::Scalar,
    shared::prefetch,
};

/// Columns of a panel.
pub const PANEL: usize = 64;
/// Rows of the left matrix that share each load of the panel's.
pub const ROWS: usize = 4;

/// Whether a tile of `ROWS` by a whole panel fits the registers; else one of `ROWS` by 16.
pub fn wide_registers() -> bool {
    #[cfg(target_arch = "x86_64")]
    return crate::simd::vectors() >= crate::simd::Vectors::Avx512;
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Rows of numbers, `stride` apart.
#[derive(Clone, Copy)]
pub struct Rows<'a, T = f32> {
    pub values: &'a [T],
    pub stride: usize,
}

impl<T> Rows<'_, T> {
    /// What begins at column `at`.
    #[inline(always)]
    fn from(self, at: usize) -> Self {
        Rows { values: &self.values[at..], ..self }
    }
}

/// `out[r] += sum_d a[r][d] * b[d]`, `d` in order, for `R` rows, the first `depth` rows of `b` and its first `columns`
/// columns, rounded up to whole lanes. Rows of `out` are `out_stride` apart.
#[inline(always)]
pub fn add_product<const R: usize, T: Scalar>(
    out: &mut [f32],
    out_stride: usize,
    a: Rows,
    b: Rows<T>,
    [depth, columns]: [usize; 2],
    wide: bool,
) {
    if wide && columns > PANEL - LANES {
        return tile::<R, 4, T>(out, out_stride, a, b, depth);
    }
    for at in (0..columns).step_by(LANES) {
        tile::<R, 1, T>(&mut out[at..], out_stride, a, b.from(at), depth);
    }
}

#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "closures do not get the instruction set of what calls them")]
fn tile<const R: usize, const N: usize, T: Scalar>(
    out: &mut [f32],
    out_stride: usize,
    a: Rows,
    b: Rows<T>,
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

/// The first `count` rows of `dim` numbers, `stride` apart, as panels one behind the other, `[panels, count, 64]`. Rows
/// behind them will be asked for next.
#[inline(always)]
pub fn pack_rows<T: Scalar>(rows: &[T], count: usize, stride: usize, dim: usize, panels: &mut [f32]) {
    // Row by row, so that memory is read in order.
    for (r, row) in rows.chunks(stride).enumerate().take(count) {
        if let Some(next) = rows.get((r + AHEAD) * stride..) {
            prefetch(&next[..dim.min(next.len())]);
        }
        for (p, row) in row[..dim].chunks(PANEL).enumerate() {
            let to = &mut panels[(p * count + r) * PANEL..][..PANEL];
            for chunk in 0..row.len().div_ceil(LANES) {
                to[chunk * LANES..][..LANES].copy_from_slice(&load_scalar(row, chunk));
            }
        }
    }
}

/// Rows that are on their way from memory at a time.
const AHEAD: usize = 8;

/// The first `count` rows, at most 64, of `dim` numbers as the columns of one panel, `[dim rounded up to 16, 64]`. Rows
/// behind them will be asked for next.
#[inline(always)]
pub fn pack_columns<T: Scalar>(rows: &[T], count: usize, dim: usize, panel: &mut [f32], wide: bool) {
    for at in 0..count.div_ceil(LANES) {
        let next = &rows[((at + 1) * LANES * dim).min(rows.len())..];
        let rows = &rows[at * LANES * dim..((at + 1) * LANES).min(count) * dim];
        let squares = panel.as_chunks_mut::<{ LANES * PANEL }>().0;
        for (chunk, to) in squares.iter_mut().enumerate().take(dim.div_ceil(LANES)) {
            let mut square = [[0.0; LANES]; LANES];
            for (to, row) in square.iter_mut().zip(rows.chunks_exact(dim)) {
                *to = load_scalar(row, chunk);
            }
            for row in next.chunks_exact(dim).take(LANES) {
                prefetch(&row[chunk * LANES..][..1]);
            }
            let columns = transposed(&square, wide);
            for (to, column) in to.chunks_exact_mut(PANEL).zip(&columns) {
                to[at * LANES..][..LANES].copy_from_slice(column);
            }
        }
    }
}

/// Columns become rows.
#[inline(always)]
#[allow(unsafe_code, reason = "shuffles that the compiler does not find")]
pub fn transposed(square: &[Lanes; LANES], wide: bool) -> [Lanes; LANES] {
    #[cfg(target_arch = "x86_64")]
    if wide {
        // SAFETY: `wide` says that the processor has AVX-512.
        return unsafe { transposed_avx512(square) };
    }
    let _ = wide;
    let mut columns = [[0.0; LANES]; LANES];
    for (j, column) in columns.iter_mut().enumerate() {
        for i in 0..LANES {
            column[i] = square[i][j];
        }
    }
    columns
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
#[allow(unsafe_code, reason = "loads and stores of whole vectors")]
fn transposed_avx512(square: &[Lanes; LANES]) -> [Lanes; LANES] {
    use std::arch::x86_64::*;
    let mut a = [_mm512_setzero_ps(); LANES];
    for i in 0..LANES {
        // SAFETY: 16 floats.
        a[i] = unsafe { _mm512_loadu_ps(square[i].as_ptr()) };
    }
    let mut b = a;
    for i in 0..LANES / 2 {
        b[2 * i] = _mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]);
    }
    // Now `a[4 i + j]`: element `j` of each 128 bits, of rows `4 i..4 i + 4`.
    for i in 0..LANES / 4 {
        for j in 0..2 {
            let (low, high) = (_mm512_castps_pd(b[4 * i + j]), _mm512_castps_pd(b[4 * i + j + 2]));
            a[4 * i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            a[4 * i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    }
    for j in 0..4 {
        let first = _mm512_shuffle_f32x4::<0x88>(a[j], a[j + 4]);
        let second = _mm512_shuffle_f32x4::<0x88>(a[j + 8], a[j + 12]);
        let third = _mm512_shuffle_f32x4::<0xdd>(a[j], a[j + 4]);
        let fourth = _mm512_shuffle_f32x4::<0xdd>(a[j + 8], a[j + 12]);
        b[j] = _mm512_shuffle_f32x4::<0x88>(first, second);
        b[j + 8] = _mm512_shuffle_f32x4::<0xdd>(first, second);
        b[j + 4] = _mm512_shuffle_f32x4::<0x88>(third, fourth);
        b[j + 12] = _mm512_shuffle_f32x4::<0xdd>(third, fourth);
    }
    let mut columns = [[0.0; LANES]; LANES];
    for (column, lanes) in columns.iter_mut().zip(b) {
        // SAFETY: 16 floats.
        unsafe { _mm512_storeu_ps(column.as_mut_ptr(), lanes) };
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_columns() {
        for (wide, count) in [(false, 64), (wide_registers(), 64), (wide_registers(), 19)] {
            let dim = 37;
            let rows: Vec<f32> = (0..count * dim).map(|i| i as f32).collect();
            let mut panel = vec![f32::NAN; 48 * PANEL];
            pack_columns(&rows, count, dim, &mut panel, wide);
            for i in 0..count * dim {
                assert_eq!(panel[i % dim * PANEL + i / dim], rows[i]);
            }
        }
    }
}

//! Transposition with AVX-512, 16 by 16 words at a time.

use std::arch::x86_64::*;

use crate::{
    cache_line::CacheLine,
    lanes::{LANES, Lanes},
};

/// Transposes 16 by 16 floats.
#[target_feature(enable = "avx512f")]
#[inline]
pub(crate) fn transpose(rows: &[Lanes; LANES], columns: &mut [Lanes; LANES]) {
    // SAFETY: rows are 16 floats; the feature is enabled.
    unsafe {
        let mut r = [_mm512_setzero_si512(); LANES];
        for i in 0..LANES {
            r[i] = _mm512_loadu_si512(rows[i].as_ptr().cast());
        }
        for (column, lanes) in columns.iter_mut().zip(transpose_16x16(r)) {
            _mm512_storeu_si512(column.as_mut_ptr().cast(), lanes);
        }
    }
}

/// Transposes 16 by 16 words.
///
/// # Safety
/// The processor must have AVX-512 F.
#[inline(always)]
pub(crate) unsafe fn transpose_lines(rows: &[CacheLine; 16]) -> [CacheLine; 16] {
    let mut columns = [CacheLine::ZERO; 16];
    // SAFETY: lines are 64 aligned bytes; the caller has checked the features.
    unsafe {
        let mut r = [_mm512_setzero_si512(); 16];
        for i in 0..16 {
            r[i] = _mm512_load_si512(rows[i].0.as_ptr().cast());
        }
        for (line, column) in columns.iter_mut().zip(transpose_16x16(r)) {
            _mm512_store_si512(line.0.as_mut_ptr().cast(), column);
        }
    }
    columns
}

/// Word `i` of vector `j` becomes word `j` of vector `i`.
///
/// # Safety
/// The processor must have AVX-512 F.
#[inline(always)]
pub(crate) unsafe fn transpose_16x16(mut r: [__m512i; 16]) -> [__m512i; 16] {
    // SAFETY: the caller has checked the features.
    unsafe {
        let mut t = r;
        for i in 0..8 {
            t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
        }
        for i in 0..4 {
            r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
            r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
            r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
            r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
        }
        // Each r[4 * g + c] now holds, in quarter q, column 4 * q + c of rows 4 * g to 4 * g + 3.
        for c in 0..4 {
            let low = _mm512_shuffle_i32x4(r[c], r[4 + c], 0b10_00_10_00);
            let high = _mm512_shuffle_i32x4(r[c], r[4 + c], 0b11_01_11_01);
            let low2 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0b10_00_10_00);
            let high2 = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0b11_01_11_01);
            t[c] = _mm512_shuffle_i32x4(low, low2, 0b10_00_10_00);
            t[8 + c] = _mm512_shuffle_i32x4(low, low2, 0b11_01_11_01);
            t[4 + c] = _mm512_shuffle_i32x4(high, high2, 0b10_00_10_00);
            t[12 + c] = _mm512_shuffle_i32x4(high, high2, 0b11_01_11_01);
        }
        t
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transpose_lines_swaps_rows_and_columns() {
        if !is_x86_feature_detected!("avx512f") {
            return;
        }
        let rows: [CacheLine; 16] =
            std::array::from_fn(|r| CacheLine(std::array::from_fn(|c| (16 * r + c) as u32)));
        // SAFETY: AVX-512 F is all it uses.
        let columns = unsafe { transpose_lines(&rows) };
        for (r, row) in rows.iter().enumerate() {
            let column = columns.iter().map(|line| line.0[r]);
            assert!(column.eq(row.0), "row {r}");
        }
    }
}

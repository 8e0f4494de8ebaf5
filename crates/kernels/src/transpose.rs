//! Rows become columns, with the shuffles of each family of instructions: the compiler does not find them.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use crate::{
    lanes::{LANES, Lanes},
    simd::{SimdLevel, simd_level},
};

/// Element `i` of row `j` becomes element `j` of column `i`.
#[inline(always)]
#[allow(unsafe_code, reason = "entering functions compiled for some instructions")]
pub fn transpose(rows: &[Lanes; LANES], columns: &mut [Lanes; LANES]) {
    match simd_level() {
        SimdLevel::Portable => portable(rows, columns),
        // SAFETY: the processor has the feature.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2 => unsafe { avx2(rows, columns) },
        // SAFETY: all others have AVX-512.
        #[cfg(target_arch = "x86_64")]
        _ => unsafe { avx512(rows, columns) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => portable(rows, columns),
    }
}

#[inline(always)]
fn portable(rows: &[Lanes; LANES], columns: &mut [Lanes; LANES]) {
    for (j, column) in columns.iter_mut().enumerate() {
        for i in 0..LANES {
            column[i] = rows[i][j];
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
#[allow(unsafe_code, reason = "vectors of one family of instructions")]
fn avx2(rows: &[Lanes; LANES], columns: &mut [Lanes; LANES]) {
    // SAFETY: the feature is enabled.
    unsafe {
        corner::<0, 0>(rows, columns);
        corner::<0, 8>(rows, columns);
        corner::<8, 0>(rows, columns);
        corner::<8, 8>(rows, columns);
    }
}

/// Eight rows from `TOP` on, of each the eight numbers from `LEFT` on.
///
/// # Safety
/// The processor must have AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(unsafe_code, reason = "loads and stores of whole vectors")]
unsafe fn corner<const TOP: usize, const LEFT: usize>(rows: &[Lanes; LANES], columns: &mut [Lanes; LANES]) {
    const { assert!(TOP + 8 <= LANES && LEFT + 8 <= LANES) };
    // SAFETY: halves of rows are 8 floats; the feature is the caller's.
    unsafe {
        let mut r = [_mm256_setzero_si256(); 8];
        for i in 0..8 {
            r[i] = _mm256_loadu_si256(rows[TOP + i].as_ptr().add(LEFT).cast());
        }
        let r = eight(r);
        for i in 0..8 {
            _mm256_storeu_si256(columns[LEFT + i].as_mut_ptr().add(TOP).cast(), r[i]);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
#[inline]
#[allow(unsafe_code, reason = "loads and stores of whole vectors")]
fn avx512(rows: &[Lanes; LANES], columns: &mut [Lanes; LANES]) {
    // SAFETY: rows are 16 floats; the feature is enabled.
    unsafe {
        let mut r = [_mm512_setzero_si512(); LANES];
        for i in 0..LANES {
            r[i] = _mm512_loadu_si512(rows[i].as_ptr().cast());
        }
        for (column, lanes) in columns.iter_mut().zip(sixteen(r)) {
            _mm512_storeu_si512(column.as_mut_ptr().cast(), lanes);
        }
    }
}

/// Word `i` of vector `j` becomes word `j` of vector `i`.
///
/// # Safety
/// The processor must have AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(unsafe_code, reason = "vectors of one family of instructions")]
pub unsafe fn eight(r: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: the features are the caller's.
    unsafe {
        let mut t = r;
        for i in 0..4 {
            t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
        }
        // Each u[4 * g + c] holds, in half h, column 4 * h + c of rows 4 * g to 4 * g + 3.
        let mut u = t;
        for g in 0..2 {
            for c in 0..2 {
                let (a, b) = (t[4 * g + c], t[4 * g + 2 + c]);
                u[4 * g + 2 * c] = _mm256_unpacklo_epi64(a, b);
                u[4 * g + 2 * c + 1] = _mm256_unpackhi_epi64(a, b);
            }
        }
        for c in 0..4 {
            t[c] = _mm256_permute2x128_si256::<0x20>(u[c], u[4 + c]);
            t[4 + c] = _mm256_permute2x128_si256::<0x31>(u[c], u[4 + c]);
        }
        t
    }
}

/// As [`eight`], of sixteen vectors.
///
/// # Safety
/// The processor must have AVX-512 F.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(unsafe_code, reason = "vectors of one family of instructions")]
pub unsafe fn sixteen(mut r: [__m512i; 16]) -> [__m512i; 16] {
    // SAFETY: the features are the caller's.
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
    fn rows_and_columns_change_places() {
        let rows: [Lanes; LANES] = std::array::from_fn(|i| std::array::from_fn(|j| (i * LANES + j) as f32));
        for transpose in [portable, transpose] {
            let mut columns = [[f32::NAN; LANES]; LANES];
            transpose(&rows, &mut columns);
            for i in 0..LANES {
                for j in 0..LANES {
                    assert_eq!(columns[j][i], rows[i][j], "row {i}, column {j}");
                }
            }
        }
    }
}

//! Transposition with AVX2, 8 by 8 words at a time.

use std::arch::x86_64::*;

use crate::lanes::{LANES, Lanes};

/// Transposes 16 by 16 floats.
#[target_feature(enable = "avx2")]
#[inline]
pub(crate) fn transpose(rows: &[Lanes; LANES], columns: &mut [Lanes; LANES]) {
    // SAFETY: the feature is enabled.
    unsafe {
        transpose_quarter::<0, 0>(rows, columns);
        transpose_quarter::<0, 8>(rows, columns);
        transpose_quarter::<8, 0>(rows, columns);
        transpose_quarter::<8, 8>(rows, columns);
    }
}

/// Eight numbers from column `LEFT` of each of the eight rows from `TOP`.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
unsafe fn transpose_quarter<const TOP: usize, const LEFT: usize>(
    rows: &[Lanes; LANES],
    columns: &mut [Lanes; LANES],
) {
    const { assert!(TOP + 8 <= LANES && LEFT + 8 <= LANES) };
    // SAFETY: half rows are 8 floats; the caller has checked the features.
    unsafe {
        let mut r = [_mm256_setzero_si256(); 8];
        for i in 0..8 {
            r[i] = _mm256_loadu_si256(rows[TOP + i].as_ptr().add(LEFT).cast());
        }
        let r = transpose_8x8(r);
        for i in 0..8 {
            _mm256_storeu_si256(columns[LEFT + i].as_mut_ptr().add(TOP).cast(), r[i]);
        }
    }
}

/// Word `i` of vector `j` becomes word `j` of vector `i`.
///
/// # Safety
/// The processor must have AVX2.
#[inline(always)]
pub(crate) unsafe fn transpose_8x8(r: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: the caller has checked the features.
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

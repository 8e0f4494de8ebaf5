//! 64 bytes that kernels load and store at once.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// 16 words, whatever they hold.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line(pub [u32; 16]);

impl Line {
    pub const ZERO: Line = Line([0; 16]);
}

/// Columns become rows.
///
/// # Safety
/// The processor must have AVX-512 F.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn transposed(rows: &[Line; 16]) -> [Line; 16] {
    let mut turned = [Line::ZERO; 16];
    // SAFETY: lines are 64 aligned bytes; the features are the caller's.
    unsafe {
        let mut r = [_mm512_setzero_si512(); 16];
        for i in 0..16 {
            r[i] = _mm512_load_si512(rows[i].0.as_ptr().cast());
        }
        for (line, column) in turned.iter_mut().zip(transpose(r)) {
            _mm512_store_si512(line.0.as_mut_ptr().cast(), column);
        }
    }
    turned
}

/// [`transposed`], in registers.
///
/// # Safety
/// The processor must have AVX-512 F.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn transpose(mut r: [__m512i; 16]) -> [__m512i; 16] {
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

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn transposing_swaps_rows_and_columns() {
        if !is_x86_feature_detected!("avx512f") {
            return;
        }
        let rows: [Line; 16] = std::array::from_fn(|r| Line(std::array::from_fn(|c| (16 * r + c) as u32)));
        // SAFETY: AVX-512 F is all it uses.
        let turned = unsafe { transposed(&rows) };
        for (r, row) in rows.iter().enumerate() {
            let column = turned.iter().map(|line| line.0[r]);
            assert!(column.eq(row.0), "row {r}");
        }
    }
}

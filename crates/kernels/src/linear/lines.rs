//! 64 bytes that kernels load and store at once.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use crate::transpose::sixteen;

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
        for (line, column) in turned.iter_mut().zip(sixteen(r)) {
            _mm512_store_si512(line.0.as_mut_ptr().cast(), column);
        }
    }
    turned
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

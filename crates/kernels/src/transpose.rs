//! Transposition of 16 by 16 floats, with shuffles that the compiler does not find.

#[cfg(target_arch = "x86_64")]
use crate::x86::{avx2, avx512};
use crate::{
    lanes::{LANES, Lanes},
    simd::{SimdLevel, simd_level},
};

/// Element `i` of row `j` becomes element `j` of column `i`.
#[inline(always)]
pub(crate) fn transpose(rows: &[Lanes; LANES], columns: &mut [Lanes; LANES]) {
    match simd_level() {
        SimdLevel::Portable => transpose_portable(rows, columns),
        // SAFETY: the processor has AVX2.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2 => unsafe { avx2::transpose::transpose(rows, columns) },
        // SAFETY: all higher levels have AVX-512.
        #[cfg(target_arch = "x86_64")]
        _ => unsafe { avx512::transpose::transpose(rows, columns) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => transpose_portable(rows, columns),
    }
}

#[inline(always)]
fn transpose_portable(rows: &[Lanes; LANES], columns: &mut [Lanes; LANES]) {
    for (j, column) in columns.iter_mut().enumerate() {
        for i in 0..LANES {
            column[i] = rows[i][j];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transpose_swaps_rows_and_columns() {
        let rows: [Lanes; LANES] = std::array::from_fn(|i| std::array::from_fn(|j| (i * LANES + j) as f32));
        for transpose in [transpose_portable, transpose] {
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

//! The product with AVX2's multiplication of pairs of 16-bit integers.

use std::arch::x86_64::*;

use super::{PANEL, Stretch, inputs::Tile};

/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn add(stretch: Stretch, tile: Tile, sums: &mut [[f32; PANEL]]) {
    for (r, sums) in sums.chunks_mut(2).enumerate() {
        // SAFETY: the features are enabled.
        unsafe {
            match sums {
                [_, _] => rows::<2>(stretch, tile, 2 * r, sums),
                _ => rows::<1>(stretch, tile, 2 * r, sums),
            }
        }
    }
}

/// Rows `r..r + M` of a tile; 16 weight rows at a time, as many sums as there are registers for.
#[inline(always)]
unsafe fn rows<const M: usize>(stretch: Stretch, tile: Tile, r: usize, sums: &mut [[f32; PANEL]]) {
    let Stretch { panel, start, groups, group } = stretch;
    let rows = tile.rows;
    // SAFETY: the features are the caller's; vectors are loaded from and stored to arrays that hold them.
    unsafe {
        let low = _mm256_set1_epi32(0x00ff_00ff);
        for half in 0..2 {
            for g in 0..groups {
                let x = &tile.groups[(start / group + g) * rows + r..][..M];
                let mut dots = [[_mm256_setzero_si256(); 2]; M];
                for m in 0..M {
                    dots[m] = [_mm256_set1_epi32(x[m].correction); 2];
                }
                for q in g * group / 4..(g + 1) * group / 4 {
                    let block = 2 * (start / 64 + q / 16) * rows + r;
                    let codes = panel.codes[q][half].0.as_ptr();
                    for part in 0..2 {
                        let four = _mm256_load_si256(codes.add(8 * part).cast());
                        let (even, odd) =
                            (_mm256_and_si256(four, low), _mm256_and_si256(_mm256_srli_epi32(four, 8), low));
                        for m in 0..M {
                            let pair = |at: usize| _mm256_set1_epi32(tile.lines[at + m].0[q % 16] as i32);
                            let first = _mm256_madd_epi16(even, pair(block));
                            let second = _mm256_madd_epi16(odd, pair(block + rows));
                            dots[m][part] = _mm256_add_epi32(dots[m][part], _mm256_add_epi32(first, second));
                        }
                    }
                }
                for m in 0..M {
                    for part in 0..2 {
                        let at =
                            |values: &[[f32; 16]; 2]| _mm256_loadu_ps(values[half].as_ptr().add(8 * part));
                        let place = sums[m].as_mut_ptr().add(16 * half + 8 * part);
                        let dot = _mm256_mul_ps(_mm256_cvtepi32_ps(dots[m][part]), _mm256_set1_ps(x[m].step));
                        let sum = _mm256_fmadd_ps(at(&panel.scales[g]), dot, _mm256_loadu_ps(place));
                        let sum = _mm256_fmadd_ps(at(&panel.biases[g]), _mm256_set1_ps(x[m].sum), sum);
                        _mm256_storeu_ps(place, sum);
                    }
                }
            }
        }
    }
}

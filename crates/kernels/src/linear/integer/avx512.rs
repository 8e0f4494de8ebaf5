//! The product with AVX-512's multiplication of bytes.

use std::arch::x86_64::*;

use super::{PANEL, Stretch, inputs::Tile};

/// Rows of `x` that share a load of codes.
const MOST: usize = 4;

/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")]
pub(super) unsafe fn add(stretch: Stretch, tile: Tile, sums: &mut [[f32; PANEL]]) {
    for (i, sums) in sums.chunks_mut(MOST).enumerate() {
        let r = i * MOST;
        // SAFETY: the features are enabled.
        unsafe {
            match sums.len() {
                4 => rows::<4>(stretch, tile, r, sums),
                3 => rows::<3>(stretch, tile, r, sums),
                2 => rows::<2>(stretch, tile, r, sums),
                _ => rows::<1>(stretch, tile, r, sums),
            }
        }
    }
}

/// Rows `r..r + M` of a tile.
#[inline(always)]
unsafe fn rows<const M: usize>(stretch: Stretch, tile: Tile, r: usize, sums: &mut [[f32; PANEL]]) {
    let Stretch { panel, start, groups, group } = stretch;
    let (rows, fours) = (tile.rows, group / 4);
    assert!(r + M <= rows && sums.len() == M, "rows of the tile");
    let blocks = start / 64 + (groups * group).div_ceil(64);
    assert!(tile.lines.len() >= 2 * blocks * rows && tile.groups.len() >= (start / group + groups) * rows);
    assert!(groups * fours <= panel.codes.len() && groups <= panel.scales.len());
    // SAFETY: the features are the caller's; the asserts keep places within the tile and the panel.
    unsafe {
        let mut totals = [[_mm512_setzero_ps(); 2]; M];
        for m in 0..M {
            for half in 0..2 {
                totals[m][half] = _mm512_loadu_ps(sums[m].as_ptr().add(16 * half));
            }
        }
        for g in 0..groups {
            let x = tile.groups.as_ptr().add((start / group + g) * rows + r);
            // Sums of the products with upper and with lower bytes.
            let mut dots = [[[_mm512_setzero_si512(); 2]; 2]; M];
            for m in 0..M {
                let correction = _mm512_set1_epi32((*x.add(m)).correction);
                dots[m][0][1] = correction;
                dots[m][1][1] = correction;
            }
            let (mut q, end) = (g * fours, (g + 1) * fours);
            while q < end {
                let (block, from) = (start / 64 + q / 16, q % 16);
                let count = (16 - from).min(end - q);
                let upper = tile.lines.as_ptr().add(2 * block * rows + r).cast::<i32>().add(from);
                let lower = upper.add(16 * rows);
                let codes = panel.codes.as_ptr().add(q).cast::<__m512i>();
                for i in 0..count {
                    let codes =
                        [_mm512_load_si512(codes.add(2 * i)), _mm512_load_si512(codes.add(2 * i + 1))];
                    for m in 0..M {
                        let upper = _mm512_set1_epi32(*upper.add(16 * m + i));
                        let lower = _mm512_set1_epi32(*lower.add(16 * m + i));
                        for half in 0..2 {
                            let [high, low] = dots[m][half];
                            dots[m][half] = [
                                _mm512_dpbusd_epi32(high, codes[half], upper),
                                _mm512_dpbusd_epi32(low, codes[half], lower),
                            ];
                        }
                    }
                }
                q += count;
            }
            for half in 0..2 {
                let scale = _mm512_load_ps(panel.scales[g][half].as_ptr());
                let bias = _mm512_load_ps(panel.biases[g][half].as_ptr());
                for m in 0..M {
                    let x = &*x.add(m);
                    totals[m][half] =
                        add_group(totals[m][half], dots[m][half], [scale, bias], [x.step, x.sum]);
                }
            }
        }
        for m in 0..M {
            for half in 0..2 {
                _mm512_storeu_ps(sums[m].as_mut_ptr().add(16 * half), totals[m][half]);
            }
        }
    }
}

/// A group of one row of `x` and 16 weight rows, from its dots with upper and lower bytes.
#[inline(always)]
pub(super) unsafe fn add_group(
    total: __m512,
    [upper, lower]: [__m512i; 2],
    [scale, bias]: [__m512; 2],
    [step, sum]: [f32; 2],
) -> __m512 {
    // SAFETY: the features are the caller's.
    unsafe {
        let dot = _mm512_add_epi32(_mm512_slli_epi32(upper, 8), lower);
        let dot = _mm512_mul_ps(_mm512_cvtepi32_ps(dot), _mm512_set1_ps(step));
        _mm512_fmadd_ps(bias, _mm512_set1_ps(sum), _mm512_fmadd_ps(scale, dot, total))
    }
}

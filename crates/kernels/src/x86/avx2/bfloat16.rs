//! Sums of the bfloat16 product with AVX2.

use std::arch::x86_64::*;

use crate::{cache_line::CacheLine, lanes::LANES};

/// Lanes of each row of `weights` with each of `xs`. The compiler does not vectorise the portable
/// version by half lines.
///
/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub(crate) unsafe fn sums<const N: usize, const M: usize>(
    weights: [&[CacheLine]; N],
    xs: [&[CacheLine]; M],
) -> [[[f32; LANES]; M]; N] {
    let width = weights[0].len();
    assert!(weights.iter().chain(&xs).all(|lines| lines.len() == width), "rows of one length");
    let upper = _mm256_set1_epi32(0xffff_0000u32 as i32);
    let mut sums = [[[_mm256_setzero_ps(); 2]; M]; N];
    for line in 0..width {
        for half in 0..2 {
            // SAFETY: a line is 64 aligned bytes, and each row has this many.
            let load = |lines: &[CacheLine]| unsafe {
                _mm256_load_si256(lines.as_ptr().add(line).cast::<__m256i>().add(half))
            };
            for j in 0..N {
                let w = load(weights[j]);
                let odd = _mm256_castsi256_ps(_mm256_and_si256(w, upper));
                let even = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(w));
                for a in 0..M {
                    let x = load(xs[a]);
                    let sum = _mm256_fmadd_ps(
                        odd,
                        _mm256_castsi256_ps(_mm256_and_si256(x, upper)),
                        sums[j][a][half],
                    );
                    let x = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(x));
                    sums[j][a][half] = _mm256_fmadd_ps(even, x, sum);
                }
            }
        }
    }
    let mut lanes = [[[0.0; LANES]; M]; N];
    for j in 0..N {
        for a in 0..M {
            for half in 0..2 {
                // SAFETY: two halves of sixteen lanes.
                unsafe { _mm256_storeu_ps(lanes[j][a].as_mut_ptr().add(8 * half), sums[j][a][half]) };
            }
        }
    }
    lanes
}

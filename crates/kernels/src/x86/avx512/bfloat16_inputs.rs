//! Rounding of rows of `x` to bfloat16 with AVX-512.

use std::arch::x86_64::*;

use super::transpose::transpose_lines;
use crate::{
    cache_line::CacheLine,
    linear::{
        bfloat16::inputs::{UnroundedRows, block_of},
        tiling::{INPUT_BLOCK, TILE_ROWS},
    },
};

/// Rounds rows of `x` to bfloat16, interleaving them if they are several.
///
/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(crate) unsafe fn round(rows: UnroundedRows) {
    let UnroundedRows { x, k, sources, lines } = rows;
    let rows = sources.len();
    let mut transposed = [[CacheLine::ZERO; TILE_ROWS]; 2];
    for block in 0..k.div_ceil(INPUT_BLOCK) {
        for (r, &source) in sources.iter().enumerate() {
            let values = block_of(&x[source as usize * k..][..k], block);
            // SAFETY: the features are enabled; lines are 64 aligned bytes.
            unsafe {
                let pairs = round_block(&values);
                for half in 0..2 {
                    let line =
                        if rows == 1 { &mut lines[2 * block + half] } else { &mut transposed[half][r] };
                    _mm512_store_si512(line.0.as_mut_ptr().cast(), pairs[half]);
                }
            }
        }
        if rows > 1 {
            let (first, second) = lines[block * 2 * rows..][..2 * rows].split_at_mut(rows);
            for (transposed, lines) in transposed.iter().zip([first, second]) {
                if rows == TILE_ROWS {
                    // SAFETY: the features are enabled.
                    lines.copy_from_slice(&unsafe { transpose_lines(transposed) });
                } else {
                    interleave(transposed, rows, lines);
                }
            }
        }
    }
}

/// A block as pairs of bfloat16.
///
/// # Safety
/// The processor must have AVX-512 F, BW and BF16.
#[inline(always)]
unsafe fn round_block(values: &[f32; INPUT_BLOCK]) -> [__m512i; 2] {
    // SAFETY: the caller ensures it; there are 64 values.
    unsafe {
        let mut v = [_mm512_setzero_ps(); 4];
        for i in 0..4 {
            v[i] = _mm512_loadu_ps(values.as_ptr().add(16 * i));
        }
        let low = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(v[1], v[0]));
        let high = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(v[3], v[2]));
        [low, high]
    }
}

/// Interleaves a line of each of `rows` rows, fewer than a tile's: pair 0 of all rows, then pair 1
/// and so on.
fn interleave(lines: &[CacheLine; TILE_ROWS], rows: usize, out: &mut [CacheLine]) {
    for i in 0..16 * rows {
        out[i / 16].0[i % 16] = lines[i % rows].0[i / rows];
    }
}

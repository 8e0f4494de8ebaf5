//! The bfloat16 product with AVX-512's dot products of bfloat16.

use std::arch::x86_64::*;

use super::bfloat16_unpack::{UnpackAvx512, prefetch_rows, unpack_column};
use crate::{
    cache_line::CacheLine,
    linear::{Scratch, bfloat16::task::Bf16Task, tiling::PANEL_ROWS},
};

/// Weight rows, and rows of `x`, in a register tile.
const REGISTER_TILE: usize = 4;
/// Prefetch distance in bytes of weights: about what memory delivers during one access.
const PREFETCH_BYTES: usize = 8 << 10;

/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")]
pub(crate) unsafe fn multiply<U: UnpackAvx512>(task: &Bf16Task, weight: U) {
    // SAFETY: the features are enabled.
    unsafe {
        match task.num_inputs() {
            1 => stream::<U, 1>(task, weight),
            2 => stream::<U, 2>(task, weight),
            3 => stream::<U, 3>(task, weight),
            4 => stream::<U, 4>(task, weight),
            _ => panels(task, weight),
        }
    }
}

/// M rows of `x`: each weight is unpacked and used at once.
#[inline(always)]
unsafe fn stream<U: UnpackAvx512, const M: usize>(task: &Bf16Task, weight: U) {
    let width = task.blocks * 2;
    let mut x: [&[CacheLine]; M] = [&[]; M];
    for a in 0..M {
        x[a] = &task.x[a * width..][..width];
    }
    let mut unpacked = [CacheLine::ZERO; 2 * REGISTER_TILE];
    let row: usize = weight.stored(0).iter().map(|(_, bytes)| bytes).sum();
    let distance = (PREFETCH_BYTES / row.max(1)).next_multiple_of(REGISTER_TILE).max(REGISTER_TILE);
    for start in (0..task.rows).step_by(REGISTER_TILE) {
        let count = REGISTER_TILE.min(task.rows - start);
        // SAFETY: the caller ensures it.
        unsafe {
            let mut sums = [[_mm512_setzero_ps(); M]; REGISTER_TILE];
            for block in 0..task.blocks {
                prefetch_rows(weight, task.first + start + distance, REGISTER_TILE, block, task.blocks);
                unpack_column(weight, task.first + start, block, &mut unpacked[..2 * count]);
                for j in 0..REGISTER_TILE {
                    for a in 0..M {
                        let sum = &mut sums[j][a];
                        *sum = dot(*sum, load(&unpacked[2 * j]), load(&x[a][2 * block]));
                        *sum = dot(*sum, load(&unpacked[2 * j + 1]), load(&x[a][2 * block + 1]));
                    }
                }
            }
            for a in 0..M {
                let mut outs = [0.0; REGISTER_TILE];
                for j in 0..REGISTER_TILE {
                    outs[j] = reduce(sums[j][a]);
                }
                task.output.write(a, start, &outs, count);
            }
        }
    }
}

/// Many rows of `x`: weights are unpacked once for all.
#[inline(always)]
unsafe fn panels<U: UnpackAvx512>(task: &Bf16Task, weight: U) {
    let width = task.blocks * 2;
    let mut unpacked = Scratch::new(PANEL_ROWS * width);
    for panel in task.panels() {
        for (row, lines) in panel.clone().zip(unpacked.chunks_exact_mut(width)) {
            for block in 0..task.blocks {
                // SAFETY: lines are 64 aligned bytes.
                unsafe {
                    let [first, second] = weight.block_avx512(task.first + row, block);
                    _mm512_store_si512(lines[2 * block].0.as_mut_ptr().cast(), first);
                    _mm512_store_si512(lines[2 * block + 1].0.as_mut_ptr().cast(), second);
                }
            }
        }
        // Rows of `x` are the outer loop: those of a tile stay in the first-level cache for the
        // whole panel.
        for i in (0..task.num_inputs()).step_by(REGISTER_TILE) {
            let inputs = REGISTER_TILE.min(task.num_inputs() - i);
            for start in panel.clone().step_by(REGISTER_TILE) {
                let rows = &unpacked[(start - panel.start) * width..][..REGISTER_TILE * width];
                // SAFETY: the caller ensures it.
                let outs = unsafe { tile(task, rows, i, inputs) };
                for (a, outs) in outs.as_chunks::<REGISTER_TILE>().0.iter().take(inputs).enumerate() {
                    task.output.write(i + a, start, outs, REGISTER_TILE.min(panel.end - start));
                }
            }
        }
    }
}

/// A tile of weight rows times a tile of rows of `x` from row `i`, of which `inputs` exist:
/// `[inputs, rows]`.
#[inline(always)]
unsafe fn tile(
    task: &Bf16Task,
    rows: &[CacheLine],
    i: usize,
    inputs: usize,
) -> [f32; REGISTER_TILE * REGISTER_TILE] {
    let width = task.blocks * 2;
    let (mut x, mut weights): ([&[CacheLine]; REGISTER_TILE], [&[CacheLine]; REGISTER_TILE]) =
        ([&[]; REGISTER_TILE], [&[]; REGISTER_TILE]);
    for j in 0..REGISTER_TILE {
        // Past the end, the last row is computed again.
        x[j] = &task.x[(i + j.min(inputs - 1)) * width..][..width];
        weights[j] = &rows[j * width..][..width];
    }
    // SAFETY: the caller ensures it.
    unsafe {
        let mut sums = [_mm512_setzero_ps(); REGISTER_TILE * REGISTER_TILE];
        for line in 0..width {
            let mut w = [_mm512_setzero_si512(); REGISTER_TILE];
            for j in 0..REGISTER_TILE {
                w[j] = load(&weights[j][line]);
            }
            for a in 0..REGISTER_TILE {
                let x = load(&x[a][line]);
                for j in 0..REGISTER_TILE {
                    sums[a * REGISTER_TILE + j] = dot(sums[a * REGISTER_TILE + j], w[j], x);
                }
            }
        }
        let mut outs = [0.0; REGISTER_TILE * REGISTER_TILE];
        _mm512_storeu_ps(outs.as_mut_ptr(), reduce16(sums));
        outs
    }
}

#[inline(always)]
unsafe fn load(line: &CacheLine) -> __m512i {
    // SAFETY: a line is 64 aligned bytes.
    unsafe { _mm512_load_si512(line.0.as_ptr().cast()) }
}

#[inline(always)]
unsafe fn dot(sum: __m512, w: __m512i, x: __m512i) -> __m512 {
    // SAFETY: the types differ in name only.
    unsafe {
        let (w, x) =
            (std::mem::transmute::<__m512i, __m512bh>(w), std::mem::transmute::<__m512i, __m512bh>(x));
        _mm512_dpbf16_ps(sum, w, x)
    }
}

/// Lanes added as a fixed tree: `i` and `i + 8`, then `i + 4`, `i + 2`, `i + 1`.
#[inline(always)]
unsafe fn reduce(sum: __m512) -> f32 {
    // SAFETY: the caller ensures it.
    unsafe {
        let sum = _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1));
        let sum = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
        let sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
        _mm_cvtss_f32(_mm_add_ss(sum, _mm_shuffle_ps(sum, sum, 1)))
    }
}

/// [`reduce`] of sixteen vectors at once.
#[inline(always)]
unsafe fn reduce16(sums: [__m512; 16]) -> __m512 {
    // SAFETY: the caller ensures it.
    unsafe {
        // Lanes i + (i + 8) of two vectors side by side: halves a b | a b.
        let mut eight = [_mm512_setzero_ps(); 8];
        for i in 0..8 {
            let (a, b) = (sums[i], sums[i + 8]);
            let low = _mm512_shuffle_f32x4(a, b, 0b01_00_01_00);
            let high = _mm512_shuffle_f32x4(a, b, 0b11_10_11_10);
            eight[i] = _mm512_add_ps(low, high);
        }
        // Quarters of i, i + 8 | then i + 4, i + 12.
        let mut four = [_mm512_setzero_ps(); 4];
        for i in 0..4 {
            let (a, b) = (eight[i], eight[i + 4]);
            let low = _mm512_shuffle_f32x4(a, b, 0b10_00_10_00);
            let high = _mm512_shuffle_f32x4(a, b, 0b11_01_11_01);
            four[i] = _mm512_add_ps(low, high);
        }
        // Now each quarter is one of the sixteen: i, i + 8, i + 4, i + 12.
        let mut two = [_mm512_setzero_ps(); 2];
        for i in 0..2 {
            let (a, b) = (four[i], four[i + 2]);
            let low = _mm512_shuffle_ps(a, b, 0b01_00_01_00);
            let high = _mm512_shuffle_ps(a, b, 0b11_10_11_10);
            two[i] = _mm512_add_ps(low, high);
        }
        let low = _mm512_shuffle_ps(two[0], two[1], 0b10_00_10_00);
        let high = _mm512_shuffle_ps(two[0], two[1], 0b11_01_11_01);
        let mixed = _mm512_add_ps(low, high);
        // Quarters q hold vectors q' + {0, 2, 1, 3} with q' = 0, 8, 4, 12.
        let order = _mm512_set_epi32(15, 13, 14, 12, 7, 5, 6, 4, 11, 9, 10, 8, 3, 1, 2, 0);
        _mm512_permutexvar_ps(order, mixed)
    }
}

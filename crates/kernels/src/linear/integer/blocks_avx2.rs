//! Packed weights with AVX2: multiplied as they come out of memory, however many rows `x` has. Unpacking them into a panel
//! first would spare less than an eighth of the instructions.

use std::arch::x86_64::*;

use super::{
    PANEL,
    avx2::{Dots, MOST, add_fours, add_group},
    blocks::Lines,
    inputs::Tile,
};
use crate::linear::{lines::Line, packed::FloatType};

/// How far ahead of where it reads memory is asked for what comes, in lines.
const AHEAD: usize = 72;

/// See [`super::blocks::Multiply`].
///
/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn multiply(lines: Lines, tile: Tile, sums: &mut [[f32; PANEL]]) {
    // SAFETY: the features are enabled.
    unsafe {
        match lines.packing.bits {
            2 => multiply_bits::<2>(lines, tile, sums),
            4 => multiply_bits::<4>(lines, tile, sums),
            _ => multiply_bits::<8>(lines, tile, sums),
        }
    }
}

#[inline(always)]
unsafe fn multiply_bits<const BITS: usize>(lines: Lines, tile: Tile, sums: &mut [[f32; PANEL]]) {
    for (pass, sums) in sums.chunks_mut(MOST).enumerate() {
        let r = pass * MOST;
        // SAFETY: the features are the caller's.
        unsafe {
            match sums.len() {
                4 => multiply_rows::<BITS, 4, false>(lines, tile, r, sums),
                3 => multiply_rows::<BITS, 3, false>(lines, tile, r, sums),
                2 => multiply_rows::<BITS, 2, true>(lines, tile, r, sums),
                _ => multiply_rows::<BITS, 1, true>(lines, tile, r, sums),
            }
        }
    }
}

/// Of rows `r..r + M` of `x`; for `HIGH` see [`add_fours`].
#[inline(always)]
unsafe fn multiply_rows<const BITS: usize, const M: usize, const HIGH: bool>(
    Lines { packing, groups: lines, half }: Lines,
    tile: Tile,
    r: usize,
    sums: &mut [[f32; PANEL]],
) {
    let (words, width, fours) = (packing.group_words(), packing.group_lines(), 8 / BITS);
    let (rows, groups) = (tile.rows, lines.len() / width);
    assert!(sums.len() == M && r + M <= rows && tile.groups.len() == groups * rows);
    assert!(tile.lines.len() >= 2 * (groups * packing.group_size).div_ceil(64) * rows);
    // Half a block of `x` at a time: so many words, eight fours of codes. Groups are whole halves.
    let halves = words / BITS;
    // SAFETY: the features are the caller's; the asserts keep places within the tile, and `words` words of each group
    // are what its inputs are.
    unsafe {
        let mut totals = [[_mm256_setzero_ps(); 2]; M];
        for g in 0..groups {
            let line = lines.as_ptr().add(g * width);
            let mut dots: Dots<M> = [[[_mm256_setzero_si256(); 2]; 2]; M];
            for h in 0..halves {
                let at = g * halves + h;
                let x = tile.lines.as_ptr().add(at / 2 * 2 * rows + r).cast::<i32>().add(at % 2 * 8);
                for i in 0..BITS {
                    let word = line.add(h * BITS + i);
                    _mm_prefetch::<_MM_HINT_T0>(word.wrapping_add(AHEAD).cast());
                    let word = word.cast::<__m256i>();
                    let word = [_mm256_load_si256(word), _mm256_load_si256(word.add(1))];
                    for s in 0..fours {
                        add_fours::<BITS, M, HIGH>(&mut dots, word, s, x.add(i * fours + s), rows);
                    }
                }
            }
            let place = line.add(words);
            _mm_prefetch::<_MM_HINT_T0>(place.wrapping_add(AHEAD).cast());
            for part in 0..2 {
                let scales = floats(packing.floats, place, part);
                for m in 0..M {
                    let x = &*tile.groups.as_ptr().add(g * rows + r + m);
                    totals[m][part] = add_group::<HIGH>(totals[m][part], dots[m][part], scales, x);
                }
            }
        }
        for m in 0..M {
            for part in 0..2 {
                _mm256_storeu_ps(sums[m].as_mut_ptr().add(16 * half + 8 * part), totals[m][part]);
            }
        }
    }
}

/// A group's scales and biases of 8 of its 16 rows.
#[inline(always)]
unsafe fn floats(kind: FloatType, place: *const Line, part: usize) -> [__m256; 2] {
    // SAFETY: the features are the caller's; as many lines as the type needs.
    unsafe {
        let words = place.cast::<__m256>().add(part);
        let halves = place.cast::<__m128i>().add(part);
        match kind {
            FloatType::F32 => [*words, *words.add(2)],
            FloatType::F16 => [_mm256_cvtph_ps(*halves), _mm256_cvtph_ps(*halves.add(2))],
            FloatType::Bf16 => [bf16(*halves), bf16(*halves.add(2))],
        }
    }
}

#[inline(always)]
unsafe fn bf16(halves: __m128i) -> __m256 {
    // SAFETY: the features are the caller's.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves))) }
}

//! Packed weights with AVX2: multiplied as they come out of memory, however many rows `x` has. Unpacking them into a panel
//! first would spare less than an eighth of the instructions.

use std::arch::x86_64::*;

use super::{PANEL, blocks::Lines, inputs::Tile};
use crate::linear::{
    lines::Line,
    packed::{FloatType, Packed},
};

/// Rows of `x` at a time: with more their sums do not fit into registers.
const MOST: usize = 4;
/// How far ahead of where it reads memory is asked for what comes, in lines.
const AHEAD: usize = 72;

/// Sums of all products of 16 weight rows from the `first` on with a tile's rows, as half `half` of a panel.
///
/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn multiply(
    weight: Packed,
    first: usize,
    half: usize,
    tile: Tile,
    sums: &mut [[f32; PANEL]],
) {
    // SAFETY: the features are enabled.
    unsafe {
        match weight.packing().bits {
            2 => multiply_bits::<2>(weight, first, half, tile, sums),
            4 => multiply_bits::<4>(weight, first, half, tile, sums),
            _ => multiply_bits::<8>(weight, first, half, tile, sums),
        }
    }
}

#[inline(always)]
unsafe fn multiply_bits<const BITS: usize>(
    weight: Packed,
    first: usize,
    half: usize,
    tile: Tile,
    sums: &mut [[f32; PANEL]],
) {
    let lines = Lines {
        packing: weight.packing(),
        groups: weight.groups(first, 0..tile.groups.len() / tile.rows),
        half,
    };
    for (pass, sums) in sums.chunks_mut(MOST).enumerate() {
        let r = pass * MOST;
        // SAFETY: the features are the caller's.
        unsafe {
            match sums.len() {
                4 => multiply_rows::<BITS, 4>(lines, tile, r, sums),
                3 => multiply_rows::<BITS, 3>(lines, tile, r, sums),
                2 => multiply_rows::<BITS, 2>(lines, tile, r, sums),
                _ => multiply_rows::<BITS, 1>(lines, tile, r, sums),
            }
        }
    }
}

/// Of rows `r..r + M` of `x`, and of 8 weight rows at a time.
#[inline(always)]
unsafe fn multiply_rows<const BITS: usize, const M: usize>(
    Lines { packing, groups: lines, half }: Lines,
    tile: Tile,
    r: usize,
    sums: &mut [[f32; PANEL]],
) {
    let (words, width, fours) = (packing.group_words(), packing.group_lines(), 8 / BITS);
    let (rows, groups) = (tile.rows, lines.len() / width);
    assert!(sums.len() == M && r + M <= rows && tile.groups.len() == groups * rows);
    assert!(tile.lines.len() >= 2 * (groups * packing.group_size).div_ceil(64) * rows);
    // SAFETY: the features are the caller's; the asserts keep places within the tile, and `words * fours` fours of
    // each group are what its inputs are.
    unsafe {
        let mut totals = [[_mm256_setzero_ps(); 2]; M];
        for g in 0..groups {
            let line = lines.as_ptr().add(g * width);
            for i in 0..width {
                _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(i + AHEAD).cast());
            }
            for part in 0..2 {
                // Products of codes as they are, and of those that stand 4 bits higher.
                let mut dots = [[_mm256_setzero_si256(); 2]; M];
                for i in 0..words {
                    let word = _mm256_load_si256(line.add(i).cast::<__m256i>().add(part));
                    for s in 0..fours {
                        let place = (g * words + i) * fours + s;
                        let x = tile
                            .lines
                            .as_ptr()
                            .add(2 * (place / 16) * rows + r)
                            .cast::<i32>()
                            .add(place % 16);
                        let [even, odd] = pairs::<BITS>(word, s);
                        let chain = if BITS == 4 { s } else { 0 };
                        for m in 0..M {
                            let first = _mm256_madd_epi16(even, _mm256_set1_epi32(*x.add(16 * m)));
                            let second = _mm256_madd_epi16(odd, _mm256_set1_epi32(*x.add(16 * (rows + m))));
                            dots[m][chain] =
                                _mm256_add_epi32(dots[m][chain], _mm256_add_epi32(first, second));
                        }
                    }
                }
                let [scale, bias] = floats(packing.floats, line.add(words), part);
                for m in 0..M {
                    let x = &*tile.groups.as_ptr().add(g * rows + r + m);
                    let dot = _mm256_add_epi32(dots[m][0], _mm256_srai_epi32(dots[m][1], 4));
                    let dot = _mm256_mul_ps(_mm256_cvtepi32_ps(dot), _mm256_set1_ps(x.step));
                    let total = _mm256_fmadd_ps(scale, dot, totals[m][part]);
                    totals[m][part] = _mm256_fmadd_ps(bias, _mm256_set1_ps(x.sum), total);
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

/// Of four `s` in each word the first and third code, and the second and fourth, as words of 16 bits; those of 4 bits that do
/// not stand lowest in their byte are left where they stand, 16 times as large.
#[inline(always)]
unsafe fn pairs<const BITS: usize>(word: __m256i, s: usize) -> [__m256i; 2] {
    // SAFETY: the features are the caller's.
    unsafe {
        let (word, mask) = match (BITS, s) {
            (4, 0) => (word, 0x000f_000f),
            (4, _) => (word, 0x00f0_00f0),
            (8, _) => (word, 0x00ff_00ff),
            (_, 0) => (word, 0x0003_0003),
            (_, 1) => (_mm256_srli_epi32(word, 2), 0x0003_0003),
            (_, 2) => (_mm256_srli_epi32(word, 4), 0x0003_0003),
            _ => (_mm256_srli_epi32(word, 6), 0x0003_0003),
        };
        let mask = _mm256_set1_epi32(mask);
        [_mm256_and_si256(word, mask), _mm256_and_si256(_mm256_srli_epi32(word, 8), mask)]
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

//! The product of packed weights with AVX2, without unpacking them, for any number of rows of `x`:
//! unpacking them into a panel first would save less than an eighth of the instructions.

use std::{arch::x86_64::*, ops::Range};

use super::integer::{Dots, MAX_ROWS, add_fours, add_group};
use crate::{
    cache_line::CacheLine,
    linear::{
        FloatType,
        integer::{inputs::InputTile, packed::PackedRows, panel::K_BLOCK},
        tiling::PANEL_ROWS,
    },
};

/// Prefetch distance in cache lines.
const PREFETCH_LINES: usize = 72;

/// Sums of all products of 16 weight rows with a tile's rows, as half a panel.
///
/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn multiply(lines: PackedRows, tile: InputTile, sums: &mut [[f32; PANEL_ROWS]]) {
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
unsafe fn multiply_bits<const BITS: usize>(
    lines: PackedRows,
    tile: InputTile,
    sums: &mut [[f32; PANEL_ROWS]],
) {
    for (pass, sums) in sums.chunks_mut(MAX_ROWS).enumerate() {
        let r = pass * MAX_ROWS;
        // SAFETY: the caller has checked the features.
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

/// Rows `r..r + M` of `x`; for `HIGH` see [`add_fours`].
#[inline(always)]
unsafe fn multiply_rows<const BITS: usize, const M: usize, const HIGH: bool>(
    PackedRows { packing, groups: lines, half }: PackedRows,
    tile: InputTile,
    r: usize,
    sums: &mut [[f32; PANEL_ROWS]],
) {
    let (words, width) = (packing.group_words(), packing.group_lines());
    let (rows, groups) = (tile.rows, lines.len() / width);
    assert!(sums.len() == M && r + M <= rows && tile.groups.len() == groups * rows);
    assert!(tile.lines.len() >= 2 * (groups * packing.group_size).div_ceil(64) * rows);
    // Half a block of `x` at a time: eight fours of codes. Groups are whole halves.
    let halves = words / BITS;
    // SAFETY: the caller has checked the features; the asserts keep accesses within the tile, and
    // each group has `words` words of codes.
    unsafe {
        let mut totals = [[_mm256_setzero_ps(); 2]; M];
        let segment = K_BLOCK / packing.group_size;
        // Nested loops as with AVX-512 took fewer instructions and no less time.
        let mut left = segment;
        for g in 0..groups {
            let line = lines.as_ptr().add(g * width);
            let mut dots = [[[_mm256_setzero_si256(); 2]; 2]; M];
            let x = tile.lines.as_ptr().add(r);
            group_dots::<BITS, M, HIGH>(line, g * halves..(g + 1) * halves, x, rows, &mut dots);
            let place = line.add(words);
            _mm_prefetch::<_MM_HINT_T0>(place.wrapping_add(PREFETCH_LINES).cast());
            for part in 0..2 {
                let scales = floats(packing.floats, place, part);
                for m in 0..M {
                    let x = &*tile.groups.as_ptr().add(g * rows + r + m);
                    totals[m][part] = add_group::<HIGH>(totals[m][part], dots[m][part], scales, x);
                }
            }
            left -= 1;
            if left == 0 || g + 1 == groups {
                left = segment;
                for m in 0..M {
                    for part in 0..2 {
                        let sum = sums[m].as_mut_ptr().add(16 * half + 8 * part);
                        let before = if g < segment { _mm256_setzero_ps() } else { _mm256_loadu_ps(sum) };
                        _mm256_storeu_ps(sum, _mm256_add_ps(before, totals[m][part]));
                        totals[m][part] = _mm256_setzero_ps();
                    }
                }
            }
        }
    }
}

/// Dot products of a group whose codes start at `line`: half blocks `halves` of `M` of `rows` rows
/// of `x`, the first of which starts at `x`.
///
/// Not inlined: together with the loop around it, the registers do not suffice, and sums that are
/// kept in memory instead take a third longer.
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn group_dots<const BITS: usize, const M: usize, const HIGH: bool>(
    line: *const CacheLine,
    halves: Range<usize>,
    x: *const CacheLine,
    rows: usize,
    out: &mut Dots<M>,
) {
    let fours = 8 / BITS;
    // SAFETY: the caller ensures that the group and the rows of `x` have these halves.
    unsafe {
        let mut dots: Dots<M> = [[[_mm256_setzero_si256(); 2]; 2]; M];
        for (h, at) in halves.enumerate() {
            let x = x.add(at / 2 * 2 * rows).cast::<i32>().add(at % 2 * 8);
            for i in 0..BITS {
                let word = line.add(h * BITS + i);
                _mm_prefetch::<_MM_HINT_T0>(word.wrapping_add(PREFETCH_LINES).cast());
                let word = word.cast::<__m256i>();
                let word = [_mm256_load_si256(word), _mm256_load_si256(word.add(1))];
                for s in 0..fours {
                    add_fours::<BITS, M, HIGH>(&mut dots, word, s, x.add(i * fours + s), rows);
                }
            }
        }
        *out = dots;
    }
}

/// Scales and biases of 8 of the 16 rows of a group.
#[inline(always)]
unsafe fn floats(kind: FloatType, place: *const CacheLine, part: usize) -> [__m256; 2] {
    // SAFETY: the caller has checked the features; `place` has the lines that the type needs.
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
    // SAFETY: the caller has checked the features.
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves))) }
}

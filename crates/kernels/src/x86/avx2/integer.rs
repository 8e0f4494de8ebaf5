//! The integer product with AVX2's multiply-add of pairs of 16-bit integers.

use std::arch::x86_64::*;

use crate::{
    cache_line::CacheLine,
    linear::{
        integer::{
            inputs::{InputGroup, InputTile, InputTiles},
            panel::KBlock,
        },
        tiling::{PANEL_ROWS, TILE_ROWS},
    },
};

/// Rows of `x` at a time: the sums of more do not fit in registers.
pub(super) const MAX_ROWS: usize = 4;
/// Fours of codes whose inputs are contiguous, whatever the group size.
const FOURS: usize = 4;

/// Dot products of a group of `M` rows of `x` with 16 weight rows: the first 8, then the other 8.
pub(super) type Dots<const M: usize> = [[[__m256i; 2]; 2]; M];

/// Adds the sum of a K block's products, counted from zero, to each row's sums.
///
/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx2,fma")]
pub(crate) unsafe fn multiply(block: KBlock, tiles: InputTiles, sums: &mut [[f32; PANEL_ROWS]]) {
    for (tile, sums) in tiles.zip(sums.chunks_mut(TILE_ROWS)) {
        for (i, sums) in sums.chunks_mut(MAX_ROWS).enumerate() {
            let r = i * MAX_ROWS;
            // SAFETY: the features are enabled.
            unsafe {
                match sums.len() {
                    4 => multiply_rows::<4>(block, tile, r, sums),
                    3 => multiply_rows::<3>(block, tile, r, sums),
                    2 => multiply_rows::<2>(block, tile, r, sums),
                    _ => multiply_rows::<1>(block, tile, r, sums),
                }
            }
        }
    }
}

/// Rows `r..r + M` of a tile.
#[inline(always)]
unsafe fn multiply_rows<const M: usize>(
    block: KBlock,
    tile: InputTile,
    r: usize,
    sums: &mut [[f32; PANEL_ROWS]],
) {
    let KBlock { panel, start, groups, group } = block;
    let (rows, fours) = (tile.rows, group / 4);
    assert!(r + M <= rows && sums.len() == M, "rows of the tile");
    let input_blocks = start / 64 + (groups * group).div_ceil(64);
    assert!(
        tile.lines.len() >= 2 * input_blocks * rows && tile.groups.len() >= (start / group + groups) * rows
    );
    assert!(groups * fours <= panel.codes.len() && groups <= panel.scales.len());
    // SAFETY: the caller has checked the features; the asserts keep accesses within the tile and
    // the panel.
    unsafe {
        for half in 0..2 {
            let mut totals = [[_mm256_setzero_ps(); 2]; M];
            for g in 0..groups {
                let x = tile.groups.as_ptr().add((start / group + g) * rows + r);
                let mut dots: Dots<M> = [[[_mm256_setzero_si256(); 2]; 2]; M];
                for m in 0..M {
                    let correction = _mm256_set1_epi32((*x.add(m)).correction);
                    dots[m] = [[correction, _mm256_setzero_si256()]; 2];
                }
                for q in (g * fours..(g + 1) * fours).step_by(FOURS) {
                    let codes = panel.codes.as_ptr().add(q).cast::<CacheLine>().add(half);
                    let x = tile.lines.as_ptr().add(2 * (start / 64 + q / 16) * rows + r);
                    let x = x.cast::<i32>().add(q % 16);
                    for i in 0..FOURS {
                        let word = codes.add(2 * i).cast::<__m256i>();
                        let word = [_mm256_load_si256(word), _mm256_load_si256(word.add(1))];
                        add_fours::<8, M, false>(&mut dots, word, 0, x.add(i), rows);
                    }
                }
                for part in 0..2 {
                    let scale = _mm256_load_ps(panel.scales[g][half].as_ptr().add(8 * part));
                    let bias = _mm256_load_ps(panel.biases[g][half].as_ptr().add(8 * part));
                    for m in 0..M {
                        totals[m][part] =
                            add_group::<false>(totals[m][part], dots[m][part], [scale, bias], &*x.add(m));
                    }
                }
            }
            for m in 0..M {
                for part in 0..2 {
                    let sum = sums[m].as_mut_ptr().add(16 * half + 8 * part);
                    _mm256_storeu_ps(sum, _mm256_add_ps(_mm256_loadu_ps(sum), totals[m][part]));
                }
            }
        }
    }
}

/// Adds the products of four `s` in words of 16 weight rows with `M` of `rows` rows of `x`, which
/// start at `x`: the first lines of all rows, then the second lines. With `HIGH`, the upper 4-bit
/// codes are multiplied without shifting them and have sums of their own: two sums per row, but no
/// shifts.
#[inline(always)]
pub(super) unsafe fn add_fours<const BITS: usize, const M: usize, const HIGH: bool>(
    dots: &mut Dots<M>,
    word: [__m256i; 2],
    s: usize,
    x: *const i32,
    rows: usize,
) {
    // SAFETY: the caller ensures it.
    unsafe {
        let (first, second) = (pairs::<BITS, HIGH>(word[0], s), pairs::<BITS, HIGH>(word[1], s));
        let chain = if HIGH && BITS == 4 { s } else { 0 };
        for m in 0..M {
            let [one, other] = &mut dots[m];
            for p in 0..2 {
                let x = _mm256_set1_epi32(*x.add(16 * (p * rows + m)));
                one[chain] = _mm256_add_epi32(one[chain], _mm256_madd_epi16(first[p], x));
                other[chain] = _mm256_add_epi32(other[chain], _mm256_madd_epi16(second[p], x));
            }
        }
    }
}

/// The first and third code of four `s` in each word, and the second and fourth, as 16-bit
/// integers; with `HIGH`, upper 4-bit codes are 16 times as large.
#[inline(always)]
unsafe fn pairs<const BITS: usize, const HIGH: bool>(word: __m256i, s: usize) -> [__m256i; 2] {
    // SAFETY: the caller has checked the features.
    unsafe {
        let (word, mask) = match (BITS, s) {
            (8, _) => (word, 0x00ff_00ff),
            (4, 0) => (word, 0x000f_000f),
            (4, _) if HIGH => (word, 0x00f0_00f0),
            (4, _) => (_mm256_srli_epi32(word, 4), 0x000f_000f),
            (_, 0) => (word, 0x0003_0003),
            (_, 1) => (_mm256_srli_epi32(word, 2), 0x0003_0003),
            (_, 2) => (_mm256_srli_epi32(word, 4), 0x0003_0003),
            _ => (_mm256_srli_epi32(word, 6), 0x0003_0003),
        };
        let mask = _mm256_set1_epi32(mask);
        [_mm256_and_si256(word, mask), _mm256_and_si256(_mm256_srli_epi32(word, 8), mask)]
    }
}

/// Adds the scaled dot products of a group of one row of `x` with 8 weight rows.
#[inline(always)]
pub(super) unsafe fn add_group<const HIGH: bool>(
    total: __m256,
    [mut dot, high]: [__m256i; 2],
    [scale, bias]: [__m256; 2],
    x: &InputGroup,
) -> __m256 {
    // SAFETY: the caller has checked the features.
    unsafe {
        if HIGH {
            dot = _mm256_add_epi32(dot, _mm256_srai_epi32(high, 4));
        }
        let dot = _mm256_mul_ps(_mm256_cvtepi32_ps(dot), _mm256_set1_ps(x.step));
        _mm256_fmadd_ps(bias, _mm256_set1_ps(x.sum), _mm256_fmadd_ps(scale, dot, total))
    }
}

//! The integer product with AVX-512 VNNI's dot products of bytes.

use std::arch::x86_64::*;

use crate::linear::{
    integer::{
        inputs::{InputTile, InputTiles},
        panel::KBlock,
    },
    tiling::{PANEL_ROWS, TILE_ROWS},
};

/// Adds the sum of a K block's products, counted from zero, to each row's sums.
///
/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")]
pub(crate) unsafe fn multiply(block: KBlock, tiles: InputTiles, sums: &mut [[f32; PANEL_ROWS]]) {
    for (tile, sums) in tiles.zip(sums.chunks_mut(TILE_ROWS)) {
        // SAFETY: the features are enabled.
        unsafe { multiply_tile(block, tile, sums) };
    }
}

/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")]
pub(crate) unsafe fn multiply_tile(block: KBlock, tile: InputTile, sums: &mut [[f32; PANEL_ROWS]]) {
    // Rows that share each load of codes: the sums of more do not fit in registers.
    let max_rows = if tile.planes == 1 { 6 } else { 4 };
    for (i, sums) in sums.chunks_mut(max_rows).enumerate() {
        let r = i * max_rows;
        // SAFETY: the features are enabled.
        unsafe {
            match (tile.planes, sums.len()) {
                (1, 6) => multiply_rows::<1, 6>(block, tile, r, sums),
                (1, 5) => multiply_rows::<1, 5>(block, tile, r, sums),
                (1, 4) => multiply_rows::<1, 4>(block, tile, r, sums),
                (1, 3) => multiply_rows::<1, 3>(block, tile, r, sums),
                (1, 2) => multiply_rows::<1, 2>(block, tile, r, sums),
                (1, _) => multiply_rows::<1, 1>(block, tile, r, sums),
                (_, 4) => multiply_rows::<2, 4>(block, tile, r, sums),
                (_, 3) => multiply_rows::<2, 3>(block, tile, r, sums),
                (_, 2) => multiply_rows::<2, 2>(block, tile, r, sums),
                _ => multiply_rows::<2, 1>(block, tile, r, sums),
            }
        }
    }
}

/// Rows `r..r + M` of a tile, whose integers have `BYTES` bytes.
#[inline(always)]
unsafe fn multiply_rows<const BYTES: usize, const M: usize>(
    block: KBlock,
    tile: InputTile,
    r: usize,
    sums: &mut [[f32; PANEL_ROWS]],
) {
    let KBlock { panel, start, groups, group } = block;
    let (rows, fours) = (tile.rows, group / 4);
    assert!(r + M <= rows && sums.len() == M && tile.planes == BYTES, "rows of the tile");
    let input_blocks = start / 64 + (groups * group).div_ceil(64);
    assert!(
        tile.lines.len() >= BYTES * input_blocks * rows
            && tile.groups.len() >= (start / group + groups) * rows
    );
    assert!(groups * fours <= panel.codes.len() && groups <= panel.scales.len());
    // SAFETY: the caller has checked the features; the asserts keep accesses within the tile and
    // the panel.
    unsafe {
        let mut totals = [[_mm512_setzero_ps(); 2]; M];
        for g in 0..groups {
            let x = tile.groups.as_ptr().add((start / group + g) * rows + r);
            let dots = group_dots::<BYTES, M>(block, tile, r, g);
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
                let sum = sums[m].as_mut_ptr().add(16 * half);
                _mm512_storeu_ps(sum, _mm512_add_ps(_mm512_loadu_ps(sum), totals[m][half]));
            }
        }
    }
}

/// Dot products of group `g` of rows `r..r + M` with both halves of the panel: of upper and of
/// lower bytes, or of single bytes.
///
/// # Safety
/// See [`multiply_rows`], which keeps accesses within the tile and the panel.
#[inline(always)]
unsafe fn group_dots<const BYTES: usize, const M: usize>(
    KBlock { panel, start, group, .. }: KBlock,
    tile: InputTile,
    r: usize,
    g: usize,
) -> [[[__m512i; BYTES]; 2]; M] {
    let (rows, fours) = (tile.rows, group / 4);
    // SAFETY: the caller ensures it.
    unsafe {
        let x = tile.groups.as_ptr().add((start / group + g) * rows + r);
        let mut dots = [[[_mm512_setzero_si512(); BYTES]; 2]; M];
        for m in 0..M {
            let correction = _mm512_set1_epi32((*x.add(m)).correction);
            dots[m][0][BYTES - 1] = correction;
            dots[m][1][BYTES - 1] = correction;
        }
        let (mut q, end) = (g * fours, (g + 1) * fours);
        while q < end {
            let (input_block, from) = (start / 64 + q / 16, q % 16);
            let count = (16 - from).min(end - q);
            let x = tile.lines.as_ptr().add(BYTES * input_block * rows + r).cast::<i32>().add(from);
            let codes = panel.codes.as_ptr().add(q).cast::<__m512i>();
            for i in 0..count {
                let codes = [_mm512_load_si512(codes.add(2 * i)), _mm512_load_si512(codes.add(2 * i + 1))];
                for m in 0..M {
                    for byte in 0..BYTES {
                        let x = _mm512_set1_epi32(*x.add(16 * (byte * rows + m) + i));
                        for half in 0..2 {
                            let dot = dots[m][half][byte];
                            dots[m][half][byte] = _mm512_dpbusd_epi32(dot, codes[half], x);
                        }
                    }
                }
            }
            q += count;
        }
        dots
    }
}

/// Adds the scaled dot products of a group of one row of `x` with 16 weight rows.
#[inline(always)]
pub(crate) unsafe fn add_group<const BYTES: usize>(
    total: __m512,
    dots: [__m512i; BYTES],
    [scale, bias]: [__m512; 2],
    [step, sum]: [f32; 2],
) -> __m512 {
    // SAFETY: the caller has checked the features.
    unsafe {
        let dot = match BYTES {
            1 => dots[0],
            _ => _mm512_add_epi32(_mm512_slli_epi32(dots[0], 8), dots[1]),
        };
        let dot = _mm512_mul_ps(_mm512_cvtepi32_ps(dot), _mm512_set1_ps(step));
        _mm512_fmadd_ps(bias, _mm512_set1_ps(sum), _mm512_fmadd_ps(scale, dot, total))
    }
}

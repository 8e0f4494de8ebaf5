//! The product with Intel's AMX.
//!
//! 16 lines of codes are a tile as they lie in the panel: a line for each four inputs, four bytes for each weight row.
//! What it meets are the upper and the lower bytes of up to 16 rows of `x`. The sums of a group are stored and added to
//! the rows' totals while the tiles multiply the next group. The eight tile registers keep their contents from one
//! `asm!` to the next: no code but the tile kernels uses them.

use std::{
    arch::{asm, x86_64::*},
    cell::Cell,
};

use super::{PANEL, Stretch, avx512::add_group, inputs::Tile};
use crate::linear::{lines::Line, tiles::Shapes};

/// Up to this many rows the vectors are no slower.
pub(super) const FEW: usize = 4;

/// # Safety
/// Tiles must be allowed, and the processor have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")]
pub(super) unsafe fn add(stretch: Stretch, tile: Tile, sums: &mut [[f32; PANEL]]) {
    let Stretch { panel, start, groups, group } = stretch;
    let rows = tile.rows;
    let blocks = start / 64 + (groups * group).div_ceil(64);
    assert!(sums.len() == rows && tile.lines.len() >= 2 * blocks * rows);
    assert!(tile.groups.len() >= (start / group + groups) * rows);
    assert!(groups * group <= 4 * panel.codes.len() && groups <= panel.scales.len());
    let mut dots = [[Line::ZERO; 16]; 4];
    // SAFETY: the caller's; the asserts keep places within the tile and the panel.
    unsafe { configure(rows, group.min(64)) };
    let multiply = |g: usize| {
        for part in 0..group.div_ceil(64) {
            let input = g * group + part * 64;
            let block = start / 64 + input / 64;
            let x = tile.lines[2 * block * rows..].as_ptr().cast::<u8>().wrapping_add(input % 64);
            let codes = panel.codes[input / 4..].as_ptr().cast::<u8>();
            // SAFETY: tiles are `rows` rows of `depth` bytes of lines, and `depth / 4` of the panel's codes.
            unsafe {
                asm!(
                    "tileloadd tmm4, [{x} + {line}*1]",
                    "tileloadd tmm6, [{codes} + {line}*2]",
                    "tdpbsud tmm0, tmm4, tmm6",
                    "tileloadd tmm5, [{y} + {line}*1]",
                    "tdpbsud tmm1, tmm5, tmm6",
                    "tileloadd tmm7, [{codes} + {line}*2 + 64]",
                    "tdpbsud tmm2, tmm4, tmm7",
                    "tdpbsud tmm3, tmm5, tmm7",
                    x = in(reg) x, y = in(reg) x.wrapping_add(64 * rows), codes = in(reg) codes,
                    line = in(reg) 64usize, options(nostack, readonly),
                );
            }
        }
    };
    multiply(0);
    for g in 0..groups {
        // SAFETY: each tile is at most 16 rows of 64 bytes; the features are enabled; the rest as above.
        unsafe {
            asm!(
                "tilestored [{at} + {line}*1], tmm0", "tilestored [{at} + {line}*1 + 1024], tmm1",
                "tilestored [{at} + {line}*1 + 2048], tmm2", "tilestored [{at} + {line}*1 + 3072], tmm3",
                at = in(reg) dots.as_mut_ptr(), line = in(reg) 64usize, options(nostack),
            );
            if g + 1 < groups {
                zero();
                multiply(g + 1);
            }
            for half in 0..2 {
                let scale = _mm512_load_ps(panel.scales[g][half].as_ptr());
                let bias = _mm512_load_ps(panel.biases[g][half].as_ptr());
                for r in 0..rows {
                    let x = &*tile.groups.as_ptr().add((start / group + g) * rows + r);
                    let upper = _mm512_load_si512(dots[2 * half][r].0.as_ptr().cast());
                    let lower = _mm512_load_si512(dots[2 * half + 1][r].0.as_ptr().cast());
                    let lower = _mm512_add_epi32(lower, _mm512_set1_epi32(x.correction));
                    let place = sums[r].as_mut_ptr().add(16 * half);
                    let total =
                        add_group(_mm512_loadu_ps(place), [upper, lower], [scale, bias], [x.step, x.sum]);
                    _mm512_storeu_ps(place, total);
                }
            }
        }
    }
}

thread_local! {
    /// What the registers are set up for: rows of `x` and inputs at a time.
    static SHAPE: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Sets up this thread's registers: sums of the two halves of a panel with upper and lower bytes in 0 to 3, bytes of `x` in
/// 4 and 5, codes in 6 and 7.
///
/// # Safety
/// Tiles must be allowed.
unsafe fn configure(rows: usize, depth: usize) {
    if SHAPE.replace((rows, depth)) == (rows, depth) {
        // SAFETY: the registers have these shapes.
        return unsafe { zero() };
    }
    let (sums, x, codes) = ((rows as u8, 64), (rows as u8, depth as u16), ((depth / 4) as u8, 64));
    // SAFETY: the caller's.
    unsafe { Shapes::new([sums, sums, sums, sums, x, x, codes, codes]).configure() };
}

/// # Safety
/// The registers must be set up.
unsafe fn zero() {
    // SAFETY: the caller's.
    unsafe { asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack)) };
}

/// Gives back the registers of this thread, which would be saved with it otherwise.
pub(super) fn release() {
    if SHAPE.replace((0, 0)) != (0, 0) {
        // SAFETY: the thread has used them.
        unsafe { asm!("tilerelease", options(nostack)) };
    }
}

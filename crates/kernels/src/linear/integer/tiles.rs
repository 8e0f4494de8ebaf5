//! The product with Intel's AMX.
//!
//! 16 lines of codes are a tile as they lie in the panel: a line for each four inputs, four bytes for each weight row.
//! What it meets are the upper and the lower bytes of up to 16 rows of `x`, or its only ones. The sums of a group are stored and added to
//! the rows' totals while the tiles multiply the next group. The eight tile registers keep their contents from one
//! `asm!` to the next: no code but the tile kernels uses them.

use std::{
    arch::{asm, x86_64::*},
    cell::Cell,
    mem::MaybeUninit,
};

use super::{
    PANEL, Stretch,
    avx512::add_group,
    inputs::{Group, Tile},
};
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
    assert!(rows <= 16 && sums.len() == rows && tile.lines.len() >= tile.planes * blocks * rows);
    assert!(tile.groups.len() >= (start / group + groups) * rows);
    assert!(groups * group <= 4 * panel.codes.len() && groups <= panel.scales.len());
    // SAFETY: the caller's.
    unsafe { configure(rows, group.min(64)) };
    for half in 0..2 {
        // SAFETY: the caller's; the asserts keep places within the tile and the panel.
        unsafe {
            match (tile.planes, rows == 16, tile.corrected) {
                (1, true, false) => add_half::<1, true, false>(stretch, tile, half, sums),
                (1, true, true) => add_half::<1, true, true>(stretch, tile, half, sums),
                (1, false, _) => add_half::<1, false, true>(stretch, tile, half, sums),
                (_, true, false) => add_half::<2, true, false>(stretch, tile, half, sums),
                (_, true, true) => add_half::<2, true, true>(stretch, tile, half, sums),
                (_, false, _) => add_half::<2, false, true>(stretch, tile, half, sums),
            }
        }
    }
}

/// Multiplies upper and lower bytes of `x`, in 4 and 5, with codes, in 6, into two registers of sums.
macro_rules! multiply {
    ($upper:literal, $lower:literal, $x:expr, $y:expr, $codes:expr) => {
        asm!(
            "tileloadd tmm4, [{x} + {line}*1]",
            "tileloadd tmm6, [{codes} + {line}*2]",
            concat!("tdpbsud ", $upper, ", tmm4, tmm6"),
            "tileloadd tmm5, [{y} + {line}*1]",
            concat!("tdpbsud ", $lower, ", tmm5, tmm6"),
            x = in(reg) $x, y = in(reg) $y, codes = in(reg) $codes, line = in(reg) 64usize,
            options(nostack, readonly),
        )
    };
}

/// Multiplies bytes of `x`, in 4, with codes, in 6, into a register of sums.
macro_rules! multiply_one {
    ($sums:literal, $x:expr, $codes:expr) => {
        asm!(
            "tileloadd tmm4, [{x} + {line}*1]",
            "tileloadd tmm6, [{codes} + {line}*2]",
            concat!("tdpbsud ", $sums, ", tmm4, tmm6"),
            x = in(reg) $x, codes = in(reg) $codes, line = in(reg) 64usize,
            options(nostack, readonly),
        )
    };
}

/// Stores a register of sums and makes it zero.
macro_rules! store_one {
    ($sums:literal, $to:expr) => {
        asm!(
            concat!("tilestored [{at} + {line}*1], ", $sums),
            concat!("tilezero ", $sums),
            at = in(reg) $to, line = in(reg) 64usize, options(nostack),
        )
    };
}

/// Stores two registers of sums and makes them zero.
macro_rules! store {
    ($upper:literal, $lower:literal, $to:expr) => {
        asm!(
            concat!("tilestored [{at} + {line}*1], ", $upper),
            concat!("tilestored [{at} + {line}*1 + 1024], ", $lower),
            concat!("tilezero ", $upper),
            concat!("tilezero ", $lower),
            at = in(reg) $to, line = in(reg) 64usize, options(nostack),
        )
    };
}

/// Adds half a panel's products to the rows' sums, which stay in registers all the while if the tile is `FULL`. Tiles are one
/// group ahead of the vectors, in two pairs of registers in turn, or two single ones for integers of one of the `BYTES`.
#[inline(always)]
unsafe fn add_half<const BYTES: usize, const FULL: bool, const CORRECTED: bool>(
    stretch: Stretch,
    tile: Tile,
    half: usize,
    sums: &mut [[f32; PANEL]],
) {
    let Stretch { panel, start, groups, group } = stretch;
    let rows = if FULL { 16 } else { tile.rows };
    let mut dots = MaybeUninit::<[[[Line; 16]; 2]; 2]>::uninit();
    let dots = dots.as_mut_ptr().cast::<[[Line; 16]; 2]>();
    // SAFETY: the caller's.
    unsafe {
        let mut totals = [_mm512_setzero_ps(); 16];
        for r in 0..rows {
            totals[r] = _mm512_loadu_ps(sums[r].as_ptr().add(16 * half));
        }
        let multiply = |g: usize| {
            for part in 0..group.div_ceil(64) {
                let input = g * group + part * 64;
                let block = start / 64 + input / 64;
                let x = tile.lines[BYTES * block * rows..].as_ptr().cast::<u8>().wrapping_add(input % 64);
                let codes = panel.codes[input / 4..].as_ptr().cast::<u8>().wrapping_add(64 * half);
                match (BYTES, g % 2) {
                    (1, 0) => multiply_one!("tmm0", x, codes),
                    (1, _) => multiply_one!("tmm2", x, codes),
                    (_, 0) => multiply!("tmm0", "tmm1", x, x.wrapping_add(64 * rows), codes),
                    _ => multiply!("tmm2", "tmm3", x, x.wrapping_add(64 * rows), codes),
                }
            }
        };
        multiply(0);
        for g in 0..groups {
            if g + 1 < groups {
                multiply(g + 1);
            }
            let to = dots.add(g % 2);
            match (BYTES, g % 2) {
                (1, 0) => store_one!("tmm0", to),
                (1, _) => store_one!("tmm2", to),
                (_, 0) => store!("tmm0", "tmm1", to),
                _ => store!("tmm2", "tmm3", to),
            }
            // Those just stored take a while to get to memory.
            if g > 0 {
                let (dots, g) = (dots.add((g - 1) % 2), g - 1);
                add_dots::<BYTES, FULL, CORRECTED>(&mut totals, dots, stretch, tile, half, g);
            }
        }
        let last = groups - 1;
        add_dots::<BYTES, FULL, CORRECTED>(&mut totals, dots.add(last % 2), stretch, tile, half, last);
        for r in 0..rows {
            _mm512_storeu_ps(sums[r].as_mut_ptr().add(16 * half), totals[r]);
        }
    }
}

/// Adds the dots of group `g`.
#[inline(always)]
unsafe fn add_dots<const BYTES: usize, const FULL: bool, const CORRECTED: bool>(
    totals: &mut [__m512; 16],
    dots: *const [[Line; 16]; 2],
    stretch: Stretch,
    tile: Tile,
    half: usize,
    g: usize,
) {
    let Stretch { panel, start, group, .. } = stretch;
    let rows = if FULL { 16 } else { tile.rows };
    // SAFETY: the caller's; lines are 64 aligned bytes.
    unsafe {
        let scales = [panel.scales[g][half].as_ptr(), panel.biases[g][half].as_ptr()];
        let scales = [_mm512_load_ps(scales[0]), _mm512_load_ps(scales[1])];
        let x = tile.groups.as_ptr().add((start / group + g) * rows);
        let dots = dots.cast::<Line>();
        if FULL {
            // A loop is not sure to be unrolled, without which totals lie in memory.
            macro_rules! add_rows {
                ($($r:literal)*) => {
                    $(
                        totals[$r] =
                            add_row::<BYTES, CORRECTED>(totals[$r], dots.add($r), scales, x.add($r));
                    )*
                };
            }
            add_rows!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
        } else {
            for r in 0..rows {
                totals[r] = add_row::<BYTES, CORRECTED>(totals[r], dots.add(r), scales, x.add(r));
            }
        }
    }
}

/// Adds a row's dots: those with upper bytes, and those with lower ones 16 lines behind them, or those with its only ones.
#[inline(always)]
unsafe fn add_row<const BYTES: usize, const CORRECTED: bool>(
    total: __m512,
    dots: *const Line,
    scales: [__m512; 2],
    x: *const Group,
) -> __m512 {
    // SAFETY: the caller's; lines are 64 aligned bytes.
    unsafe {
        let mut sums = [_mm512_setzero_si512(); BYTES];
        for byte in 0..BYTES {
            sums[byte] = _mm512_load_si512(dots.add(16 * byte).cast());
        }
        if CORRECTED {
            sums[BYTES - 1] = _mm512_add_epi32(sums[BYTES - 1], _mm512_set1_epi32((*x).correction));
        }
        add_group(total, sums, scales, [(*x).step, (*x).sum])
    }
}

thread_local! {
    /// What the registers are set up for: rows of `x` and inputs at a time.
    static SHAPE: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Sets up this thread's registers: sums with upper and lower bytes of a group in 0 and 1, of the next in 2 and 3, bytes of `x`
/// in 4 and 5, codes in 6. Of integers of one byte 0, 2, 4 and 6 are used. Sums are zero: storing them makes them so again.
///
/// # Safety
/// Tiles must be allowed.
unsafe fn configure(rows: usize, depth: usize) {
    if SHAPE.replace((rows, depth)) == (rows, depth) {
        return;
    }
    let (sums, x, codes) = ((rows as u8, 64), (rows as u8, depth as u16), ((depth / 4) as u8, 64));
    // SAFETY: the caller's.
    unsafe { Shapes::new([sums, sums, sums, sums, x, x, codes, codes]).configure() };
}

/// Gives back the registers of this thread, which would be saved with it otherwise.
pub(super) fn release() {
    if SHAPE.replace((0, 0)) != (0, 0) {
        // SAFETY: the thread has used them.
        unsafe { asm!("tilerelease", options(nostack)) };
    }
}

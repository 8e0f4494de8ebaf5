//! The product with Intel's AMX.
//!
//! 16 lines of codes are a tile as they lie in the panel: a line for each four inputs, four bytes for each weight row.
//! What it meets are the upper and the lower bytes of up to 16 rows of `x`, or its only ones. The sums of a group are stored and added to
//! the rows' totals while the tiles multiply the next group, be it of the next rows. The eight tile registers keep their contents from one
//! `asm!` to the next: no code but the tile kernels uses them.
//!
//! While tiles multiply, and for some 100 ns after, vectors of 512 bits have one port for floating-point numbers instead of two, the one that
//! shifts need too. What need not go through it does not, and tiles and vectors take turns a few instructions at a time (ADR 13).

use std::{
    arch::{asm, x86_64::*},
    cell::Cell,
    hint::black_box,
    mem::MaybeUninit,
};

use super::{
    PANEL, Stretch,
    avx512::{self, add_group},
    inputs::{Group, TILE, Tile},
};
use crate::linear::{lines::Line, tiles::Shapes};

/// Up to this many rows the vectors are no slower.
const FEW: usize = 4;

/// Adds a stretch's products with all rows of `tiles` to the rows' sums.
///
/// # Safety
/// Tiles must be allowed, and the processor have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")]
pub(super) unsafe fn add<'a>(
    stretch: Stretch,
    tiles: impl Iterator<Item = Tile<'a>>,
    sums: &mut [[f32; PANEL]],
) {
    assert!(stretch.groups * stretch.group <= 4 * stretch.panel.codes.len());
    assert!(stretch.groups <= stretch.panel.scales.len());
    // SAFETY: the features are enabled. The compiler must not see what it is, or it makes it a shift again.
    let up = unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(black_box(&UP).as_ptr().cast())) };
    let mut tiles = tiles.inspect(|tile| check(stretch, tile)).peekable();
    let mut begun = false;
    for sums in sums.chunks_mut(TILE) {
        let tile = tiles.next().expect("a tile for each 16 rows");
        assert_eq!(sums.len(), tile.rows);
        if tile.rows <= FEW {
            // SAFETY: the features are enabled.
            unsafe { avx512::add(stretch, tile, sums) };
            continue;
        }
        // SAFETY: the caller's.
        unsafe { configure(tile.rows, stretch.group.min(64)) };
        let halves = [0, 1].map(|half| Half { stretch, tile, half, up });
        let after = tiles.peek().map(|&tile| Half { stretch, tile, half: 0, up });
        // SAFETY: the caller's; all tiles have been checked.
        unsafe {
            begun = halves[0].add(begun, Some(halves[1]), sums);
            begun = halves[1].add(begun, after, sums);
        }
    }
}

/// Keeps places within the tile.
fn check(Stretch { start, groups, group, .. }: Stretch, tile: &Tile) {
    let blocks = start / 64 + (groups * group).div_ceil(64);
    assert!(tile.rows <= TILE && tile.lines.len() >= tile.planes * blocks * tile.rows);
    assert!(tile.groups.len() >= (start / group + groups) * tile.rows);
}

/// A tile's products with half of the panel.
#[derive(Clone, Copy)]
struct Half<'a> {
    stretch: Stretch<'a>,
    tile: Tile<'a>,
    half: usize,
    /// A shuffle that moves the bytes of words up by one.
    up: __m512i,
}

/// Where a group's bytes of `x` and its codes begin.
#[derive(Clone, Copy)]
struct Place {
    x: *const u8,
    codes: *const u8,
    /// Bytes from the first 64 inputs of `x` to the next 64 of the same group, if there are any.
    second: Option<usize>,
}

/// Sums of a group with upper and with lower bytes, or with the only ones.
type Dots = [[Line; TILE]; 2];

/// Multiplies bytes of `x` with a group's codes, which stay in 6 and 7, into a register of sums.
macro_rules! multiply_upper {
    ($sums:literal, $place:expr) => {{
        let Place { x, codes, second } = $place;
        asm!(
            "tileloadd tmm4, [{x} + {line}*1]",
            "tileloadd tmm6, [{codes} + {line}*2]",
            concat!("tdpbsud ", $sums, ", tmm4, tmm6"),
            x = in(reg) x, codes = in(reg) codes, line = in(reg) 64usize,
            options(nostack, readonly),
        );
        if let Some(second) = second {
            asm!(
                "tileloadd tmm4, [{x} + {line}*1]",
                "tileloadd tmm7, [{codes} + {line}*2]",
                concat!("tdpbsud ", $sums, ", tmm4, tmm7"),
                x = in(reg) x.wrapping_add(second), codes = in(reg) codes.wrapping_add(2048), line = in(reg) 64usize,
                options(nostack, readonly),
            );
        }
    }};
}

/// Multiplies lower bytes of `x`, so far behind the upper ones, with codes in 6 and 7.
macro_rules! multiply_lower {
    ($sums:literal, $place:expr, $behind:expr) => {{
        let Place { x, second, .. } = $place;
        let x = x.wrapping_add($behind);
        asm!(
            "tileloadd tmm5, [{x} + {line}*1]",
            concat!("tdpbsud ", $sums, ", tmm5, tmm6"),
            x = in(reg) x, line = in(reg) 64usize, options(nostack, readonly),
        );
        if let Some(second) = second {
            asm!(
                "tileloadd tmm5, [{x} + {line}*1]",
                concat!("tdpbsud ", $sums, ", tmm5, tmm7"),
                x = in(reg) x.wrapping_add(second), line = in(reg) 64usize, options(nostack, readonly),
            );
        }
    }};
}

/// Stores a register of sums and makes it zero.
macro_rules! store {
    ($sums:literal, $to:expr) => {
        asm!(
            concat!("tilestored [{at} + {line}*1], ", $sums),
            concat!("tilezero ", $sums),
            at = in(reg) $to, line = in(reg) 64usize, options(nostack),
        )
    };
}

impl Half<'_> {
    /// Adds its products to the rows' sums. What comes `after` is begun, if it can be: then true, which it is to be told.
    #[inline(always)]
    unsafe fn add(self, begun: bool, after: Option<Half>, sums: &mut [[f32; PANEL]]) -> bool {
        // The registers of an even group come after those of an odd one.
        let after =
            after.filter(|after| self.stretch.groups.is_multiple_of(2) && after.tile.rows == self.tile.rows);
        let (first, after) = ((!begun).then(|| self.place(0)), after.map(|after| after.place(0)));
        let Tile { planes, corrected, rows, .. } = self.tile;
        // SAFETY: the caller's.
        unsafe {
            match (planes, rows, corrected) {
                (1, TILE, false) => self.add_as::<1, true, false>(first, after, sums),
                (1, TILE, true) => self.add_as::<1, true, true>(first, after, sums),
                (1, ..) => self.add_as::<1, false, true>(first, after, sums),
                (_, TILE, false) => self.add_as::<2, true, false>(first, after, sums),
                (_, TILE, true) => self.add_as::<2, true, true>(first, after, sums),
                _ => self.add_as::<2, false, true>(first, after, sums),
            }
        }
        after.is_some()
    }

    /// The rows' sums stay in registers all the while if the tile is `FULL`. Tiles are one group ahead of the vectors, in two pairs of
    /// registers in turn, or two single ones for integers of one of the `BYTES`. It begins with the `first` group if that is not begun
    /// yet, and begins what comes `after`.
    #[inline(always)]
    unsafe fn add_as<const BYTES: usize, const FULL: bool, const CORRECTED: bool>(
        self,
        first: Option<Place>,
        after: Option<Place>,
        sums: &mut [[f32; PANEL]],
    ) {
        let Half { stretch: Stretch { groups, .. }, half, .. } = self;
        let rows = if FULL { TILE } else { self.tile.rows };
        let mut dots = MaybeUninit::<[Dots; 2]>::uninit();
        let dots = dots.as_mut_ptr().cast::<Dots>();
        // SAFETY: the caller's.
        unsafe {
            let mut totals = [_mm512_setzero_ps(); TILE];
            for r in 0..rows {
                totals[r] = _mm512_loadu_ps(sums[r].as_ptr().add(16 * half));
            }
            if let Some(first) = first {
                multiply_upper!("tmm0", first);
                if BYTES == 2 {
                    multiply_lower!("tmm1", first, 64 * rows);
                }
            }
            macro_rules! step {
                ($g:expr, $upper:literal, $lower:literal, $next_upper:literal, $next_lower:literal) => {{
                    let g = $g;
                    // Those just stored take a while to get to memory, so those before are added.
                    let (to, before) = (dots.add(g % 2).cast::<[Line; TILE]>(), dots.add(1 - g % 2));
                    let next = if g + 1 < groups { Some(self.place(g + 1)) } else { after };
                    if let Some(next) = next {
                        multiply_upper!($next_upper, next);
                    }
                    store!($upper, to);
                    if g > 0 {
                        self.add_dots::<BYTES, FULL, CORRECTED, 0>(&mut totals, before, g - 1);
                    }
                    if BYTES == 2 {
                        if let Some(next) = next {
                            multiply_lower!($next_lower, next, 64 * rows);
                        }
                        store!($lower, to.add(1));
                    }
                    if g > 0 {
                        self.add_dots::<BYTES, FULL, CORRECTED, 8>(&mut totals, before, g - 1);
                    }
                }};
            }
            for g in (0..groups).step_by(2) {
                step!(g, "tmm0", "tmm1", "tmm2", "tmm3");
                if g + 1 < groups {
                    step!(g + 1, "tmm2", "tmm3", "tmm0", "tmm1");
                }
            }
            let (last, dots) = (groups - 1, dots.add((groups - 1) % 2));
            self.add_dots::<BYTES, FULL, CORRECTED, 0>(&mut totals, dots, last);
            self.add_dots::<BYTES, FULL, CORRECTED, 8>(&mut totals, dots, last);
            for r in 0..rows {
                _mm512_storeu_ps(sums[r].as_mut_ptr().add(16 * half), totals[r]);
            }
        }
    }

    #[inline(always)]
    fn place(self, g: usize) -> Place {
        let Half { stretch: Stretch { panel, start, group, .. }, tile, half, .. } = self;
        let input = g * group;
        let block = tile.planes * tile.rows;
        Place {
            x: tile.lines[(start + input) / 64 * block..].as_ptr().cast::<u8>().wrapping_add(input % 64),
            codes: panel.codes[input / 4..].as_ptr().cast::<u8>().wrapping_add(64 * half),
            second: (group > 64).then_some(64 * block),
        }
    }

    /// Adds the dots of group `g` with rows `FROM..FROM + 8`.
    #[inline(always)]
    unsafe fn add_dots<const BYTES: usize, const FULL: bool, const CORRECTED: bool, const FROM: usize>(
        self,
        totals: &mut [__m512; TILE],
        dots: *const Dots,
        g: usize,
    ) {
        let Half { stretch: Stretch { panel, start, group, .. }, tile, half, up } = self;
        let rows = if FULL { TILE } else { tile.rows };
        // SAFETY: the caller's; lines are 64 aligned bytes.
        unsafe {
            let scales = [panel.scales[g][half].as_ptr(), panel.biases[g][half].as_ptr()];
            let scales = [_mm512_load_ps(scales[0]), _mm512_load_ps(scales[1])];
            let x = tile.groups.as_ptr().add((start / group + g) * rows);
            let dots = dots.cast::<Line>();
            macro_rules! add_rows {
                ($($r:expr),*) => {
                    $(totals[$r] = add_row::<BYTES, CORRECTED>(totals[$r], dots.add($r), scales, x.add($r), up);)*
                };
            }
            if FULL {
                // A loop is not sure to be unrolled, without which totals lie in memory.
                add_rows!(FROM, FROM + 1, FROM + 2, FROM + 3, FROM + 4, FROM + 5, FROM + 6, FROM + 7);
            } else {
                for r in FROM..rows.min(FROM + 8) {
                    add_rows!(r);
                }
            }
        }
    }
}

/// Moves the bytes of words up by one.
const UP: [u32; 4] = [0x0201_0080, 0x0605_0480, 0x0a09_0880, 0x0e0d_0c80];

/// Adds a row's dots: those with upper bytes, and those with lower ones 16 lines behind them, or those with its only ones.
#[inline(always)]
unsafe fn add_row<const BYTES: usize, const CORRECTED: bool>(
    total: __m512,
    dots: *const Line,
    scales: [__m512; 2],
    x: *const Group,
    up: __m512i,
) -> __m512 {
    // SAFETY: the caller's; lines are 64 aligned bytes.
    unsafe {
        let mut dot = _mm512_load_si512(dots.cast());
        if BYTES == 2 {
            // Not with `add_group`'s shift, which would take the port that multiplications need.
            let lower = _mm512_load_si512(dots.add(TILE).cast());
            dot = _mm512_add_epi32(_mm512_shuffle_epi8(dot, up), lower);
        }
        if CORRECTED {
            dot = _mm512_add_epi32(dot, _mm512_set1_epi32((*x).correction));
        }
        add_group(total, [dot], scales, [(*x).step, (*x).sum])
    }
}

thread_local! {
    /// What the registers are set up for: rows of `x` and inputs at a time.
    static SHAPE: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Sets up this thread's registers: sums with upper and lower bytes of a group in 0 and 1, of the next in 2 and 3, bytes of `x`
/// in 4 and 5, codes in 6 and, of groups of 128, 7. Of integers of one byte 1, 3 and 5 are not used. Sums are zero: storing them makes
/// them so again.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shuffle_is_a_shift() {
        if !is_x86_feature_detected!("ssse3") {
            return;
        }
        let words = [0x1234_5678, -1, 32639 * 64, -32639 * 64];
        let mut moved = [0i32; 4];
        // SAFETY: the processor has the feature; the arrays are 16 bytes.
        unsafe {
            let (x, up) = (_mm_loadu_si128(words.as_ptr().cast()), _mm_loadu_si128(UP.as_ptr().cast()));
            _mm_storeu_si128(moved.as_mut_ptr().cast(), _mm_shuffle_epi8(x, up));
        }
        assert_eq!(moved, words.map(|word: i32| word << 8));
    }
}

//! The integer product with AMX.
//!
//! 16 lines of a panel are a tile of codes: a line per four inputs, four bytes per weight row. They
//! are multiplied with the upper and the lower bytes of up to 16 rows of `x`, or with single bytes.
//! The sums of a group are stored and added to the rows' totals while the tiles multiply the next
//! group, also of the next rows. Tile registers keep their contents from one `asm!` to the next:
//! only the AMX kernels use them.
//!
//! While tiles multiply, and for about 100 ns after, 512-bit vectors have one floating-point port
//! instead of two, shared with shifts. So the kernel keeps other work off that port, and
//! interleaves tile and vector instructions (ADR 13).

use std::{
    arch::{asm, x86_64::*},
    cell::Cell,
    hint::black_box,
    mem::MaybeUninit,
};

use super::TileConfig;
use crate::{
    cache_line::CacheLine,
    linear::{
        integer::{
            inputs::{InputGroup, InputTile, InputTiles},
            panel::KBlock,
        },
        tiling::{PANEL_ROWS, TILE_ROWS},
    },
    x86::avx512::integer::{add_group, multiply_tile},
};

/// Up to this many rows, AVX-512 is no slower.
const MAX_AVX512_ROWS: usize = 4;

/// Adds the sum of a K block's products, counted from zero, to each row's sums.
///
/// # Safety
/// AMX must be available, and the processor have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma")]
pub(crate) unsafe fn multiply(block: KBlock, tiles: InputTiles, sums: &mut [[f32; PANEL_ROWS]]) {
    assert!(block.groups * block.group <= 4 * block.panel.codes.len());
    assert!(block.groups <= block.panel.scales.len());
    // SAFETY: the features are enabled. `black_box` keeps the compiler from turning the shuffle
    // into a shift.
    let shift = unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(black_box(&SHIFT_LEFT_8).as_ptr().cast())) };
    let mut tiles = tiles.inspect(|tile| check(block, tile)).peekable();
    let mut started = false;
    for sums in sums.chunks_mut(TILE_ROWS) {
        let tile = tiles.next().expect("a tile for each 16 rows");
        assert_eq!(sums.len(), tile.rows);
        if tile.rows <= MAX_AVX512_ROWS {
            // SAFETY: the features are enabled.
            unsafe { multiply_tile(block, tile, sums) };
            continue;
        }
        // SAFETY: the caller ensures it.
        unsafe { configure(tile.rows, block.group.min(64)) };
        let halves = [0, 1].map(|half| PanelHalf { block, tile, half, shift });
        let next = tiles.peek().map(|&tile| PanelHalf { block, tile, half: 0, shift });
        // SAFETY: the caller ensures it; all tiles have been checked.
        unsafe {
            started = halves[0].multiply(started, Some(halves[1]), sums);
            started = halves[1].multiply(started, next, sums);
        }
    }
}

/// Keeps accesses within the tile.
fn check(KBlock { start, groups, group, .. }: KBlock, tile: &InputTile) {
    let input_blocks = start / 64 + (groups * group).div_ceil(64);
    assert!(tile.rows <= TILE_ROWS && tile.lines.len() >= tile.planes * input_blocks * tile.rows);
    assert!(tile.groups.len() >= (start / group + groups) * tile.rows);
}

/// The product of a tile with half of the panel.
#[derive(Clone, Copy)]
struct PanelHalf<'a> {
    block: KBlock<'a>,
    tile: InputTile<'a>,
    half: usize,
    /// [`SHIFT_LEFT_8`].
    shift: __m512i,
}

/// The start of a group's bytes of `x`, and of its codes.
#[derive(Clone, Copy)]
struct TileAddress {
    x: *const u8,
    codes: *const u8,
    /// For groups of 128, bytes from the first 64 inputs of `x` to the others.
    second: Option<usize>,
}

/// Sums of a group with upper and with lower bytes, or with single bytes.
type GroupDots = [[CacheLine; TILE_ROWS]; 2];

/// Multiplies bytes of `x` with a group's codes, which stay in registers 6 and 7, into a register
/// of sums.
macro_rules! multiply_upper {
    ($sums:literal, $address:expr) => {{
        let TileAddress { x, codes, second } = $address;
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

/// Multiplies lower bytes of `x`, `$offset` bytes after the upper ones, with the codes in registers
/// 6 and 7.
macro_rules! multiply_lower {
    ($sums:literal, $address:expr, $offset:expr) => {{
        let TileAddress { x, second, .. } = $address;
        let x = x.wrapping_add($offset);
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

/// Stores a register of sums and zeroes it.
macro_rules! store {
    ($sums:literal, $to:expr) => {
        asm!(
            concat!("tilestored [{at} + {line}*1], ", $sums),
            concat!("tilezero ", $sums),
            at = in(reg) $to, line = in(reg) 64usize, options(nostack),
        )
    };
}

impl PanelHalf<'_> {
    /// Adds the half's products to the rows' sums. `started` says whether the half's first group
    /// has been started. Starts the first group of `next` if possible, and returns whether it did.
    #[inline(always)]
    unsafe fn multiply(self, started: bool, next: Option<PanelHalf>, sums: &mut [[f32; PANEL_ROWS]]) -> bool {
        // The next half starts with the registers of an even group, and with the same
        // configuration.
        let next =
            next.filter(|next| self.block.groups.is_multiple_of(2) && next.tile.rows == self.tile.rows);
        let (first, next) = ((!started).then(|| self.address(0)), next.map(|next| next.address(0)));
        let InputTile { planes, corrected, rows, .. } = self.tile;
        // SAFETY: the caller ensures it.
        unsafe {
            match (planes, rows, corrected) {
                (1, TILE_ROWS, false) => self.multiply_groups::<1, true, false>(first, next, sums),
                (1, TILE_ROWS, true) => self.multiply_groups::<1, true, true>(first, next, sums),
                (1, ..) => self.multiply_groups::<1, false, true>(first, next, sums),
                (_, TILE_ROWS, false) => self.multiply_groups::<2, true, false>(first, next, sums),
                (_, TILE_ROWS, true) => self.multiply_groups::<2, true, true>(first, next, sums),
                _ => self.multiply_groups::<2, false, true>(first, next, sums),
            }
        }
        next.is_some()
    }

    /// Multiplies the `first` group unless it has been started, all others, and `next_half`, the
    /// first group of the next half.
    ///
    /// The totals of a `FULL` tile stay in vector registers. Tiles are one group ahead of the
    /// vectors: the sums of successive groups alternate between two pairs of tile registers, or two
    /// registers for integers of one byte.
    #[inline(always)]
    unsafe fn multiply_groups<const BYTES: usize, const FULL: bool, const CORRECTED: bool>(
        self,
        first: Option<TileAddress>,
        next_half: Option<TileAddress>,
        sums: &mut [[f32; PANEL_ROWS]],
    ) {
        let PanelHalf { block: KBlock { groups, .. }, half, .. } = self;
        let rows = if FULL { TILE_ROWS } else { self.tile.rows };
        let mut dots = MaybeUninit::<[GroupDots; 2]>::uninit();
        let dots = dots.as_mut_ptr().cast::<GroupDots>();
        // SAFETY: the caller ensures it.
        unsafe {
            let mut totals = [_mm512_setzero_ps(); TILE_ROWS];
            if let Some(first) = first {
                multiply_upper!("tmm0", first);
                if BYTES == 2 {
                    multiply_lower!("tmm1", first, 64 * rows);
                }
            }
            macro_rules! step {
                ($g:expr, $upper:literal, $lower:literal, $next_upper:literal, $next_lower:literal) => {{
                    let g = $g;
                    // Stored sums take a while to reach memory, so the previous group's are added.
                    let (to, before) =
                        (dots.add(g % 2).cast::<[CacheLine; TILE_ROWS]>(), dots.add(1 - g % 2));
                    let next = if g + 1 < groups { Some(self.address(g + 1)) } else { next_half };
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
                let sum = sums[r].as_mut_ptr().add(16 * half);
                _mm512_storeu_ps(sum, _mm512_add_ps(_mm512_loadu_ps(sum), totals[r]));
            }
        }
    }

    #[inline(always)]
    fn address(self, g: usize) -> TileAddress {
        let PanelHalf { block: KBlock { panel, start, group, .. }, tile, half, .. } = self;
        let input = g * group;
        let block = tile.planes * tile.rows;
        TileAddress {
            x: tile.lines[(start + input) / 64 * block..].as_ptr().cast::<u8>().wrapping_add(input % 64),
            codes: panel.codes[input / 4..].as_ptr().cast::<u8>().wrapping_add(64 * half),
            second: (group > 64).then_some(64 * block),
        }
    }

    /// Adds the scaled dot products of group `g` with rows `FROM..FROM + 8`.
    #[inline(always)]
    unsafe fn add_dots<const BYTES: usize, const FULL: bool, const CORRECTED: bool, const FROM: usize>(
        self,
        totals: &mut [__m512; TILE_ROWS],
        dots: *const GroupDots,
        g: usize,
    ) {
        let PanelHalf { block: KBlock { panel, start, group, .. }, tile, half, shift } = self;
        let rows = if FULL { TILE_ROWS } else { tile.rows };
        // SAFETY: the caller ensures it; lines are 64 aligned bytes.
        unsafe {
            let scales = [panel.scales[g][half].as_ptr(), panel.biases[g][half].as_ptr()];
            let scales = [_mm512_load_ps(scales[0]), _mm512_load_ps(scales[1])];
            let x = tile.groups.as_ptr().add((start / group + g) * rows);
            let dots = dots.cast::<CacheLine>();
            macro_rules! add_rows {
                ($($r:expr),*) => {
                    $(totals[$r] = add_row::<BYTES, CORRECTED>(totals[$r], dots.add($r), scales, x.add($r), shift);)*
                };
            }
            if FULL {
                // A loop may not be unrolled, which would keep the totals in memory.
                add_rows!(FROM, FROM + 1, FROM + 2, FROM + 3, FROM + 4, FROM + 5, FROM + 6, FROM + 7);
            } else {
                for r in FROM..rows.min(FROM + 8) {
                    add_rows!(r);
                }
            }
        }
    }
}

/// A byte shuffle that shifts words left by 8 bits.
const SHIFT_LEFT_8: [u32; 4] = [0x0201_0080, 0x0605_0480, 0x0a09_0880, 0x0e0d_0c80];

/// Adds a row's scaled dot products: with upper bytes, and 16 lines later with lower bytes, or with
/// single bytes.
#[inline(always)]
unsafe fn add_row<const BYTES: usize, const CORRECTED: bool>(
    total: __m512,
    dots: *const CacheLine,
    scales: [__m512; 2],
    x: *const InputGroup,
    shift: __m512i,
) -> __m512 {
    // SAFETY: the caller ensures it; lines are 64 aligned bytes.
    unsafe {
        let mut dot = _mm512_load_si512(dots.cast());
        if BYTES == 2 {
            // `add_group`'s shift would take the port that multiplications need.
            let lower = _mm512_load_si512(dots.add(TILE_ROWS).cast());
            dot = _mm512_add_epi32(_mm512_shuffle_epi8(dot, shift), lower);
        }
        if CORRECTED {
            dot = _mm512_add_epi32(dot, _mm512_set1_epi32((*x).correction));
        }
        add_group(total, [dot], scales, [(*x).step, (*x).sum])
    }
}

thread_local! {
    /// The registers' configuration: rows of `x`, and inputs per tile.
    static CONFIGURED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Configures this thread's registers: 0 and 1 hold sums of a group with upper and lower bytes, 2
/// and 3 those of the next group, 4 and 5 bytes of `x`, 6 codes and 7 more codes of groups of 128.
/// Integers of one byte leave 1, 3 and 5 unused. Sums are zero initially and after each store.
///
/// # Safety
/// AMX must be available.
unsafe fn configure(rows: usize, depth: usize) {
    if CONFIGURED.replace((rows, depth)) == (rows, depth) {
        return;
    }
    let (sums, x, codes) = ((rows as u8, 64), (rows as u8, depth as u16), ((depth / 4) as u8, 64));
    // SAFETY: the caller ensures it.
    unsafe { TileConfig::new([sums, sums, sums, sums, x, x, codes, codes]).load() };
}

/// Releases this thread's registers, which context switches would save otherwise.
pub(crate) fn release() {
    if CONFIGURED.replace((0, 0)) != (0, 0) {
        // SAFETY: the thread has configured them.
        unsafe { asm!("tilerelease", options(nostack)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shift_left_8_shuffle_matches_a_shift() {
        if !is_x86_feature_detected!("ssse3") {
            return;
        }
        let words = [0x1234_5678, -1, 16384 * 64, -16384 * 64];
        let mut moved = [0i32; 4];
        // SAFETY: the processor has the feature; the arrays are 16 bytes.
        unsafe {
            let (x, shift) =
                (_mm_loadu_si128(words.as_ptr().cast()), _mm_loadu_si128(SHIFT_LEFT_8.as_ptr().cast()));
            _mm_storeu_si128(moved.as_mut_ptr().cast(), _mm_shuffle_epi8(x, shift));
        }
        assert_eq!(moved, words.map(|word: i32| word << 8));
    }
}

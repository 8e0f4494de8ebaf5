//! The bfloat16 product with AMX.
//!
//! A tile of weights is 16 rows of one line; a tile of `x` the same 16 pairs of up to 16 rows of
//! `x`. Their product is a tile of 16 x 16 sums. Tile registers keep their contents from one `asm!`
//! to the next: only the AMX kernels use them, and the system saves them with a thread's other
//! registers.

use std::arch::{asm, x86_64::*};

use super::TileConfig;
use crate::{
    cache_line::CacheLine,
    linear::{
        Scratch,
        bfloat16::task::Bf16Task,
        tiling::{PANEL_ROWS, TILE_ROWS},
    },
    x86::avx512::{
        bfloat16_unpack::{UnpackAvx512, prefetch_rows, unpack_column},
        transpose::transpose_lines,
    },
};

/// Input blocks that are multiplied with all rows of `x` before the next ones: 32 rows of weights
/// fill 16 KB, and 32 rows of `x` as much.
const BLOCKS_AT_A_TIME: usize = 4;

/// Configures the registers for one or two groups of rows of `x`: sums in 0 and 1 (and 2 and 3),
/// weights in 4 and 5, `x` in 6 (and 7). All become zero.
unsafe fn configure(groups: [usize; 2]) {
    let [first, second] = groups.map(|rows| 4 * rows.max(1) as u16);
    let config =
        TileConfig::new([first, first, second, second, 64, 64, first, second].map(|bytes| (16, bytes)));
    // SAFETY: the caller ensures it.
    unsafe { config.load() };
}

/// # Safety
/// AMX must be available, and the processor have AVX-512 with bfloat16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")]
pub(crate) unsafe fn multiply<U: UnpackAvx512>(task: &Bf16Task, weight: U) {
    let few = task.num_inputs() <= 2 * TILE_ROWS;
    let mut unpacked = Scratch::new(PANEL_ROWS * 2 * if few { 2 } else { BLOCKS_AT_A_TIME });
    let mut sums = Scratch::new(if few { 0 } else { SUM_LINES * task.num_inputs().div_ceil(2 * TILE_ROWS) });
    // SAFETY: the caller ensures it.
    unsafe {
        for panel in task.panels() {
            let panel = AmxPanel { task, weight, start: panel.start, rows: panel.len() };
            if few {
                panel.stream(&mut unpacked);
            } else {
                panel.unpack_once(&mut unpacked, &mut sums);
            }
        }
        asm!("tilerelease", options(nostack));
    }
}

/// Up to 32 rows of a weight.
struct AmxPanel<'a, U> {
    task: &'a Bf16Task<'a>,
    weight: U,
    /// The first row within the task.
    start: usize,
    rows: usize,
}

/// The weights of a block of a panel: their start, and the bytes between rows.
#[derive(Clone, Copy)]
struct WeightTiles {
    start: *const u8,
    stride: usize,
}

impl<U: UnpackAvx512> AmxPanel<'_, U> {
    /// Few rows of `x`: each block of weights is unpacked and used at once. While tiles multiply
    /// one block, vector instructions unpack the next.
    #[inline(always)]
    unsafe fn stream(&self, unpacked: &mut [CacheLine]) {
        let task = self.task;
        let groups = [task.num_inputs().min(TILE_ROWS), task.num_inputs().saturating_sub(TILE_ROWS)];
        if self.rows < PANEL_ROWS {
            unpacked.fill(CacheLine::ZERO);
        }
        // SAFETY: the caller ensures it.
        unsafe {
            configure(groups);
            let buffer = |block: usize| block % 2 * 2 * PANEL_ROWS..(block % 2 + 1) * 2 * PANEL_ROWS;
            let mut weights = self.weights(0, &mut unpacked[buffer(0)]);
            for block in 0..task.blocks {
                // Rows are read side by side, which the hardware prefetcher does not detect.
                prefetch_rows(
                    self.weight,
                    self.task.first + self.start + PANEL_ROWS,
                    PANEL_ROWS,
                    block,
                    task.blocks,
                );
                let next = match block + 1 < task.blocks {
                    true => self.weights(block + 1, &mut unpacked[buffer(block + 1)]),
                    false => weights,
                };
                self.multiply(weights, block, 0, groups);
                weights = next;
            }
            let mut sums = [CacheLine::ZERO; SUM_LINES];
            store(&mut sums);
            self.write(&sums, 0, groups);
        }
    }

    /// Many rows of `x`: the panel's weights are unpacked once for all, as many blocks at a time as
    /// stay in the first-level cache. Between these, sums are kept in memory, unrounded.
    #[inline(always)]
    unsafe fn unpack_once(&self, unpacked: &mut [CacheLine], sums: &mut [CacheLine]) {
        let task = self.task;
        if self.rows < PANEL_ROWS {
            unpacked.fill(CacheLine::ZERO);
        }
        let mut configured = [0; 2];
        // SAFETY: the caller ensures it.
        unsafe {
            for first_block in (0..task.blocks).step_by(BLOCKS_AT_A_TIME) {
                let blocks = first_block..task.blocks.min(first_block + BLOCKS_AT_A_TIME);
                for block in blocks.clone() {
                    // Rows are read side by side, which the hardware prefetcher does not detect.
                    prefetch_rows(
                        self.weight,
                        self.task.first + self.start + PANEL_ROWS,
                        PANEL_ROWS,
                        block,
                        task.blocks,
                    );
                    self.unpack(
                        block,
                        &mut unpacked[(block - first_block) * 2 * PANEL_ROWS..][..2 * PANEL_ROWS],
                    );
                }
                for (i, sums) in sums.as_chunks_mut::<SUM_LINES>().0.iter_mut().enumerate() {
                    let first = i * 2 * TILE_ROWS;
                    let rest = task.num_inputs() - first;
                    let groups = [rest.min(TILE_ROWS), rest.saturating_sub(TILE_ROWS).min(TILE_ROWS)];
                    if groups != configured {
                        configure(groups);
                        configured = groups;
                    }
                    let last = blocks.end == task.blocks;
                    if last {
                        self.prefetch_outputs(first, groups);
                    }
                    if first_block == 0 {
                        asm!(
                            "tilezero tmm0",
                            "tilezero tmm1",
                            "tilezero tmm2",
                            "tilezero tmm3",
                            options(nostack)
                        );
                    } else {
                        load(sums);
                    }
                    for block in blocks.clone() {
                        let start = unpacked[(block - first_block) * 2 * PANEL_ROWS..].as_ptr().cast();
                        self.multiply(WeightTiles { start, stride: 128 }, block, first, groups);
                    }
                    store(sums);
                    if last {
                        self.write(sums, first, groups);
                    }
                }
            }
        }
    }

    /// A block of the panel's weights, unpacked into `lines` unless usable in place.
    #[inline(always)]
    unsafe fn weights(&self, block: usize, lines: &mut [CacheLine]) -> WeightTiles {
        if self.rows == PANEL_ROWS
            && let Some(start) = self.weight.in_place(self.task.first + self.start)
        {
            return WeightTiles { start: start.wrapping_add(block * 128), stride: 2 * self.task.k };
        }
        // SAFETY: the caller ensures it.
        unsafe { self.unpack(block, lines) };
        WeightTiles { start: lines.as_ptr().cast(), stride: 128 }
    }

    #[inline(always)]
    unsafe fn unpack(&self, block: usize, lines: &mut [CacheLine]) {
        let first = self.task.first + self.start;
        // SAFETY: the caller ensures it; these rows exist.
        unsafe { unpack_column(self.weight, first, block, &mut lines[..2 * self.rows]) };
    }

    /// Prefetches the outputs of rows `first..` of `x`, which are far apart.
    #[inline(always)]
    unsafe fn prefetch_outputs(&self, first: usize, groups: [usize; 2]) {
        for row in first..first + groups[0] + groups[1] {
            for half in 0..self.rows.div_ceil(16) {
                let place = self.task.output.part(row, self.start + 16 * half, 1).as_ptr();
                // SAFETY: a prefetch accesses no memory.
                unsafe { _mm_prefetch(place.cast(), _MM_HINT_ET0) };
            }
        }
    }

    /// Adds the products of a block to the sums.
    #[inline(always)]
    unsafe fn multiply(&self, weights: WeightTiles, block: usize, first: usize, groups: [usize; 2]) {
        let WeightTiles { start, stride } = weights;
        let lower = start.wrapping_add(16 * stride);
        let x = |first: usize, rows: usize| {
            let start = self.task.x.as_ptr().wrapping_add(first * self.task.blocks * 2).cast::<u8>();
            start.wrapping_add(block * 128 * rows)
        };
        let (x0, bytes0) = (x(first, groups[0]), 4 * groups[0]);
        // SAFETY: all tiles are within the weights' lines (or the checkpoint's rows) and
        // within the rows of `x`.
        unsafe {
            if groups[1] == 0 {
                asm!(
                    "tileloadd tmm6, [{x} + {bytes}*1]",
                    "tileloadd tmm4, [{a} + {stride}*1]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm5, [{b} + {stride}*1]",
                    "tdpbf16ps tmm1, tmm5, tmm6",
                    "tileloadd tmm6, [{y} + {bytes}*1]",
                    "tileloadd tmm4, [{a} + {stride}*1 + 64]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm5, [{b} + {stride}*1 + 64]",
                    "tdpbf16ps tmm1, tmm5, tmm6",
                    a = in(reg) start, b = in(reg) lower, stride = in(reg) stride,
                    x = in(reg) x0, y = in(reg) x0.wrapping_add(16 * bytes0), bytes = in(reg) bytes0,
                    options(nostack, readonly),
                );
                return;
            }
            let (x1, bytes1) = (x(first + groups[0], groups[1]), 4 * groups[1]);
            for half in 0..2 {
                asm!(
                    "tileloadd tmm4, [{a} + {stride}*1]",
                    "tileloadd tmm6, [{x} + {xs}*1]",
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tileloadd tmm5, [{b} + {stride}*1]",
                    "tdpbf16ps tmm1, tmm5, tmm6",
                    "tileloadd tmm7, [{y} + {ys}*1]",
                    "tdpbf16ps tmm2, tmm4, tmm7",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    a = in(reg) start.wrapping_add(64 * half), b = in(reg) lower.wrapping_add(64 * half),
                    stride = in(reg) stride,
                    x = in(reg) x0.wrapping_add(16 * bytes0 * half), xs = in(reg) bytes0,
                    y = in(reg) x1.wrapping_add(16 * bytes1 * half), ys = in(reg) bytes1,
                    options(nostack, readonly),
                );
            }
        }
    }

    /// Writes the sums of rows `first..` of `x`: tiles are `[weight row, row of x]`, outputs
    /// transposed.
    #[inline(always)]
    unsafe fn write(&self, sums: &[CacheLine; SUM_LINES], first: usize, groups: [usize; 2]) {
        for (tile, sums) in sums.as_chunks::<16>().0.iter().enumerate() {
            let (group, half) = (tile / 2, tile % 2);
            let count = self.rows.saturating_sub(16 * half).min(16);
            if groups[group] == 0 || count == 0 {
                continue;
            }
            // SAFETY: the caller has checked the features.
            let transposed = unsafe { transpose_lines(sums) };
            for (row, sums) in transposed.iter().take(groups[group]).enumerate() {
                // SAFETY: sixteen f32 are sixteen u32.
                let values = unsafe { &*sums.0.as_ptr().cast::<[f32; 16]>() };
                let (row, column) = (first + group * TILE_ROWS + row, self.start + 16 * half);
                self.task.output.write(row, column, values, count);
            }
        }
    }
}

/// Lines of the four registers of sums.
const SUM_LINES: usize = 4 * 16;

/// # Safety
/// The registers must be configured.
unsafe fn store(sums: &mut [CacheLine; SUM_LINES]) {
    let start = sums.as_mut_ptr();
    // SAFETY: each tile is at most 16 rows of 64 bytes.
    unsafe {
        asm!(
            "tilestored [{at} + {row}*1], tmm0", "tilestored [{at} + {row}*1 + 1024], tmm1",
            "tilestored [{at} + {row}*1 + 2048], tmm2", "tilestored [{at} + {row}*1 + 3072], tmm3",
            at = in(reg) start, row = in(reg) 64usize, options(nostack),
        );
    }
}

/// # Safety
/// The registers must be configured.
unsafe fn load(sums: &[CacheLine; SUM_LINES]) {
    let start = sums.as_ptr();
    // SAFETY: each tile is at most 16 rows of 64 bytes.
    unsafe {
        asm!(
            "tileloadd tmm0, [{at} + {row}*1]", "tileloadd tmm1, [{at} + {row}*1 + 1024]",
            "tileloadd tmm2, [{at} + {row}*1 + 2048]", "tileloadd tmm3, [{at} + {row}*1 + 3072]",
            at = in(reg) start, row = in(reg) 64usize, options(nostack, readonly),
        );
    }
}

//! The order of tiles, with Intel's AMX.
//!
//! A tile of weights is 16 rows of one line; a tile of `x` the same 16 pairs of up to 16 rows of `x`. Their product is a
//! tile of 16 x 16 sums. The eight tile registers keep their contents from one `asm!` to the next: no code but this
//! module uses them, and the system saves them with a thread's other registers.

use std::arch::{asm, x86_64::*};

use super::{
    PANEL, Task,
    inputs::TILE,
    unpack::{Unpack, column_avx512, fetch},
};
use crate::linear::{
    lines::{Line, transposed},
    scratch::Scratch,
    tiles::Shapes,
};

/// Blocks of weights that are multiplied with all rows of `x` before the next: 32 rows of them fill
/// 16 KB, and what they meet of 32 rows of `x` as much.
const STRETCH: usize = 4;

/// Sets up the registers for one or two groups of rows of `x`: sums in 0 and 1 (and 2 and 3), weights in 4 and 5, `x` in
/// 6 (and 7). All become zero.
unsafe fn configure(groups: [usize; 2]) {
    let [first, second] = groups.map(|rows| 4 * rows.max(1) as u16);
    let shapes = Shapes::new([first, first, second, second, 64, 64, first, second].map(|bytes| (16, bytes)));
    // SAFETY: the caller's.
    unsafe { shapes.configure() };
}

/// # Safety
/// Tiles must be allowed, and the processor must have AVX-512 with bfloat16, as all that have tiles do.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn run<U: Unpack>(task: &Task, weight: U) {
    let few = task.inputs() <= 2 * TILE;
    let mut unpacked = Scratch::new(PANEL * 2 * if few { 2 } else { STRETCH });
    let mut sums = Scratch::new(if few { 0 } else { SUMS * task.inputs().div_ceil(2 * TILE) });
    // SAFETY: the caller's.
    unsafe {
        for panel in task.panels() {
            let panel = Panel { task, weight, start: panel.start, rows: panel.len() };
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
struct Panel<'a, U> {
    task: &'a Task<'a>,
    weight: U,
    /// The first row within the task.
    start: usize,
    rows: usize,
}

/// Weights of a block of a panel: where, and the bytes between rows.
#[derive(Clone, Copy)]
struct Weights {
    start: *const u8,
    stride: usize,
}

impl<U: Unpack> Panel<'_, U> {
    /// Few rows of `x`: each block of weights is used as it is unpacked; while the tiles multiply one block, the
    /// vectors unpack the next.
    #[inline(always)]
    unsafe fn stream(&self, unpacked: &mut [Line]) {
        let task = self.task;
        let groups = [task.inputs().min(TILE), task.inputs().saturating_sub(TILE)];
        if self.rows < PANEL {
            unpacked.fill(Line::ZERO);
        }
        // SAFETY: the caller's.
        unsafe {
            configure(groups);
            let buffer = |block: usize| block % 2 * 2 * PANEL..(block % 2 + 1) * 2 * PANEL;
            let mut weights = self.weights(0, &mut unpacked[buffer(0)]);
            for block in 0..task.blocks {
                // Rows are read side by side, which the processor does not foresee.
                fetch(self.weight, self.task.first + self.start + PANEL, PANEL, block, task.blocks);
                let next = match block + 1 < task.blocks {
                    true => self.weights(block + 1, &mut unpacked[buffer(block + 1)]),
                    false => weights,
                };
                self.multiply(weights, block, 0, groups);
                weights = next;
            }
            let mut sums = [Line::ZERO; SUMS];
            store(&mut sums);
            self.write(&sums, 0, groups);
        }
    }

    /// Many rows of `x`: the panel's weights are unpacked once for all of them, a stretch of inputs at a time that
    /// stays in the innermost cache; sums wait in memory until the next stretch, unrounded.
    #[inline(always)]
    unsafe fn unpack_once(&self, unpacked: &mut [Line], sums: &mut [Line]) {
        let task = self.task;
        if self.rows < PANEL {
            unpacked.fill(Line::ZERO);
        }
        let mut configured = [0; 2];
        // SAFETY: the caller's.
        unsafe {
            for stretch in (0..task.blocks).step_by(STRETCH) {
                let blocks = stretch..task.blocks.min(stretch + STRETCH);
                for block in blocks.clone() {
                    // Rows are read side by side, which the processor does not foresee.
                    fetch(self.weight, self.task.first + self.start + PANEL, PANEL, block, task.blocks);
                    self.unpack(block, &mut unpacked[(block - stretch) * 2 * PANEL..][..2 * PANEL]);
                }
                for (i, sums) in sums.as_chunks_mut::<SUMS>().0.iter_mut().enumerate() {
                    let first = i * 2 * TILE;
                    let rest = task.inputs() - first;
                    let groups = [rest.min(TILE), rest.saturating_sub(TILE).min(TILE)];
                    if groups != configured {
                        configure(groups);
                        configured = groups;
                    }
                    let last = blocks.end == task.blocks;
                    if last {
                        self.fetch_outputs(first, groups);
                    }
                    if stretch == 0 {
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
                        let start = unpacked[(block - stretch) * 2 * PANEL..].as_ptr().cast();
                        self.multiply(Weights { start, stride: 128 }, block, first, groups);
                    }
                    store(sums);
                    if last {
                        self.write(sums, first, groups);
                    }
                }
            }
        }
    }

    /// A block of the panel's weights, unpacked into `lines` if need be.
    #[inline(always)]
    unsafe fn weights(&self, block: usize, lines: &mut [Line]) -> Weights {
        if self.rows == PANEL
            && let Some(start) = self.weight.in_place(self.task.first + self.start)
        {
            return Weights { start: start.wrapping_add(block * 128), stride: 2 * self.task.k };
        }
        // SAFETY: the caller's.
        unsafe { self.unpack(block, lines) };
        Weights { start: lines.as_ptr().cast(), stride: 128 }
    }

    #[inline(always)]
    unsafe fn unpack(&self, block: usize, lines: &mut [Line]) {
        let first = self.task.first + self.start;
        // SAFETY: the caller's; these rows exist.
        unsafe { column_avx512(self.weight, first, block, &mut lines[..2 * self.rows]) };
    }

    /// Asks for the memory that the sums of rows `first..` of `x` will be written to: each row is far from the others.
    #[inline(always)]
    unsafe fn fetch_outputs(&self, first: usize, groups: [usize; 2]) {
        for row in first..first + groups[0] + groups[1] {
            for half in 0..self.rows.div_ceil(16) {
                let place = self.task.output.part(row, self.start + 16 * half, 1).as_ptr();
                // SAFETY: asking for memory does not touch it.
                unsafe { _mm_prefetch(place.cast(), _MM_HINT_ET0) };
            }
        }
    }

    /// Adds the products of a block to the sums.
    #[inline(always)]
    unsafe fn multiply(&self, weights: Weights, block: usize, first: usize, groups: [usize; 2]) {
        let Weights { start, stride } = weights;
        let lower = start.wrapping_add(16 * stride);
        let x = |first: usize, rows: usize| {
            let start = self.task.x.as_ptr().wrapping_add(first * self.task.blocks * 2).cast::<u8>();
            start.wrapping_add(block * 128 * rows)
        };
        let (x0, bytes0) = (x(first, groups[0]), 4 * groups[0]);
        // SAFETY: all tiles read lie within the weights' lines (or the checkpoint's rows) and within the rows of `x`.
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

    /// Writes the sums of rows `first..` of `x`: tiles are `[weight row, row of x]`, outputs the other way round.
    #[inline(always)]
    unsafe fn write(&self, sums: &[Line; SUMS], first: usize, groups: [usize; 2]) {
        for (tile, sums) in sums.as_chunks::<16>().0.iter().enumerate() {
            let (group, half) = (tile / 2, tile % 2);
            let count = self.rows.saturating_sub(16 * half).min(16);
            if groups[group] == 0 || count == 0 {
                continue;
            }
            // SAFETY: the features are the caller's.
            let turned = unsafe { transposed(sums) };
            for (row, sums) in turned.iter().take(groups[group]).enumerate() {
                // SAFETY: sixteen f32 are sixteen u32.
                let values = unsafe { &*sums.0.as_ptr().cast::<[f32; 16]>() };
                let (row, column) = (first + group * TILE + row, self.start + 16 * half);
                self.task.output.write(row, column, values, count);
            }
        }
    }
}

/// Lines of the four registers of sums.
const SUMS: usize = 4 * 16;

/// # Safety
/// The registers must be configured.
unsafe fn store(sums: &mut [Line; SUMS]) {
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
unsafe fn load(sums: &[Line; SUMS]) {
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

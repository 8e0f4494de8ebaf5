//! The bfloat16 product with AVX2 for many rows of `x`: outputs side by side in registers, one lane
//! of their sums at a time, from float32 copies. Its results equal those
//! of [`LaneMatmul`](crate::linear::bfloat16::lanes::LaneMatmul) in every bit. `LaneMatmul` unpacks
//! the same numbers again for every pair of rows.

use std::arch::x86_64::*;

use super::transpose::transpose_8x8;
use crate::{
    cache_line::CacheLine,
    lanes::LANES,
    linear::{
        Scratch,
        bfloat16::{
            inputs::{UnroundedRows, block_of},
            task::Bf16Task,
            weight::{Bf16Weight, round_bits},
        },
        tiling::{INPUT_BLOCK, PANEL_ROWS},
    },
};

/// Rows of `x` whose sums are in registers, with those of [`OUTPUTS`] weight rows.
pub(crate) const TILE_ROWS: usize = 6;
/// Cache lines that 32 inputs of a row take.
pub(crate) const LINES: usize = 2;
/// Weight rows side by side.
const OUTPUTS: usize = 16;
const HALF: usize = OUTPUTS / 2;
/// Numbers of a lane in 32 inputs: the odd and the even one of a pair.
const PARITIES: usize = 2;

const _: () = assert!(PANEL_ROWS.is_multiple_of(OUTPUTS));

/// Rounds up to [`TILE_ROWS`] rows and stores them as float32 `[lane, line, parity, row]`.
///
/// # Safety
/// The processor must have AVX2.
#[target_feature(enable = "avx2,fma")]
pub(crate) unsafe fn round(rows: UnroundedRows) {
    let UnroundedRows { x, k, sources, lines } = rows;
    let (m, blocks) = (sources.len(), k.div_ceil(INPUT_BLOCK));
    let width = 2 * blocks;
    for block in 0..blocks {
        let mut rounded = [[0; INPUT_BLOCK]; TILE_ROWS];
        for (rounded, &source) in rounded.iter_mut().zip(sources) {
            let values = block_of(&x[source as usize * k..][..k], block);
            for i in 0..INPUT_BLOCK {
                rounded[i] = round_bits(values[i]) << 16;
            }
        }
        for pair in 0..INPUT_BLOCK / 2 {
            let (lane, line) = (pair % LANES, 2 * block + pair / LANES);
            for odd in [true, false] {
                let at = ((lane * width + line) * PARITIES + usize::from(!odd)) * m;
                for row in 0..m {
                    let word = at + row;
                    lines[word / LANES].0[word % LANES] = rounded[row][2 * pair + usize::from(odd)];
                }
            }
        }
    }
}

/// # Safety
/// The processor must have AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(crate) unsafe fn multiply(task: &Bf16Task, weight: impl Bf16Weight) {
    let width = 2 * task.blocks;
    let mut panel = Scratch::new(width * LANES * PARITIES);
    for start in (0..task.rows).step_by(OUTPUTS) {
        let count = OUTPUTS.min(task.rows - start);
        // SAFETY: the caller has checked the features.
        unsafe { unpack(task, weight, start..start + count, &mut panel) };
        for (tile, x) in task.x.chunks(TILE_ROWS * width * LINES).enumerate() {
            let tile = Tile { task, panel: &panel, x, first: tile * TILE_ROWS, start, count };
            // SAFETY: the caller has checked the features.
            unsafe {
                match x.len() / (width * LINES) {
                    1 => tile.run::<1>(),
                    2 => tile.run::<2>(),
                    3 => tile.run::<3>(),
                    4 => tile.run::<4>(),
                    5 => tile.run::<5>(),
                    _ => tile.run::<TILE_ROWS>(),
                }
            }
        }
    }
}

/// Rows `rows` of the task's weight as float32 `[lane, line, parity, row]`, 16 of them, the missing
/// ones zeros.
///
/// # Safety
/// The processor must have AVX2.
#[target_feature(enable = "avx2")]
unsafe fn unpack(
    task: &Bf16Task,
    weight: impl Bf16Weight,
    rows: std::ops::Range<usize>,
    panel: &mut [CacheLine],
) {
    let upper = _mm256_set1_epi32(0xffff_0000u32 as i32);
    let width = 2 * task.blocks;
    for block in 0..task.blocks {
        for half in 0..2 {
            let mut lines = [[CacheLine::ZERO; 2]; HALF];
            for (i, lines) in lines.iter_mut().enumerate() {
                let row = rows.start + half * HALF + i;
                if row < rows.end {
                    *lines = weight.block(task.first + row, block);
                }
            }
            for line in 0..2 {
                for lanes in (0..LANES).step_by(HALF) {
                    // SAFETY: half a line is 32 bytes; a line of the panel is the 16 weight rows'
                    // odd or even numbers of a lane, of which this is one half.
                    unsafe {
                        let mut words = [_mm256_setzero_si256(); HALF];
                        for i in 0..HALF {
                            words[i] = _mm256_load_si256(lines[i][line].0.as_ptr().add(lanes).cast());
                        }
                        let words = transpose_8x8(words);
                        for i in 0..HALF {
                            let at = ((lanes + i) * width + 2 * block + line) * PARITIES;
                            let to =
                                |line: &mut CacheLine| line.0.as_mut_ptr().add(half * HALF).cast::<__m256i>();
                            let odd = _mm256_and_si256(words[i], upper);
                            _mm256_store_si256(to(&mut panel[at]), odd);
                            _mm256_store_si256(to(&mut panel[at + 1]), _mm256_slli_epi32::<16>(words[i]));
                        }
                    }
                }
            }
        }
    }
}

/// Some rows of `x` times the weight rows of a panel.
struct Tile<'a> {
    task: &'a Bf16Task<'a>,
    panel: &'a [CacheLine],
    x: &'a [CacheLine],
    /// The first row of `x`.
    first: usize,
    /// The task's first weight row of the panel, and their number.
    start: usize,
    count: usize,
}

impl Tile<'_> {
    /// # Safety
    /// The processor must have AVX2 and FMA.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn run<const M: usize>(&self) {
        let width = 2 * self.task.blocks;
        assert!(self.panel.len() == width * LANES * PARITIES && self.x.len() == M * width * LINES);
        let mut lanes = [[[_mm256_setzero_ps(); 2]; M]; LANES];
        for lane in 0..LANES {
            let mut sums = [[_mm256_setzero_ps(); 2]; M];
            // SAFETY: the lengths are checked; a lane has `width` lines of two numbers of each row.
            unsafe {
                let mut w = self.panel.as_ptr().add(lane * width * PARITIES).cast::<f32>();
                let mut x = self.x.as_ptr().cast::<f32>().add(lane * width * PARITIES * M);
                for _ in 0..width * PARITIES {
                    let weights = [_mm256_load_ps(w), _mm256_load_ps(w.add(HALF))];
                    for a in 0..M {
                        let x = _mm256_broadcast_ss(&*x.add(a));
                        for half in 0..2 {
                            sums[a][half] = _mm256_fmadd_ps(weights[half], x, sums[a][half]);
                        }
                    }
                    (w, x) = (w.add(OUTPUTS), x.add(M));
                }
            }
            lanes[lane] = sums;
        }
        // The tree of `reduce`, on all outputs at once.
        let mut size = LANES / 2;
        while size > 0 {
            for lane in 0..size {
                for a in 0..M {
                    for half in 0..2 {
                        lanes[lane][a][half] =
                            _mm256_add_ps(lanes[lane][a][half], lanes[lane + size][a][half]);
                    }
                }
            }
            size /= 2;
        }
        for a in 0..M {
            let mut outs = [0.0f32; OUTPUTS];
            for half in 0..2 {
                // SAFETY: two halves of sixteen numbers.
                unsafe { _mm256_storeu_ps(outs.as_mut_ptr().add(half * HALF), lanes[0][a][half]) };
            }
            self.task.output.write(self.first + a, self.start, &outs, self.count);
        }
    }
}

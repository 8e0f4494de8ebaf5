//! The bfloat16 product with fused multiply-adds, for processors without dot products of bfloat16.

use super::{task::Bf16Task, weight::Bf16Weight};
use crate::{
    cache_line::CacheLine,
    lanes::{LANES, reduce},
    linear::tiling::PANEL_ROWS,
    panel::wide_registers,
    simd::{SimdLevel, WithSimd, simd_level},
};

/// Weight rows unpacked together.
const REGISTER_TILE: usize = 4;

pub(crate) struct LaneMatmul<'a, U> {
    pub task: &'a Bf16Task<'a>,
    pub weight: U,
}

impl<U: Bf16Weight> WithSimd for LaneMatmul<'_, U> {
    #[inline(always)]
    fn run(self) {
        let (task, width) = (self.task, self.task.blocks * 2);
        let mut rows = vec![CacheLine::ZERO; REGISTER_TILE * width];
        for start in (0..task.rows).step_by(REGISTER_TILE) {
            let count = REGISTER_TILE.min(task.rows - start);
            for (j, row) in rows.chunks_exact_mut(width).take(count).enumerate() {
                for block in 0..task.blocks {
                    let lines = self.weight.block(task.first + start + j, block);
                    row[2 * block] = lines[0];
                    row[2 * block + 1] = lines[1];
                }
            }
            let rows = UnpackedRows { task, lines: &rows, start, count };
            let (inputs, mut i) = (task.num_inputs(), 0);
            // The largest tile whose sums fit in registers.
            if wide_registers() {
                while i + 4 <= inputs {
                    rows.tile::<4, 4>(0, i);
                    i += 4;
                }
            }
            while i + 2 <= inputs {
                rows.tile::<2, 2>(0, i);
                rows.tile::<2, 2>(2, i);
                i += 2;
            }
            if i < inputs {
                rows.tile::<4, 1>(0, i);
            }
        }
    }
}

const _: () = assert!(PANEL_ROWS.is_multiple_of(REGISTER_TILE));

/// `count` unpacked rows of a weight, at most a register tile, from the task's row `start`.
struct UnpackedRows<'a> {
    task: &'a Bf16Task<'a>,
    lines: &'a [CacheLine],
    start: usize,
    count: usize,
}

impl UnpackedRows<'_> {
    /// N rows from row `from` times M rows of `x` from row `i`.
    #[inline(always)]
    fn tile<const N: usize, const M: usize>(&self, from: usize, i: usize) {
        let UnpackedRows { task, lines, start, count } = *self;
        let width = task.blocks * 2;
        let (mut weights, mut xs): ([&[CacheLine]; N], [&[CacheLine]; M]) = ([&[]; N], [&[]; M]);
        for j in 0..N {
            weights[j] = &lines[(from + j) * width..][..width];
        }
        for a in 0..M {
            xs[a] = &task.x[(i + a) * width..][..width];
        }
        let sums = match simd_level() {
            // SAFETY: the processor has AVX2.
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2 => unsafe { crate::x86::avx2::bfloat16::sums(weights, xs) },
            _ => sums(weights, xs),
        };
        for a in 0..M {
            let mut outs = [0.0; N];
            for j in 0..N {
                outs[j] = reduce(&sums[j][a]);
            }
            if from < count {
                task.output.write(i + a, start + from, &outs, N.min(count - from));
            }
        }
    }
}

/// Lanes of each row of `weights` with each of `xs`.
#[inline(always)]
fn sums<const N: usize, const M: usize>(
    weights: [&[CacheLine]; N],
    xs: [&[CacheLine]; M],
) -> [[[f32; LANES]; M]; N] {
    let mut sums = [[[0.0; LANES]; M]; N];
    for line in 0..weights[0].len() {
        for j in 0..N {
            let weight = &weights[j][line].0;
            for a in 0..M {
                let x = &xs[a][line].0;
                let sum = &mut sums[j][a];
                for lane in 0..LANES {
                    let (w, x) = (weight[lane], x[lane]);
                    let odd =
                        f32::from_bits(w & 0xffff_0000).mul_add(f32::from_bits(x & 0xffff_0000), sum[lane]);
                    sum[lane] = f32::from_bits(w << 16).mul_add(f32::from_bits(x << 16), odd);
                }
            }
        }
    }
    sums
}

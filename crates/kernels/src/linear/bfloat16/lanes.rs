//! The order of lanes with plain fused multiply-adds, for processors without dot products of bfloat16.

use super::{PANEL, Task, unpack::Unpack};
use crate::{
    lanes::{LANES, reduce},
    linear::lines::Line,
    panel::wide_registers,
    simd::{SimdLevel, Work, simd_level},
};

/// Weight rows unpacked together.
const TILE: usize = 4;

pub(super) struct Lanes<'a, U> {
    pub task: &'a Task<'a>,
    pub weight: U,
}

impl<U: Unpack> Work for Lanes<'_, U> {
    #[inline(always)]
    fn run(self) {
        let (task, width) = (self.task, self.task.blocks * 2);
        let mut rows = vec![Line::ZERO; TILE * width];
        for start in (0..task.rows).step_by(TILE) {
            let count = TILE.min(task.rows - start);
            for (j, row) in rows.chunks_exact_mut(width).take(count).enumerate() {
                for block in 0..task.blocks {
                    let lines = self.weight.block(task.first + start + j, block);
                    row[2 * block] = lines[0];
                    row[2 * block + 1] = lines[1];
                }
            }
            let rows = Rows { task, lines: &rows, start, count };
            let (inputs, mut i) = (task.inputs(), 0);
            // As many sums as there are registers for.
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

const _: () = assert!(PANEL.is_multiple_of(TILE));

/// `count` unpacked rows of a weight, of TILE, from the task's row `start` on.
struct Rows<'a> {
    task: &'a Task<'a>,
    lines: &'a [Line],
    start: usize,
    count: usize,
}

impl Rows<'_> {
    /// N of them from the `from`th against M rows of `x` from the `i`th.
    #[inline(always)]
    fn tile<const N: usize, const M: usize>(&self, from: usize, i: usize) {
        let Rows { task, lines, start, count } = *self;
        let width = task.blocks * 2;
        let (mut weights, mut xs): ([&[Line]; N], [&[Line]; M]) = ([&[]; N], [&[]; M]);
        for j in 0..N {
            weights[j] = &lines[(from + j) * width..][..width];
        }
        for a in 0..M {
            xs[a] = &task.x[(i + a) * width..][..width];
        }
        let sums = match simd_level() {
            // SAFETY: the processor has the features.
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx2 => unsafe { sums_avx2(weights, xs) },
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
fn sums<const N: usize, const M: usize>(weights: [&[Line]; N], xs: [&[Line]; M]) -> [[[f32; LANES]; M]; N] {
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

/// [`sums`] where the compiler does not find vectors of half a line.
///
/// # Safety
/// The processor must have the features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
#[inline]
unsafe fn sums_avx2<const N: usize, const M: usize>(
    weights: [&[Line]; N],
    xs: [&[Line]; M],
) -> [[[f32; LANES]; M]; N] {
    use std::arch::x86_64::*;
    let width = weights[0].len();
    assert!(weights.iter().chain(&xs).all(|lines| lines.len() == width), "rows of one length");
    let upper = _mm256_set1_epi32(0xffff_0000u32 as i32);
    let mut sums = [[[_mm256_setzero_ps(); 2]; M]; N];
    for line in 0..width {
        for half in 0..2 {
            // SAFETY: a line is 64 aligned bytes, and there are so many of each row.
            let load = |lines: &[Line]| unsafe {
                _mm256_load_si256(lines.as_ptr().add(line).cast::<__m256i>().add(half))
            };
            for j in 0..N {
                let w = load(weights[j]);
                let odd = _mm256_castsi256_ps(_mm256_and_si256(w, upper));
                let even = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(w));
                for a in 0..M {
                    let x = load(xs[a]);
                    let sum = _mm256_fmadd_ps(
                        odd,
                        _mm256_castsi256_ps(_mm256_and_si256(x, upper)),
                        sums[j][a][half],
                    );
                    let x = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(x));
                    sums[j][a][half] = _mm256_fmadd_ps(even, x, sum);
                }
            }
        }
    }
    let mut lanes = [[[0.0; LANES]; M]; N];
    for j in 0..N {
        for a in 0..M {
            for half in 0..2 {
                // SAFETY: two halves of sixteen lanes.
                unsafe { _mm256_storeu_ps(lanes[j][a].as_mut_ptr().add(8 * half), sums[j][a][half]) };
            }
        }
    }
    lanes
}

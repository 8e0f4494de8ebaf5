//! The order of lanes with plain fused multiply-adds, for processors without dot products of bfloat16.

use super::{PANEL, Task, unpack::Unpack};
use crate::{
    lanes::{LANES, reduce},
    linear::lines::Line,
    simd::Work,
};

/// Weight rows, and rows of `x`, in a register tile.
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
            let mut i = 0;
            while i + TILE <= task.inputs() {
                tile::<TILE>(task, &rows, count, start, i);
                i += TILE;
            }
            match task.inputs() - i {
                0 => {}
                1 => tile::<1>(task, &rows, count, start, i),
                2 => tile::<2>(task, &rows, count, start, i),
                _ => tile::<3>(task, &rows, count, start, i),
            }
        }
    }
}

const _: () = assert!(PANEL.is_multiple_of(TILE));

/// Up to TILE weight rows against M rows of `x` from the `i`th.
#[inline(always)]
fn tile<const M: usize>(task: &Task, rows: &[Line], count: usize, start: usize, i: usize) {
    let width = task.blocks * 2;
    let mut sums = [[[0.0f32; LANES]; M]; TILE];
    for line in 0..width {
        for j in 0..TILE {
            let weight = &rows[j * width + line].0;
            for a in 0..M {
                let x = &task.x[(i + a) * width + line].0;
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
    for a in 0..M {
        let mut outs = [0.0; TILE];
        for j in 0..TILE {
            outs[j] = reduce(&sums[j][a]);
        }
        task.output.write(i + a, start, &outs, count);
    }
}

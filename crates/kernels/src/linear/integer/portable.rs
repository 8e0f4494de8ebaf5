//! The integer product in portable 32-bit arithmetic.

use super::{
    inputs::{InputTile, InputTiles},
    panel::KBlock,
};
use crate::{
    linear::tiling::{PANEL_ROWS, TILE_ROWS},
    simd::{WithSimd, dispatch},
};

/// Adds the sum of a K block's products, counted from zero, to each row's sums.
pub(super) fn multiply(block: KBlock, tiles: InputTiles, sums: &mut [[f32; PANEL_ROWS]]) {
    for (tile, sums) in tiles.zip(sums.chunks_mut(TILE_ROWS)) {
        dispatch(MultiplyTile { block, tile, sums });
    }
}

struct MultiplyTile<'a> {
    block: KBlock<'a>,
    tile: InputTile<'a>,
    sums: &'a mut [[f32; PANEL_ROWS]],
}

impl WithSimd for MultiplyTile<'_> {
    #[inline(always)]
    fn run(self) {
        let MultiplyTile { block: KBlock { panel, start, groups, group }, tile, sums } = self;
        let rows = tile.rows;
        for (r, sums) in sums.iter_mut().enumerate() {
            let mut totals = [0.0f32; PANEL_ROWS];
            for g in 0..groups {
                let x = &tile.groups[(start / group + g) * rows + r];
                let mut dots = [x.correction; PANEL_ROWS];
                for q in g * group / 4..(g + 1) * group / 4 {
                    let input_block = start / 64 + q / 16;
                    let pair = |half: usize| tile.lines[(2 * input_block + half) * rows + r].0[q % 16];
                    let (even, odd) = (pair(0), pair(1));
                    let [a, b, c, d] =
                        [even as i16 as i32, odd as i16 as i32, even as i32 >> 16, odd as i32 >> 16];
                    for half in 0..2 {
                        let codes = &panel.codes[q][half].0;
                        for i in 0..16 {
                            let code = |shift: u32| (codes[i] >> shift & 0xff) as i32;
                            dots[16 * half + i] += code(0) * a + code(8) * b + code(16) * c + code(24) * d;
                        }
                    }
                }
                let (scales, biases) = (panel.scales[g].as_flattened(), panel.biases[g].as_flattened());
                for i in 0..PANEL_ROWS {
                    let total = scales[i].mul_add(dots[i] as f32 * x.step, totals[i]);
                    totals[i] = biases[i].mul_add(x.sum, total);
                }
            }
            for (sum, total) in sums.iter_mut().zip(totals) {
                *sum += total;
            }
        }
    }
}

//! The product in plain integers of 32 bits.

use super::{PANEL, Stretch, inputs::Tile};
use crate::simd::Work;

pub(super) struct Add<'a> {
    pub stretch: Stretch<'a>,
    pub tile: Tile<'a>,
    pub sums: &'a mut [[f32; PANEL]],
}

impl Work for Add<'_> {
    #[inline(always)]
    fn run(self) {
        let Add { stretch: Stretch { panel, start, groups, group }, tile, sums } = self;
        let rows = tile.rows;
        for (r, sums) in sums.iter_mut().enumerate() {
            for g in 0..groups {
                let x = &tile.groups[(start / group + g) * rows + r];
                let mut dots = [x.correction; PANEL];
                for q in g * group / 4..(g + 1) * group / 4 {
                    let block = start / 64 + q / 16;
                    let pair = |half: usize| tile.lines[(2 * block + half) * rows + r].0[q % 16];
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
                for i in 0..PANEL {
                    let sum = scales[i].mul_add(dots[i] as f32 * x.step, sums[i]);
                    sums[i] = biases[i].mul_add(x.sum, sum);
                }
            }
        }
    }
}

//! Packed weights for the product of integers.

use std::ops::Range;

use super::{Panel, codes::mask, inputs::Layout};
use crate::{
    linear::packed::Packed,
    simd::{Vectors, Work, vectorize, vectors},
};

/// What a packed weight asks of `x`.
pub(super) fn layout(weight: &Packed) -> Layout {
    let packing = weight.packing();
    Layout { group: packing.group_size, stride: 8 / packing.bits, excess: 0 }
}

/// Unpacks `inputs` of `rows` rows from the `first` on, whole blocks; what the panel holds of other rows is left as it was.
pub(super) fn unpack(weight: Packed, first: usize, rows: usize, inputs: Range<usize>, panel: &mut Panel) {
    #[cfg(target_arch = "x86_64")]
    if vectors() >= Vectors::Avx512Bf16 {
        // SAFETY: the processor has the features.
        return unsafe { super::blocks_avx512::unpack(weight, first, rows, inputs, panel) };
    }
    vectorize(Unpack { weight, first, rows, inputs, panel });
}

struct Unpack<'a> {
    weight: Packed<'a>,
    first: usize,
    rows: usize,
    inputs: Range<usize>,
    panel: &'a mut Panel,
}

impl Work for Unpack<'_> {
    #[inline(always)]
    fn run(self) {
        let Unpack { weight, first, rows, inputs, panel } = self;
        let packing = weight.packing();
        let (bits, fours) = (packing.bits, 8 / packing.bits);
        let mask = mask(bits);
        for half in 0..rows / 16 {
            let groups = inputs.start / packing.group_size..inputs.end / packing.group_size;
            let lines = weight.groups(first + 16 * half, groups);
            for (g, lines) in lines.chunks_exact(packing.group_lines()).enumerate() {
                let (codes, scales) = lines.split_at(packing.group_words());
                for (i, line) in codes.iter().enumerate() {
                    for s in 0..fours {
                        let four = &mut panel.codes[(g * codes.len() + i) * fours + s][half];
                        for r in 0..16 {
                            four.0[r] = line.0[r] >> (bits * s) & mask;
                        }
                    }
                }
                for r in 0..16 {
                    let [scale, bias] = weight.scale_and_bias(scales, r);
                    panel.scales[g][half][r] = scale;
                    panel.biases[g][half][r] = bias;
                }
            }
        }
    }
}

//! Packed weights as inputs of the integer product, and their portable unpacking into panels.

use std::ops::Range;

use super::{inputs::InputLayout, panel::UnpackedPanel, unpack::byte_mask};
use crate::{
    cache_line::CacheLine,
    linear::packed::{Packed, PackedLayout},
    simd::{WithSimd, dispatch},
};

/// 16 rows of a packed weight, and which half of a panel they are.
#[derive(Clone, Copy)]
pub(crate) struct PackedRows<'a> {
    pub packing: PackedLayout,
    pub groups: &'a [CacheLine],
    pub half: usize,
}

/// The layout of `x` that a packed weight requires.
pub(super) fn input_layout(weight: &Packed) -> InputLayout {
    let packing = weight.packing();
    InputLayout { group: packing.group_size, stride: 8 / packing.bits, excess: 0 }
}

/// Unpacks `inputs` of `rows` rows, whole blocks, from row `first`. The panel's other rows are
/// unspecified.
pub(super) fn unpack(
    weight: Packed,
    first: usize,
    rows: usize,
    inputs: Range<usize>,
    panel: &mut UnpackedPanel,
) {
    dispatch(UnpackPacked { weight, first, rows, inputs, panel });
}

struct UnpackPacked<'a> {
    weight: Packed<'a>,
    first: usize,
    rows: usize,
    inputs: Range<usize>,
    panel: &'a mut UnpackedPanel,
}

impl WithSimd for UnpackPacked<'_> {
    #[inline(always)]
    fn run(self) {
        let UnpackPacked { weight, first, rows, inputs, panel } = self;
        let packing = weight.packing();
        let (bits, fours) = (packing.bits, 8 / packing.bits);
        let mask = byte_mask(bits);
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

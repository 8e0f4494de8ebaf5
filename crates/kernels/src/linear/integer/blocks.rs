//! Packed weights for the product of integers.

use std::ops::Range;

use super::{
    PANEL, Panel,
    codes::mask,
    inputs::{Layout, Tile},
};
#[cfg(target_arch = "x86_64")]
use super::{blocks_avx2, blocks_avx512};
#[cfg(target_arch = "x86_64")]
use crate::simd::{SimdLevel, simd_level};
use crate::{
    linear::{
        lines::Line,
        packed::{Packed, PackedLayout},
    },
    simd::{Work, vectorize},
};

/// Sums of all products of 16 weight rows with a tile's rows, as half a panel.
pub(super) type Multiply = unsafe fn(Lines, Tile, &mut [[f32; PANEL]]);

/// Rows of `x` that AVX-512 multiplies with codes as they come out of memory; for more, it is cheaper to unpack them once.
#[cfg(target_arch = "x86_64")]
const FEW: usize = 64;
/// The same where unpacked ones go through tiles.
#[cfg(target_arch = "x86_64")]
const FEW_FOR_TILES: usize = 12;

/// 16 rows of a weight, and the half of a panel that they are.
#[derive(Clone, Copy)]
pub(super) struct Lines<'a> {
    pub packing: PackedLayout,
    pub groups: &'a [Line],
    pub half: usize,
}

/// What multiplies so many rows of `x` with codes as they come, unless it is better to unpack these first. The processor has
/// its features.
#[cfg(target_arch = "x86_64")]
pub(super) fn packed_kernel(rows: usize) -> Option<Multiply> {
    match simd_level() {
        SimdLevel::Amx => (rows <= FEW_FOR_TILES).then_some(blocks_avx512::multiply),
        SimdLevel::Avx512Bf16 | SimdLevel::Avx512Vnni => (rows <= FEW).then_some(blocks_avx512::multiply),
        SimdLevel::Avx512 | SimdLevel::Avx2 => Some(blocks_avx2::multiply),
        SimdLevel::Portable => None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn packed_kernel(_rows: usize) -> Option<Multiply> {
    None
}

/// What a packed weight asks of `x`.
pub(super) fn layout(weight: &Packed) -> Layout {
    let packing = weight.packing();
    Layout { group: packing.group_size, stride: 8 / packing.bits, excess: 0 }
}

/// Unpacks `inputs` of `rows` rows from the `first` on, whole blocks; what the panel holds of other rows is left as it was.
pub(super) fn unpack(weight: Packed, first: usize, rows: usize, inputs: Range<usize>, panel: &mut Panel) {
    #[cfg(target_arch = "x86_64")]
    if simd_level() >= SimdLevel::Avx512 {
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

//! Matrices of integer codes as the checkpoint stores them, and their portable unpacking into
//! panels.

use std::ops::Range;

use super::{inputs::InputLayout, panel::UnpackedPanel};
use crate::{
    linear::{
        affine::Affine,
        codes::{e4m3, e8m0, unpack_chunk},
        microscaled::{FloatFormat, Microscaled},
        weight::{Floats, Weight},
    },
    simd::{WithSimd, dispatch},
};

/// A matrix whose codes are integers, or 4-bit floats that a table maps to integers.
pub(crate) struct CodeMatrix<'a> {
    pub words: &'a [u32],
    pub bits: usize,
    pub group: usize,
    /// Whether codes are 4-bit floats.
    pub is_float: bool,
    pub scales: GroupScales<'a>,
    /// Words and groups of a row.
    pub row_words: usize,
    pub row_groups: usize,
}

pub(crate) enum GroupScales<'a> {
    /// Scales and biases.
    Affine(Floats<'a>, Floats<'a>),
    /// Bytes, and half the scale that each byte encodes.
    Bytes(&'a [u8], &'static [f32; 256]),
}

/// Twice the value of each 4-bit float, plus [`EXCESS`].
pub(crate) const DOUBLED_E2M1: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];
const EXCESS: i32 = 12;

/// Half the power of two that a byte encodes.
pub(crate) fn half_e8m0(byte: u8) -> f32 {
    HALF_E8M0[byte as usize]
}

static HALF_E8M0: [f32; 256] = halved(true);
static HALF_E4M3: [f32; 256] = halved(false);

/// Half the value of each byte as e8m0 (a power of two) or e4m3.
const fn halved(is_e8m0: bool) -> [f32; 256] {
    let mut table = [0.0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = 0.5 * if is_e8m0 { e8m0(byte as u8) } else { e4m3(byte as u32) };
        byte += 1;
    }
    table
}

impl<'a> CodeMatrix<'a> {
    /// `weight`, rows of `k`.
    ///
    /// # Panics
    /// If its codes are not integers.
    pub(crate) fn new(weight: &Weight<'a>, k: usize) -> CodeMatrix<'a> {
        let (words, bits, group, is_float, scales) = match *weight {
            Weight::Affine(Affine { codes, scales, biases, group_size, bits }) => {
                (codes, bits, group_size, false, GroupScales::Affine(scales, biases))
            }
            Weight::Microscaled(Microscaled { codes, scales, format }) => {
                let table = match format {
                    FloatFormat::Mxfp4 => &HALF_E8M0,
                    FloatFormat::Nvfp4 => &HALF_E4M3,
                    FloatFormat::Mxfp8 => unreachable!("8-bit floats"),
                };
                (codes, 4, format.group(), true, GroupScales::Bytes(scales, table))
            }
            Weight::Dense(_) | Weight::Packed(_) => unreachable!("no rows of integer codes"),
        };
        let (row_words, row_groups) = (k * bits / 32, k / group);
        CodeMatrix { words, bits, group, is_float, scales, row_words, row_groups }
    }

    pub(crate) fn layout(&self) -> InputLayout {
        InputLayout {
            group: self.group,
            stride: self.stride(),
            excess: if self.is_float { EXCESS } else { 0 },
        }
    }

    /// See [`InputLayout`]: words of 2-, 4- and 8-bit codes are masked and shifted, others unpacked
    /// code by code.
    fn stride(&self) -> usize {
        match self.bits {
            2 | 4 => 8 / self.bits,
            _ => 1,
        }
    }
}

/// Unpacks `inputs` of `rows` rows from row `first`. The panel's other rows are unspecified.
pub(super) fn unpack(
    codes: &CodeMatrix,
    first: usize,
    rows: usize,
    inputs: Range<usize>,
    panel: &mut UnpackedPanel,
) {
    dispatch(UnpackCodes { codes, first, rows, inputs, panel });
}

struct UnpackCodes<'a> {
    codes: &'a CodeMatrix<'a>,
    first: usize,
    rows: usize,
    inputs: Range<usize>,
    panel: &'a mut UnpackedPanel,
}

impl WithSimd for UnpackCodes<'_> {
    #[inline(always)]
    fn run(self) {
        let UnpackCodes { codes, first, rows, inputs, panel } = self;
        for row in 0..rows {
            let (half, lane) = (row / 16, row % 16);
            let words = &codes.words[(first + row) * codes.row_words..][..codes.row_words];
            match codes.bits {
                2 => unpack_words::<2>(&words[inputs.start / 16..inputs.end / 16], half, lane, panel),
                4 => unpack_words::<4>(&words[inputs.start / 8..inputs.end / 8], half, lane, panel),
                8 => unpack_words::<8>(&words[inputs.start / 4..inputs.end / 4], half, lane, panel),
                3 => unpack_codes::<3>(words, &inputs, half, lane, panel),
                5 => unpack_codes::<5>(words, &inputs, half, lane, panel),
                _ => unpack_codes::<6>(words, &inputs, half, lane, panel),
            }
        }
        if codes.is_float {
            for lines in panel.codes.iter_mut().flatten() {
                for word in &mut lines.0 {
                    *word =
                        u32::from_le_bytes(word.to_le_bytes().map(|code| DOUBLED_E2M1[code as usize & 15]));
                }
            }
        }
        unpack_scales(codes, first, rows, inputs, panel);
    }
}

/// Scales and biases of `inputs` of `rows` rows.
#[inline(always)]
pub(crate) fn unpack_scales(
    codes: &CodeMatrix,
    first: usize,
    rows: usize,
    inputs: Range<usize>,
    panel: &mut UnpackedPanel,
) {
    let groups = inputs.start / codes.group..inputs.end / codes.group;
    for row in 0..rows {
        let (half, lane) = (row / 16, row % 16);
        for g in groups.clone() {
            let at = (first + row) * codes.row_groups + g;
            let (scale, bias) = match codes.scales {
                GroupScales::Affine(scales, biases) => (scales.at(at), biases.at(at)),
                GroupScales::Bytes(bytes, table) => (table[bytes[at] as usize], 0.0),
            };
            panel.scales[g - groups.start][half][lane] = scale;
            panel.biases[g - groups.start][half][lane] = bias;
        }
    }
}

/// The lowest `bits` of each byte.
#[inline(always)]
pub(super) fn byte_mask(bits: usize) -> u32 {
    0x0101_0101 * ((1 << bits) - 1)
}

/// Shifts and masks words of codes into fours.
#[inline(always)]
fn unpack_words<const BITS: usize>(words: &[u32], half: usize, lane: usize, panel: &mut UnpackedPanel) {
    let mask = byte_mask(BITS);
    for (i, word) in words.iter().enumerate() {
        for s in 0..8 / BITS {
            panel.codes[i * (8 / BITS) + s][half].0[lane] = word >> (BITS * s) & mask;
        }
    }
}

/// Unpacks 3-, 5- and 6-bit codes one by one.
#[inline(always)]
fn unpack_codes<const BITS: usize>(
    words: &[u32],
    inputs: &Range<usize>,
    half: usize,
    lane: usize,
    panel: &mut UnpackedPanel,
) {
    for (i, chunk) in (inputs.start / 16..inputs.end / 16).enumerate() {
        let codes = unpack_chunk::<BITS>(words, chunk);
        for four in 0..4 {
            let [a, b, c, d] = [0, 1, 2, 3].map(|j| codes[4 * four + j]);
            panel.codes[4 * i + four][half].0[lane] = a | b << 8 | c << 16 | d << 24;
        }
    }
}

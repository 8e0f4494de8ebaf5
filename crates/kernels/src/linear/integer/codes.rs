//! Weights of small integers, unpacked a panel at a time.

use std::ops::Range;

use super::{Panel, inputs::Layout};
#[cfg(target_arch = "x86_64")]
use crate::simd::{SimdLevel, simd_level};
use crate::{
    linear::{Affine, FloatFormat, Floats, Microscaled, Weight, affine, e4m3, float::e8m0},
    simd::{Work, vectorize},
};

/// A weight whose codes are integers, or 4-bit floats that a table makes integers.
pub(super) struct Codes<'a> {
    pub words: &'a [u32],
    pub bits: usize,
    pub group: usize,
    /// Whether codes are 4-bit floats.
    pub floats: bool,
    pub scales: Scales<'a>,
    /// Words and groups of a row.
    pub row_words: usize,
    pub row_groups: usize,
}

pub(super) enum Scales<'a> {
    /// And biases.
    Affine(Floats<'a>, Floats<'a>),
    /// What each byte stands for, halved.
    Bytes(&'a [u8], &'static [f32; 256]),
}

/// Twice the value of each 4-bit float, plus the excess.
pub(super) const DOUBLED: [u8; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];
const EXCESS: i32 = 12;

static POWERS: [f32; 256] = halved(true);
static SMALL_FLOATS: [f32; 256] = halved(false);

/// Half of what each byte stands for, as a power of two or as an 8-bit float.
const fn halved(powers: bool) -> [f32; 256] {
    let mut table = [0.0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = 0.5 * if powers { e8m0(byte as u8) } else { e4m3(byte as u32) };
        byte += 1;
    }
    table
}

impl<'a> Codes<'a> {
    /// The weight's rows of `k`, if its codes are integers.
    pub fn of(weight: &Weight<'a>, k: usize) -> Option<Codes<'a>> {
        let (words, bits, group, floats, scales) = match *weight {
            Weight::Affine(Affine { codes, scales, biases, group_size, bits }) => {
                (codes, bits, group_size, false, Scales::Affine(scales, biases))
            }
            Weight::Microscaled(Microscaled { codes, scales, format }) => {
                let table = match format {
                    FloatFormat::Mxfp4 => &POWERS,
                    FloatFormat::Nvfp4 => &SMALL_FLOATS,
                    FloatFormat::Mxfp8 => return None,
                };
                (codes, 4, format.group(), true, Scales::Bytes(scales, table))
            }
            Weight::Dense(_) | Weight::Packed(_) => return None,
        };
        let (row_words, row_groups) = (k * bits / 32, k / group);
        Some(Codes { words, bits, group, floats, scales, row_words, row_groups })
    }

    pub fn layout(&self) -> Layout {
        Layout { group: self.group, stride: self.stride(), excess: if self.floats { EXCESS } else { 0 } }
    }

    /// See [`Layout`]: a word of 2, 4 or 8 bits is masked and shifted, others are unpacked code by code.
    pub fn stride(&self) -> usize {
        match self.bits {
            2 | 4 => 8 / self.bits,
            _ => 1,
        }
    }

    /// Unpacks `inputs` of `rows` rows from the `first` on; what the panel holds of other rows is left as it was.
    pub fn unpack(&self, first: usize, rows: usize, inputs: Range<usize>, panel: &mut Panel) {
        #[cfg(target_arch = "x86_64")]
        match simd_level() {
            SimdLevel::Portable => {}
            // SAFETY: the processor has the features; the rows exist.
            SimdLevel::Avx2 => return unsafe { super::codes_avx2::unpack(self, first, rows, inputs, panel) },
            // SAFETY: as above.
            _ => return unsafe { super::codes_avx512::unpack(self, first, rows, inputs, panel) },
        }
        vectorize(Unpack { codes: self, first, rows, inputs, panel });
    }
}

struct Unpack<'a> {
    codes: &'a Codes<'a>,
    first: usize,
    rows: usize,
    inputs: Range<usize>,
    panel: &'a mut Panel,
}

impl Work for Unpack<'_> {
    #[inline(always)]
    fn run(self) {
        let Unpack { codes, first, rows, inputs, panel } = self;
        for row in 0..rows {
            let (half, lane) = (row / 16, row % 16);
            let words = &codes.words[(first + row) * codes.row_words..][..codes.row_words];
            match codes.bits {
                2 => spread::<2>(&words[inputs.start / 16..inputs.end / 16], half, lane, panel),
                4 => spread::<4>(&words[inputs.start / 8..inputs.end / 8], half, lane, panel),
                8 => spread::<8>(&words[inputs.start / 4..inputs.end / 4], half, lane, panel),
                3 => one_by_one::<3>(words, &inputs, half, lane, panel),
                5 => one_by_one::<5>(words, &inputs, half, lane, panel),
                _ => one_by_one::<6>(words, &inputs, half, lane, panel),
            }
        }
        if codes.floats {
            for lines in panel.codes.iter_mut().flatten() {
                for word in &mut lines.0 {
                    *word = u32::from_le_bytes(word.to_le_bytes().map(|code| DOUBLED[code as usize & 15]));
                }
            }
        }
        scales(codes, first, rows, inputs, panel);
    }
}

/// Scales and biases of `inputs` of `rows` rows.
#[inline(always)]
pub(super) fn scales(codes: &Codes, first: usize, rows: usize, inputs: Range<usize>, panel: &mut Panel) {
    let groups = inputs.start / codes.group..inputs.end / codes.group;
    for row in 0..rows {
        let (half, lane) = (row / 16, row % 16);
        for g in groups.clone() {
            let at = (first + row) * codes.row_groups + g;
            let (scale, bias) = match codes.scales {
                Scales::Affine(scales, biases) => (scales.at(at), biases.at(at)),
                Scales::Bytes(bytes, table) => (table[bytes[at] as usize], 0.0),
            };
            panel.scales[g - groups.start][half][lane] = scale;
            panel.biases[g - groups.start][half][lane] = bias;
        }
    }
}

/// The lowest `bits` of each byte.
#[inline(always)]
pub(super) fn mask(bits: usize) -> u32 {
    0x0101_0101 * ((1 << bits) - 1)
}

/// Words whose codes are shifted and masked into fours.
#[inline(always)]
fn spread<const BITS: usize>(words: &[u32], half: usize, lane: usize, panel: &mut Panel) {
    let mask = mask(BITS);
    for (i, word) in words.iter().enumerate() {
        for s in 0..8 / BITS {
            panel.codes[i * (8 / BITS) + s][half].0[lane] = word >> (BITS * s) & mask;
        }
    }
}

#[inline(always)]
fn one_by_one<const BITS: usize>(
    words: &[u32],
    inputs: &Range<usize>,
    half: usize,
    lane: usize,
    panel: &mut Panel,
) {
    for (i, chunk) in (inputs.start / 16..inputs.end / 16).enumerate() {
        let codes = affine::unpack::<BITS>(words, chunk);
        for four in 0..4 {
            let [a, b, c, d] = [0, 1, 2, 3].map(|j| codes[4 * four + j]);
            panel.codes[4 * i + four][half].0[lane] = a | b << 8 | c << 16 | d << 24;
        }
    }
}

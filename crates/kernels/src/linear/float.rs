//! Weights of 4- and 8-bit floats with one scale per group: the OCP microscaling formats and NVFP4.

use super::{
    affine::unpack,
    float32::{self, Matrix, Row},
    product::Product,
};
use crate::lanes::{LANES, Lanes};

/// A matrix `[out, in]` of 4- or 8-bit floats with one scale per group and no bias, as MLX packs them.
#[derive(Clone, Copy, Debug)]
pub struct Microscaled<'a> {
    /// Each row one little-endian bit stream of codes.
    pub codes: &'a [u32],
    /// `[out, in / group]`
    pub scales: &'a [u8],
    pub format: FloatFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatFormat {
    /// e2m1 codes in groups of 32, each with a power of two.
    Mxfp4,
    /// e4m3 codes in groups of 32, each with a power of two.
    Mxfp8,
    /// e2m1 codes in groups of 16, each with an e4m3 scale.
    Nvfp4,
}

impl FloatFormat {
    /// Bits of a code.
    pub(crate) fn bits(self) -> usize {
        if self == FloatFormat::Mxfp8 { 8 } else { 4 }
    }

    /// Values that share a scale.
    pub(crate) fn group(self) -> usize {
        if self == FloatFormat::Nvfp4 { 16 } else { 32 }
    }
}

impl Microscaled<'_> {
    /// Panics unless the parts are those of `rows` rows of `k`.
    pub(super) fn check(&self, rows: usize, k: usize) {
        let Microscaled { codes, scales, format } = self;
        let (bits, group) = (format.bits(), format.group());
        assert!(k.is_multiple_of(group), "{format:?} has groups of {group}, not in {k}");
        assert_eq!(
            (codes.len(), scales.len()),
            (rows * k * bits / 32, rows * k / group),
            "{format:?} codes and scales of {rows} rows of {k}"
        );
    }
}

/// In float32.
pub(super) fn multiply(x: &[f32], weight: Microscaled, out: &mut [f32], product: &Product) {
    let k = product.k;
    match weight.format {
        FloatFormat::Mxfp4 => float32::multiply(x, Floats::<4, 32>::new(weight, k), out, product),
        FloatFormat::Mxfp8 => float32::multiply(x, Floats::<8, 32>::new(weight, k), out, product),
        FloatFormat::Nvfp4 => float32::multiply(x, Floats::<4, 16>::new(weight, k), out, product),
    }
}

/// A matrix if its rows hold `words` of codes and `groups` of scales; as its own [`Row`], those of one row.
#[derive(Clone, Copy)]
struct Floats<'a, const BITS: usize, const GROUP: usize> {
    codes: &'a [u32],
    scales: &'a [u8],
    words: usize,
    groups: usize,
}

impl<'a, const BITS: usize, const GROUP: usize> Floats<'a, BITS, GROUP> {
    fn new(weight: Microscaled<'a>, k: usize) -> Self {
        let Microscaled { codes, scales, .. } = weight;
        Floats { codes, scales, words: k * BITS / 32, groups: k / GROUP }
    }
}

impl<const BITS: usize, const GROUP: usize> Matrix for Floats<'_, BITS, GROUP> {
    type Row = Self;
    #[inline(always)]
    fn row(self, index: usize) -> Self {
        Floats {
            codes: &self.codes[index * self.words..][..self.words],
            scales: &self.scales[index * self.groups..][..self.groups],
            ..self
        }
    }
}

impl<const BITS: usize, const GROUP: usize> Row for Floats<'_, BITS, GROUP> {
    #[inline(always)]
    fn lanes(&self, chunk: usize) -> Lanes {
        let byte = self.scales[chunk * LANES / GROUP];
        let scale = if GROUP == 16 { e4m3(byte as u32) } else { e8m0(byte) };
        let codes = unpack::<BITS>(self.codes, chunk);
        // No rounding, outside of overflow and subnormals: code and scale fill at most 6 bits together.
        let mut lanes = [0.0; LANES];
        if BITS == 4 {
            for i in 0..LANES {
                lanes[i] = doubled_e2m1(codes[i]) * (scale * 0.5);
            }
        } else {
            for i in 0..LANES {
                lanes[i] = e4m3(codes[i]) * scale;
            }
        }
        lanes
    }
}

/// Twice the value of the lowest 4 bits: sign, 2 of exponent, 1 of mantissa.
#[inline(always)]
pub(super) fn doubled_e2m1(code: u32) -> f32 {
    // Nibble i is twice the magnitude of code i, so the table is one word to shift.
    let magnitude = (0xC864_3210u32 >> ((code & 7) * 4)) & 15;
    f32::from_bits((magnitude as f32).to_bits() | (code & 8) << 28)
}

/// The value of the lowest byte: sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinities, one NaN.
#[inline(always)]
pub(crate) const fn e4m3(code: u32) -> f32 {
    let magnitude = code & 0x7f;
    let normal = f32::from_bits((magnitude << 20) + ((127 - 7) << 23));
    let subnormal = magnitude as f32 * (1.0 / 512.0);
    let value = if magnitude < 8 { subnormal } else { normal };
    let value = if magnitude == 0x7f { f32::NAN } else { value };
    f32::from_bits(value.to_bits() | (code & 0x80) << 24)
}

/// `2^(byte - 127)`; 255 becomes infinity, as in MLX.
#[inline(always)]
pub(super) const fn e8m0(byte: u8) -> f32 {
    f32::from_bits(if byte == 0 { 1 << 22 } else { (byte as u32) << 23 })
}

//! Decodes the codes of quantised weights.

use crate::lanes::LANES;

/// The 16 codes of chunk `chunk` of a row, which start `2 * BITS` bytes after the previous chunk's.
#[inline(always)]
pub(super) fn unpack_chunk<const BITS: usize>(row: &[u32], chunk: usize) -> [u32; LANES] {
    // The position of each code is a constant of its lane, so this compiles to a few shuffles and
    // shifts.
    let mask = (1u32 << BITS) - 1;
    let mut codes = [0; LANES];
    if let 2 | 4 | 8 = BITS {
        let words = &row[chunk * BITS / 2..][..BITS / 2];
        for i in 0..LANES {
            codes[i] = (words[i * BITS / 32] >> (i * BITS % 32)) & mask;
        }
        return codes;
    }
    // A chunk of 3 or 5 bits may start in the middle of a word.
    let start = chunk * LANES * BITS / 32;
    let word = |i: usize| row.get(start + i).copied().unwrap_or(0) as u128;
    let stream = (word(0) | word(1) << 32 | word(2) << 64 | word(3) << 96) >> (chunk * LANES * BITS % 32);
    for (i, code) in codes.iter_mut().enumerate() {
        *code = (stream >> (i * BITS)) as u32 & mask;
    }
    codes
}

/// Twice the value of the lowest 4 bits: 1 bit of sign, 2 of exponent, 1 of mantissa.
#[inline(always)]
pub(super) fn doubled_e2m1(code: u32) -> f32 {
    // Nibble i is twice the magnitude of code i: the table is one word to shift.
    let magnitude = (0xC864_3210u32 >> ((code & 7) * 4)) & 15;
    f32::from_bits((magnitude as f32).to_bits() | (code & 8) << 28)
}

/// The value of the lowest byte: 1 bit of sign, 4 of exponent (bias 7), 3 of mantissa; no
/// infinities, one NaN.
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
pub(crate) const fn e8m0(byte: u8) -> f32 {
    f32::from_bits(if byte == 0 { 1 << 22 } else { (byte as u32) << 23 })
}

//! Element types of kernels; all arithmetic is float32.

use half::{bf16, f16};

/// A floating-point type stored in memory; conversion from float32 rounds to nearest even.
pub trait Scalar: Copy + Send + Sync + Default + 'static {
    fn to_f32(self) -> f32;
    fn from_f32(value: f32) -> Self;
}

impl Scalar for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(value: f32) -> f32 {
        value
    }
}

impl Scalar for bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits((self.to_bits() as u32) << 16)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> bf16 {
        // Branchless, so it vectorises; the conversion of `half` does not.
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        let quiet = bits >> 16 | 0x40;
        bf16::from_bits(if value.is_nan() { quiet } else { rounded } as u16)
    }
}

impl Scalar for f16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        // A product changes the exponent's bias, exactly for subnormal numbers too.
        let bits = self.to_bits() as u32;
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits(0x7780_0000);
        let infinite = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
        f32::from_bits(magnitude.to_bits() | infinite | (bits & 0x8000) << 16)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> f16 {
        let sign = value.to_bits() >> 16 & 0x8000;
        let bits = value.to_bits() & 0x7fff_ffff;
        let odd = bits >> 13 & 1;
        let normal = bits.wrapping_sub(112 << 23).wrapping_add(0xfff + odd) >> 13;
        // Adding one half to a number below 2⁻¹⁴ leaves its rounded multiple of 2⁻²⁴ in the lowest
        // bits.
        let small = (f32::from_bits(bits) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
        let large = if bits > 0x7f80_0000 { 0x7e00 | bits >> 13 & 0x3ff } else { 0x7c00 };
        let finite = if bits < 113 << 23 { small } else { normal };
        // From 65520, half a step above the largest number, values round to infinity.
        let magnitude = if bits >= 0x477f_f000 { large } else { finite };
        f16::from_bits((sign | magnitude) as u16)
    }
}

/// The values as float32, each row of `row` padded with zeros to a multiple of `pad`.
pub(crate) fn widen<T: Scalar>(values: &[T], row: usize, pad: usize) -> Vec<f32> {
    let padded = row.next_multiple_of(pad);
    let mut wide = vec![0.0; values.len() / row.max(1) * padded];
    if row > 0 {
        for (to, from) in wide.chunks_exact_mut(padded).zip(values.chunks_exact(row)) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to_f32());
        }
    }
    wide
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalar_conversions_of_all_16_bit_numbers_match_the_half_crate() {
        for bits in 0..=u16::MAX {
            let (f, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            assert_eq!(
                Scalar::to_f32(f).to_bits() & !(1 << 22),
                f16::to_f32(f).to_bits() & !(1 << 22),
                "{bits:x}"
            );
            assert_eq!(
                Scalar::to_f32(b).to_bits() & !(1 << 22),
                bf16::to_f32(b).to_bits() & !(1 << 22),
                "{bits:x}"
            );
        }
        // All exponents, with mantissas at and around rounding boundaries.
        for high in 0..=u16::MAX {
            for low in
                [0u32, 1, 0x7fff, 0x8000, 0x8001, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x3001, 0xffff]
            {
                let value = f32::from_bits((high as u32) << 16 | low);
                let (f, b) = (<f16 as Scalar>::from_f32(value), <bf16 as Scalar>::from_f32(value));
                assert_eq!(f.to_bits(), f16::from_f32(value).to_bits(), "{value:e}");
                assert_eq!(b.to_bits(), bf16::from_f32(value).to_bits(), "{value:e}");
            }
        }
    }
}

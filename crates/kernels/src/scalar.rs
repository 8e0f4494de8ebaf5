//! Element types kernels read and write; all arithmetic is float32.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use half::{bf16, f16};

/// A floating-point type stored in memory; conversion from float32 rounds to nearest even.
pub trait Scalar: Copy + Send + Sync + Default + 'static {
    fn to_f32(self) -> f32;
    fn from_f32(value: f32) -> Self;

    /// The value in all 16 lanes.
    ///
    /// # Safety
    /// The processor must have AVX-512 F and BW.
    #[cfg(target_arch = "x86_64")]
    #[doc(hidden)]
    #[inline(always)]
    unsafe fn broadcast_avx512(self) -> __m512 {
        // SAFETY: the caller's.
        unsafe { _mm512_set1_ps(self.to_f32()) }
    }

    /// The value at `place` in all 16 lanes; it is the second of an aligned pair of values if `odd`, else the first.
    ///
    /// # Safety
    /// As [`broadcast_avx512`](Scalar::broadcast_avx512); the pair must be readable.
    #[cfg(target_arch = "x86_64")]
    #[doc(hidden)]
    #[inline(always)]
    unsafe fn broadcast_of_pair(place: *const Self, _odd: bool) -> __m512 {
        // SAFETY: the caller's.
        unsafe { (*place).broadcast_avx512() }
    }
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
        bf16::from_f32(value)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn broadcast_avx512(self) -> __m512 {
        // SAFETY: the caller's.
        unsafe {
            let twice = _mm512_set1_epi16(self.to_bits() as i16);
            _mm512_castsi512_ps(_mm512_and_si512(twice, _mm512_set1_epi32(0xffff_0000u32 as i32)))
        }
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn broadcast_of_pair(place: *const bf16, odd: bool) -> __m512 {
        // SAFETY: the caller's. Loading both costs no arithmetic, as loading one would.
        unsafe {
            let pair = place.wrapping_sub(odd as usize).cast::<i32>().read_unaligned();
            let pairs = _mm512_set1_epi32(pair);
            _mm512_castsi512_ps(match odd {
                true => _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000u32 as i32)),
                false => _mm512_slli_epi32(pairs, 16),
            })
        }
    }
}

impl Scalar for f16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        // Without a branch, so that it vectorises: the exponent is moved by multiplying, which subnormals survive.
        let bits = self.to_bits() as u32;
        let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((127 + 112) << 23);
        let infinite = if magnitude >= 65536.0 { 0x7f80_0000 } else { 0 };
        f32::from_bits(magnitude.to_bits() | infinite | (bits & 0x8000) << 16)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> f16 {
        f16::from_f32(value)
    }
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn broadcast_avx512(self) -> __m512 {
        // SAFETY: the caller's.
        unsafe { _mm512_cvtph_ps(_mm256_set1_epi16(self.to_bits() as i16)) }
    }
}

/// The values as float32, each run of `row` padded with zeros to a multiple of `pad`.
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

//! Quantisation of rows of `x` with AVX-512, storing integers as bytes.

use std::arch::x86_64::*;

use crate::{
    cache_line::CacheLine,
    linear::{
        integer::{
            inputs::{ActivationWidth, EXPONENT, LARGEST, ROUNDER, SMALLEST_POWER, UnfilledTile},
            quantize::Quantizer,
        },
        tiling::INPUT_BLOCK,
    },
};

/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
pub(crate) unsafe fn quantize(tile: UnfilledTile) {
    tile.fill(ByteQuantizer);
}

/// Stores integers as one byte, or as an upper and a lower one. Created only where the processor
/// has the features.
#[derive(Clone, Copy)]
struct ByteQuantizer;

impl Quantizer for ByteQuantizer {
    #[inline(always)]
    fn largest(self, values: &[f32]) -> (f32, bool) {
        // SAFETY: the processor has the features.
        unsafe { largest(values) }
    }

    #[inline(always)]
    fn round(self, values: &[f32], integers: &mut [i32], inverse: f32, width: ActivationWidth) -> i32 {
        // SAFETY: the processor has the features.
        unsafe { round(values, integers, inverse, width) }
    }

    #[inline(always)]
    fn lines(
        self,
        integers: &[i32; INPUT_BLOCK],
        order: &[u8; INPUT_BLOCK],
        width: ActivationWidth,
    ) -> [CacheLine; 2] {
        // SAFETY: the processor has the features; lines are 64 aligned bytes.
        unsafe {
            // The order permutes within 16 bytes, so a shuffle within 128-bit lanes is enough.
            let order = _mm512_loadu_si512(order.as_ptr().cast());
            let line = |bytes: __m512i| {
                let mut line = CacheLine::ZERO;
                _mm512_store_si512(line.0.as_mut_ptr().cast(), _mm512_shuffle_epi8(bytes, order));
                line
            };
            let mut whole = [_mm512_setzero_si512(); 4];
            for (whole, integers) in whole.iter_mut().zip(integers.as_chunks::<16>().0) {
                *whole = _mm512_loadu_si512(integers.as_ptr().cast());
            }
            match width {
                ActivationWidth::One => [line(lowest(whole)), CacheLine::ZERO],
                ActivationWidth::Two => split(whole).map(line),
            }
        }
    }
}

#[inline(always)]
unsafe fn largest(values: &[f32]) -> (f32, bool) {
    let chunks = values.as_chunks::<16>().0;
    // SAFETY: the caller has checked the features; vectors are loaded from arrays of 16.
    unsafe {
        // Compared as integers, infinities and NaNs are the largest.
        let mut max = _mm512_setzero_si512();
        for chunk in chunks {
            let bits = _mm512_castps_si512(_mm512_loadu_ps(chunk.as_ptr()));
            max = _mm512_max_epu32(max, _mm512_and_si512(bits, _mm512_set1_epi32(i32::MAX)));
        }
        let max = f32::from_bits(_mm512_reduce_max_epu32(max));
        (max, max <= LARGEST)
    }
}

#[inline(always)]
unsafe fn round(values: &[f32], integers: &mut [i32], inverse: f32, width: ActivationWidth) -> i32 {
    let chunks = values.as_chunks::<16>().0;
    // SAFETY: the caller has checked the features; vectors are loaded from and stored to arrays of
    // 16.
    unsafe {
        let inverse = _mm512_set1_ps(inverse);
        let mut total = _mm512_setzero_si512();
        for (chunk, integers) in chunks.iter().zip(integers.as_chunks_mut::<16>().0) {
            let mut steps = _mm512_mul_ps(_mm512_loadu_ps(chunk.as_ptr()), inverse);
            if width == ActivationWidth::Two {
                // As `ActivationWidth::round`.
                let [exponent, smallest, rounder] =
                    [EXPONENT, SMALLEST_POWER, ROUNDER].map(|bits| _mm512_set1_epi32(bits as i32));
                let power = _mm512_and_si512(_mm512_castps_si512(steps), exponent);
                let rounder =
                    _mm512_castsi512_ps(_mm512_add_epi32(_mm512_max_epi32(power, smallest), rounder));
                steps = _mm512_sub_ps(_mm512_add_ps(steps, rounder), rounder);
            }
            let rounded = _mm512_cvtps_epi32(steps);
            total = _mm512_add_epi32(total, rounded);
            _mm512_storeu_si512(integers.as_mut_ptr().cast(), rounded);
        }
        _mm512_reduce_add_epi32(total)
    }
}

/// Upper and lower bytes, both signed.
#[inline(always)]
unsafe fn split(integers: [__m512i; 4]) -> [__m512i; 2] {
    // SAFETY: the caller has checked the features.
    unsafe {
        let mut upper = narrow(integers);
        let mut lower = upper;
        for half in 0..2 {
            upper[half] = _mm512_srai_epi16(_mm512_add_epi16(upper[half], _mm512_set1_epi16(128)), 8);
            lower[half] = _mm512_and_si512(lower[half], _mm512_set1_epi16(0xff));
        }
        [in_order(_mm512_packs_epi16(upper[0], upper[1])), in_order(_mm512_packus_epi16(lower[0], lower[1]))]
    }
}

/// The lower bytes, signed.
#[inline(always)]
unsafe fn lowest(integers: [__m512i; 4]) -> __m512i {
    // SAFETY: the caller has checked the features.
    unsafe {
        let words = narrow(integers);
        in_order(_mm512_packs_epi16(words[0], words[1]))
    }
}

/// Narrows to 16 bits: each 128-bit lane holds four integers of the first vector and four of the
/// second, or of the third and the fourth.
#[inline(always)]
unsafe fn narrow([a, b, c, d]: [__m512i; 4]) -> [__m512i; 2] {
    // SAFETY: the caller has checked the features.
    unsafe { [_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d)] }
}

/// Each 128-bit lane holds four bytes of each of four vectors: restores their order.
#[inline(always)]
unsafe fn in_order(bytes: __m512i) -> __m512i {
    // SAFETY: the caller has checked the features.
    unsafe {
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        _mm512_permutexvar_epi32(order, bytes)
    }
}

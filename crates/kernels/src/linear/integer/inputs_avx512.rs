//! Rounding rows of `x` with AVX-512.

use std::arch::x86_64::*;

use super::{
    BLOCK,
    inputs::{Encode, Group, Rows, Width},
};
use crate::linear::lines::Line;

/// As `Rows::run`, with integers as bytes.
///
/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
pub(super) unsafe fn fill(tile: Rows) {
    tile.fill(Bytes);
}

/// Integers as one byte, or an upper and a lower one. Made where the processor has the features.
#[derive(Clone, Copy)]
struct Bytes;

impl Encode for Bytes {
    #[inline(always)]
    fn round(self, values: &[f32], integers: &mut [i32], excess: i32, width: Width) -> Group {
        // SAFETY: the processor has the features.
        unsafe { round(values, integers, excess, width) }
    }

    #[inline(always)]
    fn lines(self, integers: &[i32; BLOCK], order: &[u8; BLOCK], width: Width) -> [Line; 2] {
        // SAFETY: the processor has the features; lines are 64 aligned bytes.
        unsafe {
            // Within each 16, so that shuffling lanes of 16 bytes is enough.
            let order = _mm512_loadu_si512(order.as_ptr().cast());
            let line = |bytes: __m512i| {
                let mut line = Line::ZERO;
                _mm512_store_si512(line.0.as_mut_ptr().cast(), _mm512_shuffle_epi8(bytes, order));
                line
            };
            let mut whole = [_mm512_setzero_si512(); 4];
            for (whole, integers) in whole.iter_mut().zip(integers.as_chunks::<16>().0) {
                *whole = _mm512_loadu_si512(integers.as_ptr().cast());
            }
            match width {
                Width::One => [line(lowest(whole)), Line::ZERO],
                Width::Two => split(whole).map(line),
            }
        }
    }
}

/// Integers for the numbers of one group, a multiple of 16 of them.
#[inline(always)]
unsafe fn round(values: &[f32], integers: &mut [i32], excess: i32, width: Width) -> Group {
    let chunks = values.as_chunks::<16>().0;
    // SAFETY: the features are the caller's; vectors are loaded from and stored to arrays of 16.
    unsafe {
        // As integers, infinities and NaNs are the largest.
        let mut most = _mm512_setzero_si512();
        for chunk in chunks {
            let bits = _mm512_castps_si512(_mm512_loadu_ps(chunk.as_ptr()));
            most = _mm512_max_epu32(most, _mm512_and_si512(bits, _mm512_set1_epi32(i32::MAX)));
        }
        let most = f32::from_bits(_mm512_reduce_max_epu32(most));
        let finite = most.is_finite();
        let Some(inverse) = Group::inverse(most, finite, width) else {
            integers.fill(0);
            return Group::nothing(finite);
        };
        let inverse = _mm512_set1_ps(inverse);
        let mut total = _mm512_setzero_si512();
        for (chunk, integers) in chunks.iter().zip(integers.as_chunks_mut::<16>().0) {
            let rounded = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(chunk.as_ptr()), inverse));
            total = _mm512_add_epi32(total, rounded);
            _mm512_storeu_si512(integers.as_mut_ptr().cast(), rounded);
        }
        Group::new(most, _mm512_reduce_add_epi32(total), excess, width)
    }
}

/// Upper and lower bytes, both signed.
#[inline(always)]
unsafe fn split(integers: [__m512i; 4]) -> [__m512i; 2] {
    // SAFETY: the features are the caller's.
    unsafe {
        let mut upper = halve(integers);
        let mut lower = upper;
        for half in 0..2 {
            upper[half] = _mm512_srai_epi16(_mm512_add_epi16(upper[half], _mm512_set1_epi16(128)), 8);
            lower[half] = _mm512_and_si512(lower[half], _mm512_set1_epi16(0xff));
        }
        [in_order(_mm512_packs_epi16(upper[0], upper[1])), in_order(_mm512_packus_epi16(lower[0], lower[1]))]
    }
}

/// The only bytes, signed.
#[inline(always)]
unsafe fn lowest(integers: [__m512i; 4]) -> __m512i {
    // SAFETY: the features are the caller's.
    unsafe {
        let words = halve(integers);
        in_order(_mm512_packs_epi16(words[0], words[1]))
    }
}

/// Words of 16 bits: 16 bytes hold four integers of the first vector and four of the second, or of the third and the fourth.
#[inline(always)]
unsafe fn halve([a, b, c, d]: [__m512i; 4]) -> [__m512i; 2] {
    // SAFETY: the features are the caller's.
    unsafe { [_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d)] }
}

/// 16 bytes hold four of each of four vectors: makes them those of one after the other.
#[inline(always)]
unsafe fn in_order(bytes: __m512i) -> __m512i {
    // SAFETY: the features are the caller's.
    unsafe {
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        _mm512_permutexvar_epi32(order, bytes)
    }
}

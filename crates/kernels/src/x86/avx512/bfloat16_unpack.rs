//! Unpacking of weights to bfloat16 with AVX-512.

use std::arch::x86_64::*;

use crate::{
    cache_line::CacheLine,
    linear::{
        bfloat16::weight::{Bf16Block, Bf16Weight, DenseBf16, MXFP8_GROUP, Mxfp8},
        e8m0,
        tiling::INPUT_BLOCK,
    },
};

/// A weight that AVX-512 reads block by block.
pub(crate) trait UnpackAvx512: Bf16Weight {
    /// [`Bf16Weight::block`] with AVX-512.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL, DQ and BF16.
    unsafe fn block_avx512(self, row: usize, block: usize) -> [__m512i; 2];
}

/// Block `block` of the rows from row `first`, two of `lines` per row.
///
/// # Safety
/// See [`UnpackAvx512::block_avx512`].
#[inline(always)]
pub(crate) unsafe fn unpack_column(
    weight: impl UnpackAvx512,
    first: usize,
    block: usize,
    lines: &mut [CacheLine],
) {
    for (r, lines) in lines.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        // SAFETY: lines are 64 aligned bytes; the caller has checked the features.
        unsafe {
            let [low, high] = weight.block_avx512(first + r, block);
            _mm512_store_si512(lines[0].0.as_mut_ptr().cast(), low);
            _mm512_store_si512(lines[1].0.as_mut_ptr().cast(), high);
        }
    }
}

/// Prefetches share `share` of `shares` of `rows` stored rows from row `row`, which need not exist.
#[inline(always)]
pub(crate) fn prefetch_rows(weight: impl Bf16Weight, row: usize, rows: usize, share: usize, shares: usize) {
    for (start, bytes) in weight.stored(row) {
        let all = bytes * rows;
        let (mut line, end) = ((all * share / shares).div_ceil(64), all * (share + 1) / shares);
        while line * 64 < end {
            // SAFETY: a prefetch of invalid memory does nothing.
            unsafe { _mm_prefetch(start.wrapping_add(line * 64).cast(), _MM_HINT_T0) };
            line += 1;
        }
    }
}

impl UnpackAvx512 for DenseBf16<'_> {
    #[inline(always)]
    unsafe fn block_avx512(self, row: usize, block: usize) -> [__m512i; 2] {
        let row = &self.values[row * self.k..][..self.k][block * INPUT_BLOCK..];
        let masks = [first_bits(row.len()), first_bits(row.len().saturating_sub(32))];
        // SAFETY: the masks exclude memory past the row; the caller has checked the features.
        unsafe {
            let start = row.as_ptr().cast::<i16>();
            [
                _mm512_maskz_loadu_epi16(masks[0], start),
                _mm512_maskz_loadu_epi16(masks[1], start.wrapping_add(32)),
            ]
        }
    }
}

#[inline(always)]
fn first_bits(n: usize) -> u32 {
    if n >= 32 { u32::MAX } else { (1 << n) - 1 }
}

impl UnpackAvx512 for Mxfp8<'_> {
    #[inline(always)]
    unsafe fn block_avx512(self, row: usize, block: usize) -> [__m512i; 2] {
        // SAFETY: the caller has checked the features; a whole block lies within the row.
        unsafe {
            if (block + 1) * INPUT_BLOCK > self.k {
                return load(self.block(row, block));
            }
            let start = row * self.k + block * INPUT_BLOCK;
            let codes = self.weight.codes.as_ptr().add(start / 4).cast::<__m128i>();
            let first = start / MXFP8_GROUP;
            let mut lines = [_mm512_setzero_si512(); 2];
            for half in 0..2 {
                let scale = _mm512_set1_ps(e8m0(self.weight.scales[first + half]));
                let low = _mm512_mul_ps(widen_e4m3(codes.add(2 * half)), scale);
                let high = _mm512_mul_ps(widen_e4m3(codes.add(2 * half + 1)), scale);
                let rounded = _mm512_cvtne2ps_pbh(high, low);
                lines[half] = std::mem::transmute::<__m512bh, __m512i>(rounded);
            }
            lines
        }
    }
}

/// # Safety
/// See [`UnpackAvx512::block_avx512`].
#[inline(always)]
unsafe fn load(block: Bf16Block) -> [__m512i; 2] {
    // SAFETY: a block is two aligned lines of 64 bytes.
    unsafe { [_mm512_load_si512(block[0].0.as_ptr().cast()), _mm512_load_si512(block[1].0.as_ptr().cast())] }
}

/// The values of 16 e4m3 codes.
///
/// # Safety
/// See [`UnpackAvx512::block_avx512`]; the codes must exist.
#[inline(always)]
unsafe fn widen_e4m3(codes: *const __m128i) -> __m512 {
    // SAFETY: the caller ensures it.
    unsafe {
        let codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(codes));
        let magnitude = _mm512_and_si512(codes, _mm512_set1_epi32(0x7f));
        let sign = _mm512_slli_epi32(_mm512_andnot_si512(_mm512_set1_epi32(0x7f), codes), 24);
        let normal = _mm512_add_epi32(_mm512_slli_epi32(magnitude, 20), _mm512_set1_epi32((127 - 7) << 23));
        let small = _mm512_mul_ps(_mm512_cvtepi32_ps(magnitude), _mm512_set1_ps(1.0 / 512.0));
        let is_small = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(8));
        let value = _mm512_mask_mov_epi32(normal, is_small, _mm512_castps_si512(small));
        let is_nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f));
        let value = _mm512_mask_mov_epi32(value, is_nan, _mm512_set1_epi32(f32::NAN.to_bits() as i32));
        _mm512_castsi512_ps(_mm512_or_si512(value, sign))
    }
}

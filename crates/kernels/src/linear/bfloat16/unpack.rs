//! Weights of each format as blocks of bfloat16 numbers.

use half::bf16;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::{
    BLOCK, Block,
    inputs::{pairs, round},
};
use crate::{
    lanes::LANES,
    linear::{
        Microscaled,
        affine::unpack,
        float::{e4m3, e8m0},
        lines::Line,
    },
};

/// Bytes of a row.
pub(super) type Part = (*const u8, usize);

/// `length` values from the `at`th on; they need not be there.
#[inline(always)]
fn part<T>(values: &[T], at: usize, length: usize) -> Part {
    (values.as_ptr().wrapping_add(at).cast(), length * size_of::<T>())
}

/// A weight, read block by block.
pub(super) trait Unpack: Copy + Sync {
    /// Inputs `64 * block ..` of row `row`, zeros past its end.
    fn block(self, row: usize, block: usize) -> Block;

    /// The same with AVX-512's instructions.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, BW, VL, DQ and BF16.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn block_avx512(self, row: usize, block: usize) -> [__m512i; 2] {
        // SAFETY: the caller's.
        unsafe { load(self.block(row, block)) }
    }

    /// Where each part of row `row` lies, and its bytes: for fetching it before it is needed.
    fn stored(self, row: usize) -> [Part; 2];

    /// Rows that lie in memory as tiles read them: where row `row` begins, if rows are whole blocks; rows are
    /// `2 * inputs` bytes apart.
    #[inline(always)]
    fn in_place(self, _row: usize) -> Option<*const u8> {
        None
    }
}

/// Block `block` of the rows from `first` on, two of `lines` for each.
///
/// # Safety
/// As [`Unpack::block_avx512`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn column_avx512(weight: impl Unpack, first: usize, block: usize, lines: &mut [Line]) {
    for (r, lines) in lines.as_chunks_mut::<2>().0.iter_mut().enumerate() {
        // SAFETY: lines are 64 aligned bytes; the features are the caller's.
        unsafe {
            let [low, high] = weight.block_avx512(first + r, block);
            _mm512_store_si512(lines[0].0.as_mut_ptr().cast(), low);
            _mm512_store_si512(lines[1].0.as_mut_ptr().cast(), high);
        }
    }
}

/// Asks for share `share` of `shares` of all that is stored of `rows` rows from `row` on, which need not exist.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn fetch(weight: impl Unpack, row: usize, rows: usize, share: usize, shares: usize) {
    for (start, bytes) in weight.stored(row) {
        let all = bytes * rows;
        let (mut line, end) = ((all * share / shares).div_ceil(64), all * (share + 1) / shares);
        while line * 64 < end {
            // SAFETY: asking for memory that is not there does nothing.
            unsafe { _mm_prefetch(start.wrapping_add(line * 64).cast(), _MM_HINT_T0) };
            line += 1;
        }
    }
}

#[inline(always)]
fn lines(pairs: [u32; 32]) -> Block {
    let mut block = [Line::ZERO; 2];
    block[0].0.copy_from_slice(&pairs[..16]);
    block[1].0.copy_from_slice(&pairs[16..]);
    block
}

/// A matrix `[.., k]` of bfloat16 numbers.
#[derive(Clone, Copy)]
pub(super) struct DenseRows<'a> {
    pub values: &'a [bf16],
    pub k: usize,
}

impl Unpack for DenseRows<'_> {
    #[inline(always)]
    fn block(self, row: usize, block: usize) -> Block {
        let row = &self.values[row * self.k..][..self.k][block * BLOCK..];
        let mut values = [bf16::ZERO; BLOCK];
        match row.first_chunk::<BLOCK>() {
            Some(whole) => values = *whole,
            None => values[..row.len()].copy_from_slice(row),
        }
        let mut block = [Line::ZERO; 2];
        for (line, pairs) in block.iter_mut().zip(values.as_chunks::<{ BLOCK / 2 }>().0) {
            for (word, [low, high]) in line.0.iter_mut().zip(pairs.as_chunks::<2>().0) {
                *word = u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16;
            }
        }
        block
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn block_avx512(self, row: usize, block: usize) -> [__m512i; 2] {
        let row = &self.values[row * self.k..][..self.k][block * BLOCK..];
        let masks = [first_bits(row.len()), first_bits(row.len().saturating_sub(32))];
        // SAFETY: the masks leave out what lies behind the row.
        unsafe {
            let start = row.as_ptr().cast::<i16>();
            [
                _mm512_maskz_loadu_epi16(masks[0], start),
                _mm512_maskz_loadu_epi16(masks[1], start.wrapping_add(32)),
            ]
        }
    }

    #[inline(always)]
    fn stored(self, row: usize) -> [Part; 2] {
        [part(self.values, row * self.k, self.k), (std::ptr::null(), 0)]
    }

    #[inline(always)]
    fn in_place(self, row: usize) -> Option<*const u8> {
        self.k.is_multiple_of(BLOCK).then(|| self.values[row * self.k..].as_ptr().cast())
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn first_bits(n: usize) -> u32 {
    if n >= 32 { u32::MAX } else { (1 << n) - 1 }
}

/// # Safety
/// As [`Unpack::block_avx512`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn load(block: Block) -> [__m512i; 2] {
    // SAFETY: a block is two aligned lines of 64 bytes.
    unsafe { [_mm512_load_si512(block[0].0.as_ptr().cast()), _mm512_load_si512(block[1].0.as_ptr().cast())] }
}

/// A matrix `[.., k]` of 8-bit floats; their products with the scale fit into bfloat16 unrounded.
#[derive(Clone, Copy)]
pub(super) struct SmallFloatRows<'a> {
    pub weight: Microscaled<'a>,
    pub k: usize,
}

/// Values that share a scale.
const GROUP: usize = 32;

impl Unpack for SmallFloatRows<'_> {
    #[inline(always)]
    fn stored(self, row: usize) -> [Part; 2] {
        let (words, groups) = (self.k / 4, self.k / GROUP);
        let Microscaled { codes, scales, .. } = self.weight;
        [part(codes, row * words, words), part(scales, row * groups, groups)]
    }

    #[inline(always)]
    fn block(self, row: usize, block: usize) -> Block {
        let codes = &self.weight.codes[row * self.k / 4..][..self.k / 4];
        let scales = &self.weight.scales[row * self.k / GROUP..][..self.k / GROUP];
        let mut values = [0; BLOCK];
        for chunk in 0..BLOCK / LANES {
            let at = block * (BLOCK / LANES) + chunk;
            if at * LANES >= self.k {
                break;
            }
            let scale = e8m0(scales[at * LANES / GROUP]);
            let codes = unpack::<8>(codes, at);
            for i in 0..LANES {
                values[chunk * LANES + i] = round(e4m3(codes[i]) * scale);
            }
        }
        lines(pairs(&values))
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn block_avx512(self, row: usize, block: usize) -> [__m512i; 2] {
        // SAFETY: the processor has the features; a whole block lies within the row.
        unsafe {
            if (block + 1) * BLOCK > self.k {
                return load(self.block(row, block));
            }
            let codes = self.weight.codes.as_ptr().add((row * self.k + block * BLOCK) / 4).cast::<__m128i>();
            let first = (row * self.k + block * BLOCK) / GROUP;
            let mut lines = [_mm512_setzero_si512(); 2];
            for half in 0..2 {
                let scale = _mm512_set1_ps(e8m0(self.weight.scales[first + half]));
                let low = _mm512_mul_ps(wide(codes.add(2 * half)), scale);
                let high = _mm512_mul_ps(wide(codes.add(2 * half + 1)), scale);
                let rounded = _mm512_cvtne2ps_pbh(high, low);
                lines[half] = std::mem::transmute::<__m512bh, __m512i>(rounded);
            }
            lines
        }
    }
}

/// [`e4m3`] of each of 16 codes.
///
/// # Safety
/// As [`Unpack::block_avx512`], and the codes must exist.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn wide(codes: *const __m128i) -> __m512 {
    // SAFETY: the caller's.
    unsafe {
        let codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(codes));
        let magnitude = _mm512_and_si512(codes, _mm512_set1_epi32(0x7f));
        let sign = _mm512_slli_epi32(_mm512_andnot_si512(_mm512_set1_epi32(0x7f), codes), 24);
        let normal = _mm512_add_epi32(_mm512_slli_epi32(magnitude, 20), _mm512_set1_epi32((127 - 7) << 23));
        let small = _mm512_mul_ps(_mm512_cvtepi32_ps(magnitude), _mm512_set1_ps(1.0 / 512.0));
        let is_small = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(8));
        let value = _mm512_mask_mov_epi32(normal, is_small, _mm512_castps_si512(small));
        let is_none = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f));
        let value = _mm512_mask_mov_epi32(value, is_none, _mm512_set1_epi32(f32::NAN.to_bits() as i32));
        _mm512_castsi512_ps(_mm512_or_si512(value, sign))
    }
}

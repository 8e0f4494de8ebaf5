//! Unpacking of integer codes with AVX2: words of 8 rows are transposed into words of 8 columns.

use std::{arch::x86_64::*, ops::Range};

use super::transpose::transpose_8x8;
use crate::{
    linear::{
        integer::{
            panel::UnpackedPanel,
            unpack::{CodeMatrix, DOUBLED_E2M1, unpack_scales},
        },
        tiling::PANEL_ROWS,
    },
    x86::unpack::{CodeRows, CodeVector, UnpackRows, four, unpack_codes},
};

/// Unpacks `inputs` of `rows` rows from row `first`. The panel's other rows are unspecified.
///
/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn unpack(
    codes: &CodeMatrix,
    first: usize,
    rows: usize,
    inputs: Range<usize>,
    panel: &mut UnpackedPanel,
) {
    // SAFETY: the features are enabled.
    unsafe { unpack_codes::<8>(codes, first, rows, &inputs, panel) };
    unpack_scales(codes, first, rows, inputs, panel);
}

impl UnpackRows for CodeRows<'_, 8> {
    #[inline(always)]
    unsafe fn unpack_words<const FOURS: usize, const IS_FLOAT: bool>(
        &self,
        inputs: &Range<usize>,
        panel: &mut UnpackedPanel,
    ) {
        let row_words = self.codes.row_words;
        let (start, end) = (inputs.start / (4 * FOURS), inputs.end / (4 * FOURS));
        // SAFETY: the caller has checked the features; loads are masked to the row, stores stay
        // within the inputs' fours.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(DOUBLED_E2M1.as_ptr().cast()));
            for chunk in (start..end).step_by(8) {
                let count = (end - chunk).min(8);
                let places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
                let valid = _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), places);
                let place = self.codes.words.as_ptr().add(chunk).cast::<i32>();
                let mut words = [_mm256_setzero_si256(); 8];
                for r in 0..8 {
                    let row = place.add(self.row(r) * row_words);
                    _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(PANEL_ROWS * row_words).cast());
                    words[r] = _mm256_maskload_epi32(row, valid);
                }
                let columns = transpose_8x8(words);
                for i in 0..count {
                    for s in 0..FOURS {
                        let four = four::<_, FOURS>(columns[i], s);
                        let four = if IS_FLOAT { _mm256_shuffle_epi8(table, four) } else { four };
                        self.store(panel, (chunk - start + i) * FOURS + s, four);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn unpack_stream(&self, inputs: &Range<usize>, panel: &mut UnpackedPanel) {
        let (bits, row_bytes) = (self.codes.bits, 4 * self.codes.row_words);
        // Eight codes fill `bits` bytes. The two bytes that hold a code, and the factor that moves
        // it to their top.
        let (mut places, mut factors) = ([0u8; 32], [0u16; 16]);
        for i in 0..16 {
            let at = i % 8 * bits;
            places[2 * i] = (at / 8) as u8;
            places[2 * i + 1] = places[2 * i] + 1;
            factors[i] = 1 << (16 - bits - at % 8);
        }
        // SAFETY: the caller has checked the features; loads end with the weight, stores stay
        // within the inputs' fours.
        unsafe {
            let first = _mm256_loadu_si256(places.as_ptr().cast());
            let second = _mm256_add_epi8(first, _mm256_set1_epi8(bits as i8));
            let factors = _mm256_loadu_si256(factors.as_ptr().cast());
            let down = _mm_cvtsi32_si128(16 - bits as i32);
            let all: &[u8] =
                std::slice::from_raw_parts(self.codes.words.as_ptr().cast(), size_of_val(self.codes.words));
            for chunk in inputs.clone().step_by(32) {
                let mut words = [_mm256_setzero_si256(); 8];
                for r in 0..8 {
                    let from = self.row(r) * row_bytes + chunk * bits / 8;
                    // Sixteen codes fill `2 * bits` bytes.
                    let sixteens =
                        _mm256_set_m128i(load_sixteen(all, from + 2 * bits), load_sixteen(all, from));
                    let mut eights = [first, second];
                    for codes in &mut eights {
                        let pairs = _mm256_shuffle_epi8(sixteens, *codes);
                        *codes = _mm256_srl_epi16(_mm256_mullo_epi16(pairs, factors), down);
                    }
                    words[r] = _mm256_packus_epi16(eights[0], eights[1]);
                }
                let columns = transpose_8x8(words);
                for i in 0..(inputs.end - chunk).min(32) / 4 {
                    self.store(panel, (chunk - inputs.start) / 4 + i, columns[i]);
                }
            }
        }
    }
}

impl CodeRows<'_, 8> {
    /// Stores a four of these rows.
    #[inline(always)]
    unsafe fn store(&self, panel: &mut UnpackedPanel, place: usize, four: __m256i) {
        let line = &mut panel.codes[place][self.part / 2].0;
        // SAFETY: the caller has checked the features; a line is 64 aligned bytes.
        unsafe { _mm256_store_si256(line.as_mut_ptr().add(self.part % 2 * 8).cast(), four) };
    }
}

impl CodeVector for __m256i {
    #[inline(always)]
    unsafe fn shift_right<const BITS: u32>(self) -> Self {
        // SAFETY: the caller has checked the features.
        unsafe {
            match BITS {
                2 => _mm256_srli_epi16(self, 2),
                4 => _mm256_srli_epi16(self, 4),
                _ => _mm256_srli_epi16(self, 6),
            }
        }
    }

    #[inline(always)]
    unsafe fn and_bytes(self, mask: i8) -> Self {
        // SAFETY: the caller has checked the features.
        unsafe { _mm256_and_si256(self, _mm256_set1_epi8(mask)) }
    }
}

/// 16 bytes from byte `at`, zeros for those that do not exist.
#[inline(always)]
fn load_sixteen(bytes: &[u8], at: usize) -> __m128i {
    let rest = bytes.get(at..).unwrap_or_default();
    let mut sixteen = [0u8; 16];
    match rest.first_chunk::<16>() {
        Some(whole) => sixteen = *whole,
        None => sixteen[..rest.len()].copy_from_slice(rest),
    }
    // SAFETY: any 16 bytes are valid.
    unsafe { std::mem::transmute(sixteen) }
}

//! Unpacking with AVX2: words of 8 rows are turned into words of 8 columns.

use std::{arch::x86_64::*, ops::Range};

use super::{
    PANEL, Panel,
    codes::{Codes, DOUBLED, scales},
};
use crate::transpose::eight;

/// # Safety
/// The processor must have the features, and the weight these rows.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn unpack(
    codes: &Codes,
    first: usize,
    rows: usize,
    inputs: Range<usize>,
    panel: &mut Panel,
) {
    assert!((first + rows) * codes.row_words <= codes.words.len() && inputs.len() <= 4 * panel.codes.len());
    for part in 0..rows.div_ceil(8) {
        let lanes = Lanes { codes, first: first + 8 * part, rows: (rows - 8 * part).min(8), part };
        // SAFETY: the features are enabled.
        unsafe {
            match (codes.bits, codes.floats) {
                (4, true) => lanes.words::<2, true>(&inputs, panel),
                (4, false) => lanes.words::<2, false>(&inputs, panel),
                (2, _) => lanes.words::<4, false>(&inputs, panel),
                (8, _) => lanes.words::<1, false>(&inputs, panel),
                _ => lanes.stream(&inputs, panel),
            }
        }
    }
    scales(codes, first, rows, inputs, panel);
}

/// Up to 8 rows of a weight.
struct Lanes<'a> {
    codes: &'a Codes<'a>,
    first: usize,
    rows: usize,
    /// Which quarter of the panel.
    part: usize,
}

impl Lanes<'_> {
    /// Row `r` of 8; the last one again for those that do not exist.
    #[inline(always)]
    fn row(&self, r: usize) -> usize {
        self.first + r.min(self.rows - 1)
    }

    /// Codes of 8, 4 or 2 bits: a word holds `4 * FOURS` of them, and a shift and a mask make fours.
    #[inline(always)]
    unsafe fn words<const FOURS: usize, const FLOATS: bool>(&self, inputs: &Range<usize>, panel: &mut Panel) {
        let row_words = self.codes.row_words;
        let (start, end) = (inputs.start / (4 * FOURS), inputs.end / (4 * FOURS));
        // SAFETY: the caller's; loads are masked to the row, stores stay within the inputs' fours.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(DOUBLED.as_ptr().cast()));
            for chunk in (start..end).step_by(8) {
                let count = (end - chunk).min(8);
                let places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
                let valid = _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), places);
                let place = self.codes.words.as_ptr().add(chunk).cast::<i32>();
                let mut words = [_mm256_setzero_si256(); 8];
                for r in 0..8 {
                    let row = place.add(self.row(r) * row_words);
                    _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(PANEL * row_words).cast());
                    words[r] = _mm256_maskload_epi32(row, valid);
                }
                let turned = eight(words);
                for i in 0..count {
                    for s in 0..FOURS {
                        let four = four::<FOURS>(turned[i], s);
                        let four = if FLOATS { _mm256_shuffle_epi8(table, four) } else { four };
                        self.store(panel, (chunk - start + i) * FOURS + s, four);
                    }
                }
            }
        }
    }

    /// Codes of 3, 5 or 6 bits, 32 of a row at a time, become bytes.
    #[inline(always)]
    unsafe fn stream(&self, inputs: &Range<usize>, panel: &mut Panel) {
        let (bits, row_bytes) = (self.codes.bits, 4 * self.codes.row_words);
        // Eight codes fill `bits` bytes. The two bytes that a code is in, and what moves it to their top.
        let (mut places, mut factors) = ([0u8; 32], [0u16; 16]);
        for i in 0..16 {
            let at = i % 8 * bits;
            places[2 * i] = (at / 8) as u8;
            places[2 * i + 1] = places[2 * i] + 1;
            factors[i] = 1 << (16 - bits - at % 8);
        }
        // SAFETY: the caller's; loads end with the weight, stores stay within the inputs' fours.
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
                    let sixteens = _mm256_set_m128i(sixteen(all, from + 2 * bits), sixteen(all, from));
                    let mut eights = [first, second];
                    for codes in &mut eights {
                        let pairs = _mm256_shuffle_epi8(sixteens, *codes);
                        *codes = _mm256_srl_epi16(_mm256_mullo_epi16(pairs, factors), down);
                    }
                    words[r] = _mm256_packus_epi16(eights[0], eights[1]);
                }
                let turned = eight(words);
                for i in 0..(inputs.end - chunk).min(32) / 4 {
                    self.store(panel, (chunk - inputs.start) / 4 + i, turned[i]);
                }
            }
        }
    }

    /// A four of these rows.
    #[inline(always)]
    unsafe fn store(&self, panel: &mut Panel, place: usize, four: __m256i) {
        let line = &mut panel.codes[place][self.part / 2].0;
        // SAFETY: the features are the caller's; a line is 64 aligned bytes.
        unsafe { _mm256_store_si256(line.as_mut_ptr().add(self.part % 2 * 8).cast(), four) };
    }
}

/// 16 bytes from the `at`th on, zeros for those that do not exist.
#[inline(always)]
fn sixteen(bytes: &[u8], at: usize) -> __m128i {
    let rest = bytes.get(at..).unwrap_or_default();
    let mut sixteen = [0u8; 16];
    match rest.first_chunk::<16>() {
        Some(whole) => sixteen = *whole,
        None => sixteen[..rest.len()].copy_from_slice(rest),
    }
    // SAFETY: 16 bytes, whatever they are.
    unsafe { std::mem::transmute(sixteen) }
}

/// Four `s` of the `FOURS` in each of 8 words.
#[inline(always)]
unsafe fn four<const FOURS: usize>(words: __m256i, s: usize) -> __m256i {
    // SAFETY: the features are the caller's.
    unsafe {
        let shifted = match (FOURS, s) {
            (_, 0) => words,
            (2, _) => _mm256_srli_epi16(words, 4),
            (_, 1) => _mm256_srli_epi16(words, 2),
            (_, 2) => _mm256_srli_epi16(words, 4),
            _ => _mm256_srli_epi16(words, 6),
        };
        match FOURS {
            1 => shifted,
            2 => _mm256_and_si256(shifted, _mm256_set1_epi8(0x0f)),
            _ => _mm256_and_si256(shifted, _mm256_set1_epi8(0x03)),
        }
    }
}

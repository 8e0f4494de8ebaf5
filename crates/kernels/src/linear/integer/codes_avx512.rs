//! Unpacking with AVX-512: words of 16 rows are turned into words of 16 columns.

use std::{arch::x86_64::*, ops::Range};

use super::{
    PANEL, Panel,
    codes::{Codes, DOUBLED, Scales},
};
use crate::{linear::Floats, transpose::sixteen};

/// # Safety
/// The processor must have the features, and the weight these rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
pub(super) unsafe fn unpack(
    codes: &Codes,
    first: usize,
    rows: usize,
    inputs: Range<usize>,
    panel: &mut Panel,
) {
    assert!((first + rows) * codes.row_words <= codes.words.len() && inputs.len() <= 4 * panel.codes.len());
    for half in 0..rows.div_ceil(16) {
        let lanes = Lanes { codes, first: first + 16 * half, rows: (rows - 16 * half).min(16), half };
        // SAFETY: the features are enabled.
        unsafe {
            match (codes.bits, codes.floats) {
                (4, true) => lanes.words::<2, true>(&inputs, panel),
                (4, false) => lanes.words::<2, false>(&inputs, panel),
                (2, _) => lanes.words::<4, false>(&inputs, panel),
                (8, _) => lanes.words::<1, false>(&inputs, panel),
                _ => lanes.stream(&inputs, panel),
            }
            lanes.scales(&inputs, panel);
        }
    }
}

/// Up to 16 rows of a weight.
struct Lanes<'a> {
    codes: &'a Codes<'a>,
    first: usize,
    rows: usize,
    /// Which half of the panel.
    half: usize,
}

impl Lanes<'_> {
    /// Row `r` of 16; the last one again for those that do not exist.
    #[inline(always)]
    fn row(&self, r: usize) -> usize {
        self.first + r.min(self.rows - 1)
    }

    /// What to ask memory for while this half is unpacked: its share of the next panel's codes. Rows are read side by
    /// side, which the processor does not foresee; asked for one behind the other, it brings more by itself.
    #[inline(always)]
    fn ahead(&self, inputs: &Range<usize>) -> *const i8 {
        let Codes { words, row_words, bits, .. } = *self.codes;
        let next = (self.first + PANEL - 16 * self.half) * row_words;
        let share = (inputs.start * PANEL + inputs.len() * 16 * self.half) * bits / 32;
        words.as_ptr().wrapping_add(next + share).cast()
    }

    /// Codes of 8, 4 or 2 bits: a word holds `4 * FOURS` of them, and a shift and a mask make fours.
    #[inline(always)]
    unsafe fn words<const FOURS: usize, const FLOATS: bool>(&self, inputs: &Range<usize>, panel: &mut Panel) {
        let row_words = self.codes.row_words;
        let (start, end) = (inputs.start / (4 * FOURS), inputs.end / (4 * FOURS));
        // SAFETY: the caller's; loads are masked to the row, stores stay within the inputs' fours.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(DOUBLED.as_ptr().cast()));
            let mut ahead = self.ahead(inputs);
            for chunk in (start..end).step_by(16) {
                let count = (end - chunk).min(16);
                let valid = (0xffffu32 >> (16 - count)) as u16;
                let place = self.codes.words.as_ptr().add(chunk).cast::<i32>();
                let mut words = [_mm512_setzero_si512(); 16];
                for r in 0..16 {
                    ahead = ask(ahead);
                    words[r] = _mm512_maskz_loadu_epi32(valid, place.add(self.row(r) * row_words));
                }
                let turned = sixteen(words);
                // A chunk never reaches over the end of a stretch.
                let to = panel.codes[(chunk - start) * FOURS..][..16 * FOURS].as_mut_ptr();
                for i in 0..16 {
                    for s in 0..FOURS {
                        let four = four::<FOURS>(turned[i], s);
                        let four = if FLOATS { _mm512_shuffle_epi8(table, four) } else { four };
                        _mm512_store_si512((*to.add(i * FOURS + s))[self.half].0.as_mut_ptr().cast(), four);
                    }
                }
            }
        }
    }

    /// Codes of 3, 5 or 6 bits, 64 of a row at a time, become bytes.
    #[inline(always)]
    unsafe fn stream(&self, inputs: &Range<usize>, panel: &mut Panel) {
        let (bits, row_bytes) = (self.codes.bits, 4 * self.codes.row_words);
        // Sixteen codes begin with a 16-bit word, and fill less than eight.
        let mut words = [0u16; 32];
        // Eight of them fill `bits` bytes. The two bytes that a code is in, and where it begins in them.
        let (mut places, mut shifts) = ([0u8; 64], [0u16; 32]);
        for i in 0..32 {
            words[i] = (i / 8 * bits + i % 8) as u16;
            places[2 * i] = (i % 8 * bits / 8) as u8;
            places[2 * i + 1] = places[2 * i] + 1;
            shifts[i] = (i % 8 * bits % 8) as u16;
        }
        // SAFETY: the caller's; loads are masked to the row, stores stay within the inputs' fours.
        unsafe {
            let (gather, shifts) =
                (_mm512_loadu_si512(words.as_ptr().cast()), _mm512_loadu_si512(shifts.as_ptr().cast()));
            let first = _mm512_loadu_si512(places.as_ptr().cast());
            let second = _mm512_add_epi8(first, _mm512_set1_epi8(bits as i8));
            let mask = _mm512_set1_epi16((1 << bits) - 1);
            let mut ahead = self.ahead(inputs);
            for chunk in inputs.clone().step_by(64) {
                let count = (inputs.end - chunk).min(64);
                let valid = u64::MAX >> (64 - count * bits / 8);
                let base = self.codes.words.as_ptr().cast::<i8>().add(chunk * bits / 8);
                let mut words = [_mm512_setzero_si512(); 16];
                for r in 0..16 {
                    ahead = ask(ahead);
                    let bytes = _mm512_maskz_loadu_epi8(valid, base.add(self.row(r) * row_bytes));
                    let sixteens = _mm512_permutexvar_epi16(gather, bytes);
                    let mut eights = [first, second];
                    for codes in &mut eights {
                        let pairs = _mm512_shuffle_epi8(sixteens, *codes);
                        *codes = _mm512_and_si512(_mm512_srlv_epi16(pairs, shifts), mask);
                    }
                    words[r] = _mm512_packus_epi16(eights[0], eights[1]);
                }
                let turned = sixteen(words);
                let to = panel.codes[(chunk - inputs.start) / 4..][..16].as_mut_ptr();
                for i in 0..16 {
                    _mm512_store_si512((*to.add(i))[self.half].0.as_mut_ptr().cast(), turned[i]);
                }
            }
        }
    }

    /// Eight groups of all rows at a time: scales and biases become one line of 16 words.
    #[inline(always)]
    unsafe fn scales(&self, inputs: &Range<usize>, panel: &mut Panel) {
        let Lanes { codes, half, .. } = *self;
        let (start, end) = (inputs.start / codes.group, inputs.end / codes.group);
        // SAFETY: the caller's; loads are masked to the row, stores stay within the inputs' groups.
        unsafe {
            for chunk in (start..end).step_by(8) {
                let count = (end - chunk).min(8);
                let valid = (0xffu32 >> (8 - count)) as u8;
                let mut lines = [_mm512_setzero_si512(); 16];
                for r in 0..16 {
                    let at = self.row(r) * codes.row_groups + chunk;
                    let (scales, biases) = match codes.scales {
                        Scales::Affine(scales, biases) => {
                            fetch(scales, at + PANEL * codes.row_groups);
                            fetch(biases, at + PANEL * codes.row_groups);
                            (eight(scales, at, valid), eight(biases, at, valid))
                        }
                        Scales::Bytes(bytes, table) => {
                            let bytes = _mm_maskz_loadu_epi8(valid as u16, bytes.as_ptr().add(at).cast());
                            let places = _mm256_cvtepu8_epi32(bytes);
                            (_mm256_i32gather_ps::<4>(table.as_ptr(), places), _mm256_setzero_ps())
                        }
                    };
                    let both = _mm512_insertf32x8::<1>(_mm512_castps256_ps512(scales), biases);
                    lines[r] = _mm512_castps_si512(both);
                }
                let turned = sixteen(lines);
                for g in 0..count {
                    let at = chunk - start + g;
                    _mm512_store_si512(panel.scales[at][half].as_mut_ptr().cast(), turned[g]);
                    _mm512_store_si512(panel.biases[at][half].as_mut_ptr().cast(), turned[8 + g]);
                }
            }
        }
    }
}

/// Four `s` of the `FOURS` in each of 16 words.
///
/// # Safety
/// The processor must have AVX-512 F and BW.
#[inline(always)]
pub(super) unsafe fn four<const FOURS: usize>(words: __m512i, s: usize) -> __m512i {
    // SAFETY: the features are the caller's.
    unsafe {
        let shifted = match (FOURS, s) {
            (_, 0) => words,
            (2, _) => _mm512_srli_epi16(words, 4),
            (_, 1) => _mm512_srli_epi16(words, 2),
            (_, 2) => _mm512_srli_epi16(words, 4),
            _ => _mm512_srli_epi16(words, 6),
        };
        match FOURS {
            1 => shifted,
            2 => _mm512_and_si512(shifted, _mm512_set1_epi8(0x0f)),
            _ => _mm512_and_si512(shifted, _mm512_set1_epi8(0x03)),
        }
    }
}

/// Asks for a line of memory, which need not exist, and names the next.
#[inline(always)]
unsafe fn ask(line: *const i8) -> *const i8 {
    // SAFETY: asking for memory does not touch it.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line) };
    line.wrapping_add(64)
}

/// Those of eight numbers from `at` on that `valid` names, as float32.
#[inline(always)]
unsafe fn eight(values: Floats, at: usize, valid: u8) -> __m256 {
    // SAFETY: the caller's; the numbers named exist.
    unsafe {
        match values {
            Floats::F32(values) => _mm256_maskz_loadu_ps(valid, values.as_ptr().add(at)),
            Floats::F16(values) => {
                _mm256_cvtph_ps(_mm_maskz_loadu_epi16(valid, values.as_ptr().add(at).cast()))
            }
            Floats::Bf16(values) => {
                let halves = _mm_maskz_loadu_epi16(valid, values.as_ptr().add(at).cast());
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
            }
        }
    }
}

/// Asks for number `at`, which need not exist.
#[inline(always)]
unsafe fn fetch(values: Floats, at: usize) {
    let place = match values {
        Floats::F32(values) => values.as_ptr().wrapping_add(at).cast::<i8>(),
        Floats::F16(values) => values.as_ptr().wrapping_add(at).cast(),
        Floats::Bf16(values) => values.as_ptr().wrapping_add(at).cast(),
    };
    // SAFETY: asking for memory does not touch it.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(place) };
}

//! Unpacking of integer codes with AVX-512: words of 16 rows are transposed into words of 16
//! columns.

use std::{arch::x86_64::*, ops::Range};

use super::transpose::transpose_16x16;
use crate::{
    linear::{
        Floats,
        integer::{
            panel::UnpackedPanel,
            unpack::{CodeMatrix, DOUBLED_E2M1, GroupScales},
        },
        tiling::PANEL_ROWS,
    },
    x86::unpack::{CodeRows, CodeVector, UnpackRows, four, unpack_codes},
};

/// Unpacks `inputs` of `rows` rows from row `first`. The panel's other rows are unspecified.
///
/// # Safety
/// The processor must have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
pub(crate) unsafe fn unpack(
    codes: &CodeMatrix,
    first: usize,
    rows: usize,
    inputs: Range<usize>,
    panel: &mut UnpackedPanel,
) {
    // SAFETY: the features are enabled.
    unsafe {
        unpack_codes::<16>(codes, first, rows, &inputs, panel);
        for half in 0..rows.div_ceil(16) {
            let start = 16 * half;
            let rows =
                CodeRows::<16> { codes, first: first + start, rows: (rows - start).min(16), part: half };
            rows.unpack_scales(&inputs, panel);
        }
    }
}

impl UnpackRows for CodeRows<'_, 16> {
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
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(DOUBLED_E2M1.as_ptr().cast()));
            let mut next = self.next_panel(inputs);
            for chunk in (start..end).step_by(16) {
                let count = (end - chunk).min(16);
                let valid = (0xffffu32 >> (16 - count)) as u16;
                let place = self.codes.words.as_ptr().add(chunk).cast::<i32>();
                let mut words = [_mm512_setzero_si512(); 16];
                for r in 0..16 {
                    next = prefetch_line(next);
                    words[r] = _mm512_maskz_loadu_epi32(valid, place.add(self.row(r) * row_words));
                }
                let columns = transpose_16x16(words);
                // A chunk never crosses the end of a K block.
                let to = panel.codes[(chunk - start) * FOURS..][..16 * FOURS].as_mut_ptr();
                for i in 0..16 {
                    for s in 0..FOURS {
                        let four = four::<_, FOURS>(columns[i], s);
                        let four = if IS_FLOAT { _mm512_shuffle_epi8(table, four) } else { four };
                        _mm512_store_si512((*to.add(i * FOURS + s))[self.part].0.as_mut_ptr().cast(), four);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn unpack_stream(&self, inputs: &Range<usize>, panel: &mut UnpackedPanel) {
        let (bits, row_bytes) = (self.codes.bits, 4 * self.codes.row_words);
        // Sixteen codes start at a 16-bit word and fill fewer than eight.
        let mut words = [0u16; 32];
        // Eight codes fill `bits` bytes. The two bytes that hold a code, and its offset in them.
        let (mut places, mut shifts) = ([0u8; 64], [0u16; 32]);
        for i in 0..32 {
            words[i] = (i / 8 * bits + i % 8) as u16;
            places[2 * i] = (i % 8 * bits / 8) as u8;
            places[2 * i + 1] = places[2 * i] + 1;
            shifts[i] = (i % 8 * bits % 8) as u16;
        }
        // SAFETY: the caller has checked the features; loads are masked to the row, stores stay
        // within the inputs' fours.
        unsafe {
            let (gather, shifts) =
                (_mm512_loadu_si512(words.as_ptr().cast()), _mm512_loadu_si512(shifts.as_ptr().cast()));
            let first = _mm512_loadu_si512(places.as_ptr().cast());
            let second = _mm512_add_epi8(first, _mm512_set1_epi8(bits as i8));
            let mask = _mm512_set1_epi16((1 << bits) - 1);
            let mut next = self.next_panel(inputs);
            for chunk in inputs.clone().step_by(64) {
                let count = (inputs.end - chunk).min(64);
                let valid = u64::MAX >> (64 - count * bits / 8);
                let base = self.codes.words.as_ptr().cast::<i8>().add(chunk * bits / 8);
                let mut words = [_mm512_setzero_si512(); 16];
                for r in 0..16 {
                    next = prefetch_line(next);
                    let bytes = _mm512_maskz_loadu_epi8(valid, base.add(self.row(r) * row_bytes));
                    let sixteens = _mm512_permutexvar_epi16(gather, bytes);
                    let mut eights = [first, second];
                    for codes in &mut eights {
                        let pairs = _mm512_shuffle_epi8(sixteens, *codes);
                        *codes = _mm512_and_si512(_mm512_srlv_epi16(pairs, shifts), mask);
                    }
                    words[r] = _mm512_packus_epi16(eights[0], eights[1]);
                }
                let columns = transpose_16x16(words);
                let to = panel.codes[(chunk - inputs.start) / 4..][..16].as_mut_ptr();
                for i in 0..16 {
                    _mm512_store_si512((*to.add(i))[self.part].0.as_mut_ptr().cast(), columns[i]);
                }
            }
        }
    }
}

impl CodeRows<'_, 16> {
    /// The start of this half's share of the next panel's codes, to be prefetched while this half
    /// is unpacked. Rows are read side by side, which the hardware prefetcher does not detect;
    /// sequential prefetches trigger it.
    #[inline(always)]
    fn next_panel(&self, inputs: &Range<usize>) -> *const i8 {
        let CodeMatrix { words, row_words, bits, .. } = *self.codes;
        let next = (self.first + PANEL_ROWS - 16 * self.part) * row_words;
        let share = (inputs.start * PANEL_ROWS + inputs.len() * 16 * self.part) * bits / 32;
        words.as_ptr().wrapping_add(next + share).cast()
    }

    /// Transposes scales and biases of eight groups at a time, one line of 16 words per row.
    #[inline(always)]
    unsafe fn unpack_scales(&self, inputs: &Range<usize>, panel: &mut UnpackedPanel) {
        let CodeRows { codes, part: half, .. } = *self;
        let (start, end) = (inputs.start / codes.group, inputs.end / codes.group);
        // SAFETY: the caller has checked the features; loads are masked to the row, stores stay
        // within the inputs' groups.
        unsafe {
            for chunk in (start..end).step_by(8) {
                let count = (end - chunk).min(8);
                let valid = (0xffu32 >> (8 - count)) as u8;
                let mut lines = [_mm512_setzero_si512(); 16];
                for r in 0..16 {
                    let at = self.row(r) * codes.row_groups + chunk;
                    let (scales, biases) = match codes.scales {
                        GroupScales::Affine(scales, biases) => {
                            prefetch_value(scales, at + PANEL_ROWS * codes.row_groups);
                            prefetch_value(biases, at + PANEL_ROWS * codes.row_groups);
                            (load_eight(scales, at, valid), load_eight(biases, at, valid))
                        }
                        GroupScales::Bytes(bytes, table) => {
                            let bytes = _mm_maskz_loadu_epi8(valid as u16, bytes.as_ptr().add(at).cast());
                            let places = _mm256_cvtepu8_epi32(bytes);
                            (_mm256_i32gather_ps::<4>(table.as_ptr(), places), _mm256_setzero_ps())
                        }
                    };
                    let both = _mm512_insertf32x8::<1>(_mm512_castps256_ps512(scales), biases);
                    lines[r] = _mm512_castps_si512(both);
                }
                let columns = transpose_16x16(lines);
                for g in 0..count {
                    let at = chunk - start + g;
                    _mm512_store_si512(panel.scales[at][half].as_mut_ptr().cast(), columns[g]);
                    _mm512_store_si512(panel.biases[at][half].as_mut_ptr().cast(), columns[8 + g]);
                }
            }
        }
    }
}

impl CodeVector for __m512i {
    #[inline(always)]
    unsafe fn shift_right<const BITS: u32>(self) -> Self {
        // SAFETY: the caller has checked the features.
        unsafe {
            match BITS {
                2 => _mm512_srli_epi16(self, 2),
                4 => _mm512_srli_epi16(self, 4),
                _ => _mm512_srli_epi16(self, 6),
            }
        }
    }

    #[inline(always)]
    unsafe fn and_bytes(self, mask: i8) -> Self {
        // SAFETY: the caller has checked the features.
        unsafe { _mm512_and_si512(self, _mm512_set1_epi8(mask)) }
    }
}

/// Prefetches a line, which need not exist, and returns the next.
#[inline(always)]
unsafe fn prefetch_line(line: *const i8) -> *const i8 {
    // SAFETY: a prefetch accesses no memory.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line) };
    line.wrapping_add(64)
}

/// The numbers from `at` that the mask `valid` selects, as float32.
#[inline(always)]
unsafe fn load_eight(values: Floats, at: usize, valid: u8) -> __m256 {
    // SAFETY: the caller has checked the features; the selected numbers exist.
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

/// Prefetches number `at`, which need not exist.
#[inline(always)]
unsafe fn prefetch_value(values: Floats, at: usize) {
    let place = match values {
        Floats::F32(values) => values.as_ptr().wrapping_add(at).cast::<i8>(),
        Floats::F16(values) => values.as_ptr().wrapping_add(at).cast(),
        Floats::Bf16(values) => values.as_ptr().wrapping_add(at).cast(),
    };
    // SAFETY: a prefetch accesses no memory.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(place) };
}

//! Unpacking of integer codes by transposing words of several rows: the parts that AVX2 and AVX-512
//! share.

use std::ops::Range;

use crate::linear::integer::{panel::UnpackedPanel, unpack::CodeMatrix};

/// Up to `ROWS` rows of a matrix, to be unpacked into part `part` of a panel.
pub(super) struct CodeRows<'a, const ROWS: usize> {
    pub codes: &'a CodeMatrix<'a>,
    pub first: usize,
    pub rows: usize,
    pub part: usize,
}

impl<const ROWS: usize> CodeRows<'_, ROWS> {
    /// Row `r` of `ROWS`; the last one for those that do not exist.
    #[inline(always)]
    pub(super) fn row(&self, r: usize) -> usize {
        self.first + r.min(self.rows - 1)
    }
}

/// Unpacks rows of codes with the instructions of one instruction set.
pub(super) trait UnpackRows {
    /// Codes of 8, 4 or 2 bits: a word holds `4 * FOURS` of them, and a shift and a mask give
    /// fours.
    ///
    /// # Safety
    /// The processor must have the features, and the matrix the rows and inputs.
    unsafe fn unpack_words<const FOURS: usize, const IS_FLOAT: bool>(
        &self,
        inputs: &Range<usize>,
        panel: &mut UnpackedPanel,
    );

    /// Codes of 3, 5 or 6 bits.
    ///
    /// # Safety
    /// See [`unpack_words`](UnpackRows::unpack_words).
    unsafe fn unpack_stream(&self, inputs: &Range<usize>, panel: &mut UnpackedPanel);
}

/// Unpacks the codes of `inputs` of `rows` rows from row `first`.
///
/// # Safety
/// The processor must have the features.
#[inline(always)]
pub(super) unsafe fn unpack_codes<const ROWS: usize>(
    codes: &CodeMatrix,
    first: usize,
    rows: usize,
    inputs: &Range<usize>,
    panel: &mut UnpackedPanel,
) where
    for<'a> CodeRows<'a, ROWS>: UnpackRows,
{
    assert!((first + rows) * codes.row_words <= codes.words.len() && inputs.len() <= 4 * panel.codes.len());
    for part in 0..rows.div_ceil(ROWS) {
        let start = part * ROWS;
        let rows = CodeRows::<ROWS> { codes, first: first + start, rows: (rows - start).min(ROWS), part };
        // SAFETY: the caller has checked the features; the assert, that rows and inputs exist.
        unsafe {
            match (codes.bits, codes.is_float) {
                (4, true) => rows.unpack_words::<2, true>(inputs, panel),
                (4, false) => rows.unpack_words::<2, false>(inputs, panel),
                (2, _) => rows.unpack_words::<4, false>(inputs, panel),
                (8, _) => rows.unpack_words::<1, false>(inputs, panel),
                _ => rows.unpack_stream(inputs, panel),
            }
        }
    }
}

/// A vector of 32-bit words of codes.
pub(super) trait CodeVector: Copy {
    /// Shifts each 16-bit half right by 2, 4 or 6 bits.
    ///
    /// # Safety
    /// The processor must have the features.
    unsafe fn shift_right<const BITS: u32>(self) -> Self;

    /// # Safety
    /// The processor must have the features.
    unsafe fn and_bytes(self, mask: i8) -> Self;
}

/// Four `s` of the `FOURS` in each word.
///
/// # Safety
/// The processor must have the features.
#[inline(always)]
pub(super) unsafe fn four<V: CodeVector, const FOURS: usize>(words: V, s: usize) -> V {
    // SAFETY: the caller has checked the features.
    unsafe {
        let shifted = match (FOURS, s) {
            (_, 0) => words,
            (2, _) => words.shift_right::<4>(),
            (_, 1) => words.shift_right::<2>(),
            (_, 2) => words.shift_right::<4>(),
            _ => words.shift_right::<6>(),
        };
        match FOURS {
            1 => shifted,
            2 => shifted.and_bytes(0x0f),
            _ => shifted.and_bytes(0x03),
        }
    }
}

//! Affine weights rearranged for products: 16 rows side by side, with their scales between their codes, so that a product
//! reads one stream of memory and finds in each line what it multiplies at once.
//!
//! ```text
//! for each 16 rows:
//!     for each group:
//!         for each word of the group:      one line, that word of each row
//!         the scales of the 16 rows, then their biases: one line, or two if they are float32
//! ```

use std::ops::Range;

use half::{bf16, f16};

use super::{Affine, Floats, lines::Line};
use crate::{parallel::for_each, scalar::Scalar, shared::Parts};

/// Rows of a block.
pub(super) const ROWS: usize = 16;

/// What is known of a packed matrix but its contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedLayout {
    /// 32, 64 or 128.
    pub group_size: usize,
    /// 2, 4 or 8.
    pub bits: usize,
    /// Of scales and biases.
    pub floats: FloatType,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatType {
    F32,
    F16,
    Bf16,
}

/// A matrix of rows of `k` in such memory.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    packing: PackedLayout,
    k: usize,
    lines: &'a [Line],
}

impl FloatType {
    fn of(floats: Floats) -> FloatType {
        match floats {
            Floats::F32(_) => FloatType::F32,
            Floats::F16(_) => FloatType::F16,
            Floats::Bf16(_) => FloatType::Bf16,
        }
    }
}

impl PackedLayout {
    /// Of `rows` rows in this format, if they can be packed: whole blocks of codes that do not cross words.
    pub fn of(weight: &Affine, rows: usize) -> Option<PackedLayout> {
        let Affine { scales, group_size, bits, .. } = *weight;
        let packing = PackedLayout { group_size, bits, floats: FloatType::of(scales) };
        (rows > 0 && rows.is_multiple_of(ROWS) && [2, 4, 8].contains(&bits)).then_some(packing)
    }

    /// Words of memory that `rows` rows of `k` take, the room to begin on a line's boundary included.
    #[must_use]
    pub fn words(self, rows: usize, k: usize) -> usize {
        16 * (rows / ROWS * self.block(k) + 1)
    }

    /// Arranges `weight`, rows of `k`, in `memory` of [`words`](PackedLayout::words).
    ///
    /// # Panics
    /// If the memory is of another size, or the weight's parts are not those of such rows.
    pub fn pack(self, weight: Affine, k: usize, memory: &mut [u32]) {
        let rows = weight.codes.len() * 32 / (k * self.bits);
        weight.check(rows, k);
        let block = self.block(k);
        assert!(
            rows.is_multiple_of(ROWS) && memory.len() == self.words(rows, k),
            "memory for {rows} rows of {k}"
        );
        // SAFETY: lines are words, whatever these hold, on such a boundary.
        let (_, lines, _) = unsafe { memory.align_to_mut::<Line>() };
        let (count, lines) = (rows / ROWS * block, Parts::new(lines));
        // Blocks by the dozen: a few dozen kilobytes at a time.
        let step = (64 * 1024 / (64 * block)).max(1) * block;
        for_each(count.div_ceil(step), count * 64, |i| {
            let start = i * step;
            // SAFETY: parts do not overlap.
            let part = unsafe { lines.part(start, step.min(count - start)) };
            for (b, lines) in part.chunks_exact_mut(block).enumerate() {
                self.pack_block(&weight, (start / block + b) * ROWS, k, lines);
            }
        });
    }

    /// 16 rows from `first` on.
    fn pack_block(self, weight: &Affine, first: usize, k: usize, lines: &mut [Line]) {
        let (words, groups) = (k * self.bits / 32, k / self.group_size);
        for (g, lines) in lines.chunks_exact_mut(self.group_lines()).enumerate() {
            let (codes, scales) = lines.split_at_mut(self.group_words());
            for r in 0..ROWS {
                let row = &weight.codes[(first + r) * words + g * codes.len()..];
                for (line, word) in codes.iter_mut().zip(row) {
                    line.0[r] = *word;
                }
                let at = (first + r) * groups + g;
                for (half, values) in [weight.scales, weight.biases].into_iter().enumerate() {
                    match values {
                        Floats::F32(values) => scales[half].0[r] = values[at].to_bits(),
                        Floats::F16(values) => put(&mut scales[0], 16 * half + r, values[at].to_bits()),
                        Floats::Bf16(values) => put(&mut scales[0], 16 * half + r, values[at].to_bits()),
                    }
                }
            }
        }
    }

    /// Lines of 16 rows.
    pub(super) fn block(self, k: usize) -> usize {
        k / self.group_size * self.group_lines()
    }

    /// Words of a group of one row.
    pub(super) fn group_words(self) -> usize {
        self.group_size * self.bits / 32
    }

    /// Lines of a group of 16 rows.
    pub(super) fn group_lines(self) -> usize {
        self.group_words() + if self.floats == FloatType::F32 { 2 } else { 1 }
    }
}

impl<'a> Packed<'a> {
    /// What [`PackedLayout::pack`] wrote to this memory, which has not moved since.
    pub fn new(packing: PackedLayout, k: usize, memory: &'a [u32]) -> Packed<'a> {
        // SAFETY: lines are words, whatever these hold, on such a boundary.
        let (_, lines, _) = unsafe { memory.align_to::<Line>() };
        Packed { packing, k, lines: &lines[..(memory.len() / 16).saturating_sub(1)] }
    }

    pub(super) fn packing(&self) -> PackedLayout {
        self.packing
    }

    /// Panics unless there are `rows` rows of `k`.
    pub(super) fn check(&self, rows: usize, k: usize) {
        let fits = self.k == k && self.lines.len() * ROWS == rows * self.packing.block(k);
        assert!(fits, "the packed weight is not [{rows}, {k}]");
    }

    /// How many numbers it stands for.
    pub(super) fn values(&self) -> usize {
        self.lines.len() / self.packing.block(self.k) * ROWS * self.k
    }

    /// The groups of the 16 rows that `first` begins.
    pub(super) fn groups(&self, first: usize, groups: Range<usize>) -> &'a [Line] {
        let (block, lines) = (self.packing.block(self.k), self.packing.group_lines());
        &self.lines[first / ROWS * block..][groups.start * lines..groups.end * lines]
    }

    /// The scale and the bias of row `r` of 16, from a group's last lines.
    #[inline(always)]
    pub(super) fn scale_and_bias(&self, scales: &[Line], r: usize) -> [f32; 2] {
        let half = |at: usize| (scales[0].0[at / 2] >> (16 * (at % 2))) as u16;
        match self.packing.floats {
            FloatType::F32 => [0, 1].map(|i| f32::from_bits(scales[i].0[r])),
            FloatType::F16 => [r, ROWS + r].map(|at| Scalar::to_f32(f16::from_bits(half(at)))),
            FloatType::Bf16 => [r, ROWS + r].map(|at| Scalar::to_f32(bf16::from_bits(half(at)))),
        }
    }

    /// Rows `indices`, `[indices, k]`, to the bits of [`dequantize_rows`](crate::dequantize_rows).
    ///
    /// # Panics
    /// If a row does not exist.
    pub fn dequantize_rows<T: Scalar>(&self, indices: &[u32], out: &mut [T]) {
        let PackedLayout { group_size, bits, .. } = self.packing;
        assert_eq!(out.len(), indices.len() * self.k, "out is not [{}, {}]", indices.len(), self.k);
        for (&row, out) in indices.iter().zip(out.chunks_exact_mut(self.k)) {
            let r = row as usize % ROWS;
            let lines = self.groups(row as usize, 0..self.k / group_size);
            let groups = lines.chunks_exact(self.packing.group_lines());
            for (lines, out) in groups.zip(out.chunks_exact_mut(group_size)) {
                let (codes, scales) = lines.split_at(self.packing.group_words());
                let [scale, bias] = self.scale_and_bias(scales, r);
                for (line, out) in codes.iter().zip(out.chunks_exact_mut(32 / bits)) {
                    for (i, out) in out.iter_mut().enumerate() {
                        let code = line.0[r] >> (bits * i) & ((1 << bits) - 1);
                        *out = T::from_f32(code as f32 * scale + bias);
                    }
                }
            }
        }
    }
}

/// Puts half a word into its place of 32.
fn put(line: &mut Line, place: usize, bits: u16) {
    let (word, shift) = (&mut line.0[place / 2], 16 * (place % 2));
    *word = *word & !(0xffff << shift) | u32::from(bits) << shift;
}

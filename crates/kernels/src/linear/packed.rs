//! Affine weights repacked for integer products: 16 rows interleaved word by word, with scales
//! between the codes, so that a product reads memory as one stream, one cache line per
//! multiplication step.
//!
//! ```text
//! for each 16 rows:
//!     for each group:
//!         for each word of the group:      one line, that word of each row
//!         the scales of the 16 rows, then their biases: one line, or two in float32
//! ```

use std::ops::Range;

use half::{bf16, f16};

use super::{affine::Affine, weight::Floats};
use crate::{cache_line::CacheLine, disjoint::DisjointMut, parallel::for_each, scalar::Scalar};

/// Rows that are interleaved.
const BLOCK_ROWS: usize = 16;

/// The format of a packed matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedLayout {
    /// 32, 64 or 128.
    pub group_size: usize,
    /// 2, 4 or 8.
    pub bits: usize,
    /// The type of scales and biases.
    pub floats: FloatType,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatType {
    F32,
    F16,
    Bf16,
}

/// A packed matrix, rows of `k`.
#[derive(Clone, Copy, Debug)]
pub struct Packed<'a> {
    packing: PackedLayout,
    k: usize,
    lines: &'a [CacheLine],
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
    /// The layout for `rows` rows of `weight`; `None` unless they are whole blocks and codes do not
    /// cross words.
    pub fn for_weight(weight: &Affine, rows: usize) -> Option<PackedLayout> {
        let Affine { scales, group_size, bits, .. } = *weight;
        let packing = PackedLayout { group_size, bits, floats: FloatType::of(scales) };
        (rows > 0 && rows.is_multiple_of(BLOCK_ROWS) && [2, 4, 8].contains(&bits)).then_some(packing)
    }

    /// Words of memory for `rows` rows of `k`, including room to align the start to a cache line.
    #[must_use]
    pub fn words(self, rows: usize, k: usize) -> usize {
        16 * (rows / BLOCK_ROWS * self.block_lines(k) + 1)
    }

    /// Repacks `weight`, rows of `k`, into `memory` of [`words`](PackedLayout::words).
    ///
    /// # Panics
    /// If the memory has another size, or the weight's parts do not match.
    pub fn pack(self, weight: Affine, k: usize, memory: &mut [u32]) {
        let rows = weight.codes.len() * 32 / (k * self.bits);
        weight.check(rows, k);
        let block = self.block_lines(k);
        assert!(
            rows.is_multiple_of(BLOCK_ROWS) && memory.len() == self.words(rows, k),
            "memory for {rows} rows of {k}"
        );
        // SAFETY: a line is aligned words, and any words are valid.
        let (_, lines, _) = unsafe { memory.align_to_mut::<CacheLine>() };
        let (count, lines) = (rows / BLOCK_ROWS * block, DisjointMut::new(lines));
        // A task takes about 64 KB.
        let step = (64 * 1024 / (64 * block)).max(1) * block;
        for_each(count.div_ceil(step), count * 64, |i| {
            let start = i * step;
            // SAFETY: tasks take disjoint blocks.
            let part = unsafe { lines.part(start, step.min(count - start)) };
            for (b, lines) in part.chunks_exact_mut(block).enumerate() {
                self.pack_block(&weight, (start / block + b) * BLOCK_ROWS, k, lines);
            }
        });
    }

    /// 16 rows from row `first`.
    fn pack_block(self, weight: &Affine, first: usize, k: usize, lines: &mut [CacheLine]) {
        let (words, groups) = (k * self.bits / 32, k / self.group_size);
        for (g, lines) in lines.chunks_exact_mut(self.group_lines()).enumerate() {
            let (codes, scales) = lines.split_at_mut(self.group_words());
            for r in 0..BLOCK_ROWS {
                let row = &weight.codes[(first + r) * words + g * codes.len()..];
                for (line, word) in codes.iter_mut().zip(row) {
                    line.0[r] = *word;
                }
                let at = (first + r) * groups + g;
                for (half, values) in [weight.scales, weight.biases].into_iter().enumerate() {
                    match values {
                        Floats::F32(values) => scales[half].0[r] = values[at].to_bits(),
                        Floats::F16(values) => set_half(&mut scales[0], 16 * half + r, values[at].to_bits()),
                        Floats::Bf16(values) => set_half(&mut scales[0], 16 * half + r, values[at].to_bits()),
                    }
                }
            }
        }
    }

    /// Cache lines of 16 rows.
    fn block_lines(self, k: usize) -> usize {
        k / self.group_size * self.group_lines()
    }

    /// Words of codes in a group of one row.
    pub(crate) fn group_words(self) -> usize {
        self.group_size * self.bits / 32
    }

    /// Cache lines of a group of 16 rows.
    pub(crate) fn group_lines(self) -> usize {
        self.group_words() + if self.floats == FloatType::F32 { 2 } else { 1 }
    }
}

impl<'a> Packed<'a> {
    /// The matrix that [`PackedLayout::pack`] wrote to this memory, which must not have moved
    /// since.
    pub fn new(packing: PackedLayout, k: usize, memory: &'a [u32]) -> Packed<'a> {
        // SAFETY: a line is aligned words, and any words are valid.
        let (_, lines, _) = unsafe { memory.align_to::<CacheLine>() };
        Packed { packing, k, lines: &lines[..(memory.len() / 16).saturating_sub(1)] }
    }

    pub(crate) fn packing(&self) -> PackedLayout {
        self.packing
    }

    /// Panics unless there are `rows` rows of `k`.
    pub(super) fn check(&self, rows: usize, k: usize) {
        let fits = self.k == k && self.lines.len() * BLOCK_ROWS == rows * self.packing.block_lines(k);
        assert!(fits, "the packed weight is not [{rows}, {k}]");
    }

    /// The number of matrix elements.
    pub(super) fn num_elements(&self) -> usize {
        self.lines.len() / self.packing.block_lines(self.k) * BLOCK_ROWS * self.k
    }

    /// Groups of the 16 rows from row `first`.
    pub(crate) fn groups(&self, first: usize, groups: Range<usize>) -> &'a [CacheLine] {
        let (block, lines) = (self.packing.block_lines(self.k), self.packing.group_lines());
        &self.lines[first / BLOCK_ROWS * block..][groups.start * lines..groups.end * lines]
    }

    /// The scale and bias of row `r` of 16, from a group's last lines.
    #[inline(always)]
    pub(crate) fn scale_and_bias(&self, scales: &[CacheLine], r: usize) -> [f32; 2] {
        let half = |at: usize| (scales[0].0[at / 2] >> (16 * (at % 2))) as u16;
        match self.packing.floats {
            FloatType::F32 => [0, 1].map(|i| f32::from_bits(scales[i].0[r])),
            FloatType::F16 => [r, BLOCK_ROWS + r].map(|at| Scalar::to_f32(f16::from_bits(half(at)))),
            FloatType::Bf16 => [r, BLOCK_ROWS + r].map(|at| Scalar::to_f32(bf16::from_bits(half(at)))),
        }
    }

    /// Dequantises rows `indices` into `[indices, k]`, bit-identical to
    /// [`dequantize_rows`](crate::dequantize_rows).
    ///
    /// # Panics
    /// If a row does not exist.
    pub fn dequantize_rows<T: Scalar>(&self, indices: &[u32], out: &mut [T]) {
        let PackedLayout { group_size, bits, .. } = self.packing;
        assert_eq!(out.len(), indices.len() * self.k, "out is not [{}, {}]", indices.len(), self.k);
        for (&row, out) in indices.iter().zip(out.chunks_exact_mut(self.k)) {
            let r = row as usize % BLOCK_ROWS;
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

/// Sets 16-bit half `place` of a line's 32.
fn set_half(line: &mut CacheLine, place: usize, bits: u16) {
    let (word, shift) = (&mut line.0[place / 2], 16 * (place % 2));
    *word = *word & !(0xffff << shift) | u32::from(bits) << shift;
}

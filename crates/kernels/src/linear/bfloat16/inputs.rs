//! Rows of `x`, rounded and laid out as the kernels read them.

use std::ops::Range;

use super::{BLOCK, Line};
use crate::{
    linear::product::Product,
    parallel::{Shared, for_each},
    simd::{Vectors, Work, vectorize, vectors},
};

/// Where the 64 numbers of a block stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// One behind the other.
    Natural,
    /// Every fourth: 0, 4, 8 .. 60, then from 2 on, from 1 on and from 3 on, as they come out of 16-bit words of four
    /// codes each.
    Fourths,
}

/// The rows of `x` of a product, sorted by matrix, in each layout that one of the weights wants.
pub(super) struct Inputs {
    /// For every layout in the order of the enum: row after row, or for tiles up to 16 rows interleaved.
    lines: [Vec<Line>; 2],
    /// Lines of a row.
    width: usize,
}

/// Rows that tiles interleave.
pub(super) const TILE: usize = 16;

impl Inputs {
    pub fn new(x: &[f32], product: &Product, layouts: impl Iterator<Item = Layout>) -> Inputs {
        let width = product.k.div_ceil(BLOCK) * 2;
        let mut inputs = Inputs { lines: [vec![], vec![]], width };
        for layout in layouts {
            let lines = &mut inputs.lines[layout as usize];
            if lines.is_empty() {
                *lines = vec![Line::ZERO; product.sources.len() * width];
                fill(x, product, layout, lines, width);
            }
        }
        inputs
    }

    /// Those that are rows `range` of the product's `sources`.
    pub fn of(&self, layout: Layout, range: Range<usize>) -> &[Line] {
        &self.lines[layout as usize][range.start * self.width..range.end * self.width]
    }
}

fn fill(x: &[f32], product: &Product, layout: Layout, lines: &mut [Line], width: usize) {
    let group = if vectors() == Vectors::Amx { TILE } else { 1 };
    let mut pieces = vec![];
    for (_, rows) in product.matrices() {
        pieces.extend(rows.clone().step_by(group).map(|start| start..rows.end.min(start + group)));
    }
    let (work, lines) = (2 * lines.len() * 16, Shared(lines.as_mut_ptr()));
    for_each(pieces.len(), work, |i| {
        let Range { start, end } = pieces[i].clone();
        // SAFETY: pieces are ranges of rows that do not overlap, and each row has `width` lines.
        let lines =
            unsafe { std::slice::from_raw_parts_mut(lines.get().add(start * width), (end - start) * width) };
        vectorize(Rows { x, k: product.k, sources: &product.sources[start..end], layout, lines });
    });
}

/// Some rows to be rounded, and interleaved if they are several: pair `p` of all of them before pair `p + 1`.
struct Rows<'a> {
    x: &'a [f32],
    k: usize,
    sources: &'a [u32],
    layout: Layout,
    lines: &'a mut [Line],
}

impl Work for Rows<'_> {
    #[inline(always)]
    fn run(self) {
        let Rows { x, k, sources, layout, lines } = self;
        let rows = sources.len();
        let pairs: &mut [[u32; 16]] = flat(lines);
        let pairs = pairs.as_flattened_mut();
        for (r, &source) in sources.iter().enumerate() {
            let x = &x[source as usize * k..][..k];
            for block in 0..k.div_ceil(BLOCK) {
                let mut values = [0.0; BLOCK];
                let rest = &x[block * BLOCK..];
                match rest.first_chunk::<BLOCK>() {
                    Some(whole) => values = *whole,
                    None => values[..rest.len()].copy_from_slice(rest),
                }
                let mut rounded = [0; BLOCK];
                for i in 0..BLOCK {
                    rounded[i] = round(values[i]);
                }
                let block_pairs = arrange(&rounded, layout);
                let at = block * 32 * rows + r;
                if rows == 1 {
                    pairs[at..at + 32].copy_from_slice(&block_pairs);
                } else {
                    for i in 0..32 {
                        pairs[at + i * rows] = block_pairs[i];
                    }
                }
            }
        }
    }
}

fn flat(lines: &mut [Line]) -> &mut [[u32; 16]] {
    // SAFETY: a line is sixteen u32 without padding.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len()) }
}

/// The bits of the nearest bfloat16, ties to even.
#[inline(always)]
pub(super) fn round(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if value.is_nan() { bits >> 16 | 0x40 } else { rounded }
}

/// 64 numbers in their order to the pairs of a block.
#[inline(always)]
pub(super) fn arrange(values: &[u32; BLOCK], layout: Layout) -> [u32; 32] {
    let mut pairs = [0; 32];
    match layout {
        Layout::Natural => {
            for i in 0..32 {
                pairs[i] = values[2 * i] | values[2 * i + 1] << 16;
            }
        }
        Layout::Fourths => {
            for (quarter, first) in [0, 2, 1, 3].into_iter().enumerate() {
                for i in 0..8 {
                    pairs[8 * quarter + i] = values[8 * i + first] | values[8 * i + 4 + first] << 16;
                }
            }
        }
    }
    pairs
}

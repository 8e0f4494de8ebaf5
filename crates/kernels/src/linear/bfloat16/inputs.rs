//! Rows of `x`, rounded to bfloat16 and laid out for the kernels.

use std::ops::Range;

use super::{
    kernels::Bf16Kernel,
    weight::{pairs, round_bits},
};
use crate::{
    cache_line::CacheLine,
    disjoint::DisjointMut,
    linear::{Scratch, row_groups::RowGroups, tiling::INPUT_BLOCK},
    parallel::for_each,
    simd::WithSimd,
};

/// The rows of `x` of a product, sorted by matrix.
pub(crate) struct Bf16Inputs {
    /// Row after row, or several rows interleaved, as the kernel reads them.
    lines: Scratch,
    /// Lines of a row.
    width: usize,
}

impl Bf16Inputs {
    pub(super) fn new(x: &[f32], groups: &RowGroups, kernel: &Bf16Kernel) -> Bf16Inputs {
        let Bf16Kernel { tile_rows, round, .. } = *kernel;
        let width = groups.k.div_ceil(INPUT_BLOCK) * 2 * kernel.lines;
        let mut lines = Scratch::new(groups.sources.len() * width);
        let mut tiles = vec![];
        for (_, rows) in groups.matrices() {
            tiles.extend(rows.clone().step_by(tile_rows).map(|start| start..rows.end.min(start + tile_rows)));
        }
        let (work, parts) = (2 * lines.len() * 16, DisjointMut::new(&mut lines[..]));
        for_each(tiles.len(), work, |i| {
            let Range { start, end } = tiles[i].clone();
            // SAFETY: tiles are disjoint ranges of rows.
            let lines = unsafe { parts.part(start * width, (end - start) * width) };
            round(UnroundedRows { x, k: groups.k, sources: &groups.sources[start..end], lines });
        });
        Bf16Inputs { lines, width }
    }

    /// Rows `range` of `sources`.
    pub(super) fn rows(&self, range: Range<usize>) -> &[CacheLine] {
        &self.lines[range.start * self.width..range.end * self.width]
    }
}

/// Rows to be rounded. For AMX several are interleaved: pair `p` of all rows precedes pair `p + 1`.
pub(crate) struct UnroundedRows<'a> {
    pub x: &'a [f32],
    pub k: usize,
    pub sources: &'a [u32],
    pub lines: &'a mut [CacheLine],
}

impl WithSimd for UnroundedRows<'_> {
    #[inline(always)]
    fn run(self) {
        let UnroundedRows { x, k, sources, lines } = self;
        let &[source] = sources else { unreachable!("this kernel takes rows one by one") };
        let row = &x[source as usize * k..][..k];
        for (block, lines) in lines.chunks_exact_mut(2).enumerate() {
            let values = block_of(row, block);
            let mut rounded = [0; INPUT_BLOCK];
            for i in 0..INPUT_BLOCK {
                rounded[i] = round_bits(values[i]);
            }
            let pairs = pairs(&rounded);
            lines[0].0.copy_from_slice(&pairs[..16]);
            lines[1].0.copy_from_slice(&pairs[16..]);
        }
    }
}

/// Block `block` of a row, padded with zeros.
#[inline(always)]
pub(crate) fn block_of(row: &[f32], block: usize) -> [f32; INPUT_BLOCK] {
    let rest = &row[block * INPUT_BLOCK..];
    let mut values = [0.0; INPUT_BLOCK];
    match rest.first_chunk::<INPUT_BLOCK>() {
        Some(whole) => values = *whole,
        None => values[..rest.len()].copy_from_slice(rest),
    }
    values
}

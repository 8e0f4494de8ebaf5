//! A part of a bfloat16 product that one thread computes.

use std::ops::Range;

use crate::{
    cache_line::CacheLine,
    linear::{Weight, output::TaskOutput, tiling::PANEL_ROWS},
};

/// Some rows of a matrix times all its rows of `x`.
pub(crate) struct Bf16Task<'a> {
    pub weight: Weight<'a>,
    /// The first of the weight's rows, and their number.
    pub first: usize,
    pub rows: usize,
    /// The matrix's rows of `x`, as [`Bf16Inputs`](super::inputs::Bf16Inputs) stores them.
    pub x: &'a [CacheLine],
    pub output: TaskOutput<'a>,
    /// Blocks in a row.
    pub blocks: usize,
    pub k: usize,
}

impl Bf16Task<'_> {
    /// The task's rows, a panel at a time.
    #[inline]
    pub(crate) fn panels(&self) -> impl Iterator<Item = Range<usize>> {
        (0..self.rows).step_by(PANEL_ROWS).map(|start| start..self.rows.min(start + PANEL_ROWS))
    }

    /// The number of rows of `x`.
    #[inline]
    pub(crate) fn num_inputs(&self) -> usize {
        self.output.targets.len()
    }
}

//! Rows of `x` as integers with a step for each 64 inputs, laid out for the kernels.

use std::{cell::Cell, mem, ops::Range};

use crate::{
    cache_line::CacheLine,
    disjoint::DisjointMut,
    linear::{
        Scratch,
        row_groups::RowGroups,
        tiling::{INPUT_BLOCK, TILE_ROWS},
        weight::Precision,
    },
    parallel::for_each,
};

/// The layout of `x` that a weight format requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InputLayout {
    /// Inputs that share a scale of the weight.
    pub group: usize,
    /// The distance between inputs that are multiplied together, which come out of one word of
    /// codes: 1, 2 or 4. Each `4 * stride` inputs give `stride` fours: inputs 0, stride, 2 ·
    /// stride, 3 · stride, then 1 and so on.
    pub stride: usize,
    /// The offset of codes from the values they encode, which makes codes non-negative.
    pub excess: i32,
}

impl InputLayout {
    /// The input at each place of a block.
    pub(crate) fn order(self) -> &'static [u8; INPUT_BLOCK] {
        const ORDERS: [[u8; INPUT_BLOCK]; 3] = [order(1), order(2), order(4)];
        &ORDERS[self.stride.ilog2() as usize]
    }
}

const fn order(stride: usize) -> [u8; INPUT_BLOCK] {
    let mut order = [0; INPUT_BLOCK];
    let mut place = 0;
    while place < INPUT_BLOCK {
        let (run, s, i) = (place / (4 * stride), place % (4 * stride) / 4, place % 4);
        order[place] = (run * 4 * stride + s + i * stride) as u8;
        place += 1;
    }
    order
}

/// Bytes of a quantised activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ActivationWidth {
    One,
    Two,
}

impl ActivationWidth {
    pub(crate) fn of(precision: Precision) -> ActivationWidth {
        match precision {
            Precision::Int8 => ActivationWidth::One,
            Precision::Rounded | Precision::Float32 => ActivationWidth::Two,
        }
    }

    /// The step of a group whose largest magnitude is `max`, and its reciprocal. With two bytes a
    /// power of two, a number of 14 bits of which is the largest magnitude.
    #[inline(always)]
    fn step(self, max: f32) -> (f32, f32) {
        match self {
            ActivationWidth::One => (max / 127.0, 127.0 / max),
            ActivationWidth::Two => {
                let exponent = max.to_bits() & EXPONENT;
                (f32::from_bits(exponent - (13 << 23)), f32::from_bits(((254 + 13) << 23) - exponent))
            }
        }
    }

    /// Rounds a number of steps to an integer, with two bytes to one of 11 significant bits. Ties
    /// go to even.
    #[inline(always)]
    pub(crate) fn round(self, steps: f32) -> f32 {
        match self {
            ActivationWidth::One => steps.round_ties_even(),
            ActivationWidth::Two => {
                let power = (steps.to_bits() & EXPONENT).max(SMALLEST_POWER);
                let rounder = f32::from_bits(power + ROUNDER);
                steps + rounder - rounder
            }
        }
    }
}

/// The bits of a number's exponent.
pub(crate) const EXPONENT: u32 = 0x7f80_0000;
/// The bits of the power of two from which on 11 bits are coarser than a step, halved: 1024.
pub(crate) const SMALLEST_POWER: u32 = (127 + 10) << 23;
/// Makes of the bits of a power of two those of a number whose last bit is worth the last of 11
/// bits, 1.5 times 2^13 as much: it is added to a number of steps to round it, and taken off again.
pub(crate) const ROUNDER: u32 = (13 << 23) | 0x0040_0000;

/// Dequantisation parameters of a group of a row of `x`. Groups of 16 and 32 have the step of the
/// 64 inputs that they belong to.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct InputGroup {
    pub step: f32,
    /// The sum of the group's integers, times the step.
    pub sum: f32,
    /// The part of a dot product that is due to the codes' excess, negated.
    pub correction: i32,
}

impl InputGroup {
    /// The reciprocal of the step of a group whose largest magnitude is `max`; `None` if all its
    /// integers are 0.
    #[inline(always)]
    pub(crate) fn inverse_step(max: f32, finite: bool, width: ActivationWidth) -> Option<f32> {
        (finite && max >= SMALLEST).then(|| width.step(max).1)
    }

    /// The parameters of integers with the sum `total`.
    #[inline(always)]
    pub(crate) fn new(max: f32, total: i32, excess: i32, width: ActivationWidth) -> InputGroup {
        let (step, _) = width.step(max);
        InputGroup { step, sum: total as f32 * step, correction: -excess * total }
    }

    /// The parameters of zeros; NaN for a group with a NaN or a magnitude above [`LARGEST`].
    #[inline(always)]
    pub(crate) fn zeros(finite: bool) -> InputGroup {
        match finite {
            true => InputGroup::default(),
            false => InputGroup { step: f32::NAN, sum: f32::NAN, correction: 0 },
        }
    }
}

/// A group whose magnitudes are all below this counts as zeros.
const SMALLEST: f32 = 1e-30;
/// A group with a magnitude above this makes its row's products NaN.
pub(crate) const LARGEST: f32 = 1e30;

/// The rows of `x` of a product, sorted by matrix, in tiles of up to 16 rows of one matrix.
///
/// Where the processor multiplies bytes, an integer is stored as one or two signed bytes: a line of
/// 64 upper bytes, then one of 64 lower bytes. Elsewhere it is stored as 16 bits: a line of the
/// first and third integer of each four, then one of the second and fourth.
pub(super) struct QuantizedInputs {
    pub layout: InputLayout,
    /// For each tile: block by block, the first lines of all rows, then the second lines.
    lines: Scratch,
    /// Lines of a block of a row.
    planes: usize,
    /// For each tile: group by group, all rows.
    groups: Vec<InputGroup>,
    /// Blocks and groups of a row.
    blocks: usize,
    row_groups: usize,
}

thread_local! {
    /// Reused, since mapping fresh memory can cost more than quantising rows.
    static GROUPS: Cell<Vec<InputGroup>> = const { Cell::new(vec![]) };
}

impl Drop for QuantizedInputs {
    fn drop(&mut self) {
        GROUPS.set(mem::take(&mut self.groups));
    }
}

/// Up to 16 rows of `x`.
#[derive(Clone, Copy)]
pub(crate) struct InputTile<'a> {
    pub rows: usize,
    /// `[blocks][planes][rows]`
    pub lines: &'a [CacheLine],
    /// 1 for integers of one byte where the processor multiplies bytes, otherwise 2.
    pub planes: usize,
    /// `[groups][rows]`
    pub groups: &'a [InputGroup],
    /// Whether codes have an excess, which groups correct.
    pub corrected: bool,
}

/// A tile to be filled with quantised rows of `x`.
pub(crate) struct UnfilledTile<'a> {
    pub x: &'a [f32],
    pub k: usize,
    pub sources: &'a [u32],
    pub layout: InputLayout,
    pub width: ActivationWidth,
    pub planes: usize,
    pub lines: &'a mut [CacheLine],
    pub groups: &'a mut [InputGroup],
}

impl QuantizedInputs {
    /// `quantize` fills a tile; with `as_bytes`, it stores integers as bytes.
    pub(super) fn new(
        x: &[f32],
        rows: &RowGroups,
        layout: InputLayout,
        width: ActivationWidth,
        as_bytes: bool,
        quantize: unsafe fn(UnfilledTile),
    ) -> QuantizedInputs {
        let (blocks, row_groups) = (rows.k.div_ceil(INPUT_BLOCK), rows.k / layout.group);
        let planes = if as_bytes && width == ActivationWidth::One { 1 } else { 2 };
        let count = rows.sources.len();
        let mut lines = Scratch::new(count * blocks * planes);
        let mut groups = GROUPS.take();
        groups.clear();
        groups.resize(count * row_groups, InputGroup::default());
        let mut tiles: Vec<Range<usize>> = vec![];
        for (_, range) in rows.matrices() {
            tiles.extend(
                range.clone().step_by(TILE_ROWS).map(|start| start..range.end.min(start + TILE_ROWS)),
            );
        }
        let work = 4 * count * rows.k;
        let (to_lines, to_groups) = (DisjointMut::new(&mut lines), DisjointMut::new(&mut groups));
        for_each(tiles.len(), work, |i| {
            let Range { start, end } = tiles[i].clone();
            // SAFETY: tiles are disjoint ranges of rows.
            let (lines, groups) = unsafe {
                (
                    to_lines.part(start * blocks * planes, (end - start) * blocks * planes),
                    to_groups.part(start * row_groups, (end - start) * row_groups),
                )
            };
            let sources = &rows.sources[start..end];
            let tile = UnfilledTile { x, k: rows.k, sources, layout, width, planes, lines, groups };
            // SAFETY: the processor has the features of the selected kernels.
            unsafe { quantize(tile) };
        });
        QuantizedInputs { layout, lines, planes, groups, blocks, row_groups }
    }

    /// The tiles of `count` rows from entry `start` of `sources`, the first row of a tile.
    pub(super) fn tiles(&self, start: usize, count: usize) -> InputTiles<'_> {
        InputTiles { inputs: self, rows: start..start + count }
    }
}

/// Iterates over tiles of 16 rows; the last may have fewer.
#[derive(Clone)]
pub(crate) struct InputTiles<'a> {
    inputs: &'a QuantizedInputs,
    rows: Range<usize>,
}

impl<'a> Iterator for InputTiles<'a> {
    type Item = InputTile<'a>;

    #[inline]
    fn next(&mut self) -> Option<InputTile<'a>> {
        if self.rows.is_empty() {
            return None;
        }
        let (inputs, first, rows) = (self.inputs, self.rows.start, self.rows.len().min(TILE_ROWS));
        self.rows.start += rows;
        let (lines, groups) = (inputs.blocks * inputs.planes, inputs.row_groups);
        Some(InputTile {
            rows,
            planes: inputs.planes,
            lines: &inputs.lines[first * lines..][..rows * lines],
            groups: &inputs.groups[first * groups..][..rows * groups],
            corrected: inputs.layout.excess != 0,
        })
    }
}

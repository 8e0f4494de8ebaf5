//! Rows of `x` as integers with a step per group, laid out as the kernels read them.

use std::ops::Range;

use super::BLOCK;
use crate::{
    linear::{lines::Line, product::Product, scratch::Scratch},
    parallel::for_each,
    shared::Parts,
    simd::{SimdLevel, Work, simd_level, vectorize},
};

/// What a weight asks of `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Inputs that share a step.
    pub group: usize,
    /// Inputs that are multiplied together are so far apart, as they come out of a word of codes: 1, 2 or 4. Runs of
    /// `4 * stride` inputs thus give `stride` fours: of 0, stride, 2 · stride, 3 · stride, then of 1 and so on.
    pub stride: usize,
    /// What a code is above what it stands for.
    pub excess: i32,
}

impl Layout {
    /// Which input of a block stands in each place.
    fn order(self) -> &'static [u8; BLOCK] {
        const ORDERS: [[u8; BLOCK]; 3] = [order(1), order(2), order(4)];
        &ORDERS[self.stride.ilog2() as usize]
    }
}

const fn order(stride: usize) -> [u8; BLOCK] {
    let mut order = [0; BLOCK];
    let mut place = 0;
    while place < BLOCK {
        let (run, s, i) = (place / (4 * stride), place % (4 * stride) / 4, place % 4);
        order[place] = (run * 4 * stride + s + i * stride) as u8;
        place += 1;
    }
    order
}

/// Bytes of an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::linear) enum Width {
    One,
    Two,
}

impl Width {
    /// The largest integer: of two bytes, the upper one is at most 127, the lower one at most 127 too.
    #[inline(always)]
    fn largest(self) -> f32 {
        match self {
            Width::One => 127.0,
            Width::Two => 32639.0,
        }
    }
}

/// What integers of a group stand for.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Group {
    pub step: f32,
    /// The sum of the group's integers, times the step.
    pub sum: f32,
    /// What the codes' excess adds to a dot, negative.
    pub correction: i32,
}

impl Group {
    /// What numbers of a group with this largest magnitude are multiplied with; `None` if all its integers are 0.
    #[inline(always)]
    pub fn inverse(most: f32, finite: bool, width: Width) -> Option<f32> {
        (finite && most >= SMALLEST).then(|| width.largest() / most)
    }

    /// Of integers with this sum.
    #[inline(always)]
    pub fn new(most: f32, total: i32, excess: i32, width: Width) -> Group {
        let step = most / width.largest();
        Group { step, sum: total as f32 * step, correction: -excess * total }
    }

    /// Of zeros, or of what is no number.
    #[inline(always)]
    pub fn nothing(finite: bool) -> Group {
        if finite { Group::default() } else { Group { step: f32::NAN, sum: f32::NAN, correction: 0 } }
    }
}

/// Rows that lie together.
pub(super) const TILE: usize = 16;
/// A group with nothing above this counts as zeros.
const SMALLEST: f32 = 1e-30;

/// The rows of `x` of a product, sorted by matrix. Rows of one matrix lie in tiles of up to 16.
///
/// An integer is one or two signed bytes where the processor multiplies bytes, and whole elsewhere: a line holds 64 upper,
/// then one 64 lower bytes; or, of each four, the first and third integers, then one the second and fourth.
pub(super) struct Inputs {
    pub layout: Layout,
    /// For each tile: block by block, the first lines of all its rows, then the second ones.
    lines: Scratch,
    /// Lines of a block of a row.
    planes: usize,
    /// For each tile: group by group, all its rows'.
    groups: Vec<Group>,
    /// Blocks and groups of a row.
    blocks: usize,
    row_groups: usize,
}

/// Up to 16 rows.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    pub rows: usize,
    /// `[blocks][planes][rows]`
    pub lines: &'a [Line],
    /// 1 for integers of one byte where the processor multiplies bytes, otherwise 2.
    pub planes: usize,
    /// `[groups][rows]`
    pub groups: &'a [Group],
    /// Whether codes have an excess, which groups correct.
    pub corrected: bool,
}

impl Inputs {
    pub fn new(x: &[f32], product: &Product, layout: Layout, width: Width) -> Inputs {
        let (blocks, row_groups) = (product.k.div_ceil(BLOCK), product.k / layout.group);
        let planes = if as_bytes() && width == Width::One { 1 } else { 2 };
        let count = product.sources.len();
        let mut lines = Scratch::new(count * blocks * planes);
        let mut groups = vec![Group::default(); count * row_groups];
        let mut pieces: Vec<Range<usize>> = vec![];
        for (_, rows) in product.matrices() {
            pieces.extend(rows.clone().step_by(TILE).map(|start| start..rows.end.min(start + TILE)));
        }
        let work = 4 * count * product.k;
        let (to_lines, to_groups) = (Parts::new(&mut lines), Parts::new(&mut groups));
        for_each(pieces.len(), work, |i| {
            let Range { start, end } = pieces[i].clone();
            // SAFETY: pieces are ranges of rows that do not overlap.
            let (lines, groups) = unsafe {
                (
                    to_lines.part(start * blocks * planes, (end - start) * blocks * planes),
                    to_groups.part(start * row_groups, (end - start) * row_groups),
                )
            };
            let sources = &product.sources[start..end];
            let rows = Rows { x, k: product.k, sources, layout, width, planes, lines, groups };
            #[cfg(target_arch = "x86_64")]
            if as_bytes() {
                // SAFETY: the processor has the features.
                return unsafe { super::inputs_avx512::fill(rows) };
            }
            vectorize(rows);
        });
        Inputs { layout, lines, planes, groups, blocks, row_groups }
    }

    /// The tiles of `count` rows from row `start` of the product's `sources` on, a tile's first.
    pub fn tiles(&self, start: usize, count: usize) -> impl Iterator<Item = Tile<'_>> {
        (start..start + count).step_by(TILE).map(move |first| {
            let rows = TILE.min(start + count - first);
            let (lines, groups) = (self.blocks * self.planes, self.row_groups);
            Tile {
                rows,
                planes: self.planes,
                lines: &self.lines[first * lines..][..rows * lines],
                groups: &self.groups[first * groups..][..rows * groups],
                corrected: self.layout.excess != 0,
            }
        })
    }
}

/// Whether integers are stored as two bytes.
fn as_bytes() -> bool {
    simd_level() >= SimdLevel::Avx512Vnni
}

/// A tile to be filled.
pub(super) struct Rows<'a> {
    pub x: &'a [f32],
    pub k: usize,
    pub sources: &'a [u32],
    pub layout: Layout,
    pub width: Width,
    pub planes: usize,
    pub lines: &'a mut [Line],
    pub groups: &'a mut [Group],
}

/// How a family of instructions rounds a group and stores a block.
pub(super) trait Encode: Copy {
    /// Integers for the numbers of one group, a multiple of 16 of them.
    fn round(self, values: &[f32], integers: &mut [i32], excess: i32, width: Width) -> Group;

    /// A block's lines, from its integers in the order in which fours of them are multiplied: place `i` has that of
    /// `order[i]`. Of integers of one byte the first one is enough where the processor multiplies bytes.
    fn lines(self, integers: &[i32; BLOCK], order: &[u8; BLOCK], width: Width) -> [Line; 2];
}

impl Rows<'_> {
    #[inline(always)]
    pub fn fill(self, encode: impl Encode) {
        let Rows { x, k, sources, layout, width, planes, lines, groups } = self;
        let (rows, group, order) = (sources.len(), layout.group, layout.order());
        // A group of 128 fills two blocks, the others at most one.
        let span = group.max(BLOCK);
        let mut integers = [0i32; 2 * BLOCK];
        for (r, &source) in sources.iter().enumerate() {
            let row = &x[source as usize * k..][..k];
            for (i, values) in row.chunks(span).enumerate() {
                integers[values.len()..].fill(0);
                for (g, values) in values.chunks(group).enumerate() {
                    groups[(i * span / group + g) * rows + r] =
                        encode.round(values, &mut integers[g * group..][..group], layout.excess, width);
                }
                let blocks = integers.as_chunks::<BLOCK>().0.iter().take(values.len().div_ceil(BLOCK));
                for (b, integers) in blocks.enumerate() {
                    let at = planes * (i * span / BLOCK + b) * rows + r;
                    let [first, second] = encode.lines(integers, order, width);
                    lines[at] = first;
                    if planes == 2 {
                        lines[at + rows] = second;
                    }
                }
            }
        }
    }
}

/// In plain code, integers whole.
#[derive(Clone, Copy)]
struct Whole;

impl Work for Rows<'_> {
    #[inline(always)]
    fn run(self) {
        self.fill(Whole);
    }
}

impl Encode for Whole {
    #[inline(always)]
    fn round(self, values: &[f32], integers: &mut [i32], excess: i32, width: Width) -> Group {
        round(values, integers, excess, width)
    }

    /// Of each four the first and third, and the second and fourth.
    #[inline(always)]
    fn lines(self, integers: &[i32; BLOCK], order: &[u8; BLOCK], _width: Width) -> [Line; 2] {
        let mut lines = [Line::ZERO; 2];
        for i in 0..16 {
            for (first, line) in lines.iter_mut().enumerate() {
                let half = |place: usize| integers[order[4 * i + place] as usize % BLOCK] as u16 as u32;
                line.0[i] = half(first) | half(first + 2) << 16;
            }
        }
        lines
    }
}

/// Integers for the numbers of one group.
#[inline(always)]
fn round(values: &[f32], integers: &mut [i32], excess: i32, width: Width) -> Group {
    let mut largest = [0.0f32; 16];
    // Not `max`, which would pass over a NaN.
    let mut finite = true;
    for values in values.as_chunks::<16>().0 {
        for i in 0..16 {
            largest[i] = if values[i].abs() > largest[i] { values[i].abs() } else { largest[i] };
        }
        for value in values {
            finite &= value.abs() <= f32::MAX;
        }
    }
    let mut most = 0.0f32;
    for value in largest {
        most = if value > most { value } else { most };
    }
    let Some(inverse) = Group::inverse(most, finite, width) else {
        integers.fill(0);
        return Group::nothing(finite);
    };
    let mut total = 0;
    for (values, integers) in values.as_chunks::<16>().0.iter().zip(integers.as_chunks_mut::<16>().0) {
        for i in 0..16 {
            // SAFETY: at most the largest and a little, in magnitude.
            integers[i] = unsafe { (values[i] * inverse).round_ties_even().to_int_unchecked::<i32>() };
        }
        for integer in integers {
            total += *integer;
        }
    }
    Group::new(most, total, excess, width)
}

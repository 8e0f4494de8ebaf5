//! The product of weights that are small integers: `x` is rounded to integers too, and a group's products are summed
//! exactly.
//!
//! Each row of `x` is cut into the weight's groups. A group is stored as integers of 16 bits with one step, a 32639th of
//! its largest magnitude; what it rounds away is a few thousandths of what bfloat16 does. Or they are integers of 8 bits and
//! the step is a 127th, which spares half the multiplications. Then, for one output:
//!
//! ```text
//! sum = 0
//! for each group g:                                  codes of the weight, integers of x
//!     dot = Σ code · integer                         exact
//!     sum = fma(scale[g], dot as f32 · step[g], sum)
//!     sum = fma(bias[g], (Σ integer) as f32 · step[g], sum)
//! ```
//!
//! Integers add up to the same in any order, so this one order of summation serves every family of instructions, every
//! number of rows and threads: the same bits on all machines. It also needs no conversion of weights: codes are
//! multiplied as they are.
//!
//! Codes of 4-bit floats are twice their value plus 12, at least 0; the 12 are taken off the dot. They have no bias.
//! A group of `x` below 1e-30 counts as zeros; one with an infinity or a NaN makes all its row's outputs NaN.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod blocks;
#[cfg(target_arch = "x86_64")]
mod blocks_avx2;
#[cfg(target_arch = "x86_64")]
mod blocks_avx512;
mod codes;
#[cfg(target_arch = "x86_64")]
mod codes_avx2;
#[cfg(target_arch = "x86_64")]
mod codes_avx512;
mod inputs;
#[cfg(target_arch = "x86_64")]
mod inputs_avx512;
mod portable;
#[cfg(target_arch = "x86_64")]
mod tiles;

use std::{cell::Cell, ops::Range};

use super::{Weight, lines::Line, output::Output, packed::Packed, product::Product};
use crate::{
    gated::{Activation, gate},
    parallel::{for_each, threads},
    shared::{Parts, with_scratch},
    simd::{SimdLevel, simd_level, vectorize},
};
use codes::Codes;
use inputs::{Inputs, Layout, TILE, Tile};

pub(super) use inputs::Width;

/// Weight rows computed together.
const PANEL: usize = 32;
/// Inputs of a panel that are unpacked at a time: 16 KB of codes.
const STRETCH: usize = 512;
/// Inputs whose integers lie side by side.
const BLOCK: usize = 64;
/// Rows of `x` that a task takes at once: with 512 inputs, 256 KB.
const ROWS: usize = 256;
/// Panels a task multiplies with a stretch of these rows before the next stretch: their sums are up to 128 KB.
const PANELS: usize = 4;
/// Multiply-adds of a task: with more, threads would wait for the last one, and with less it costs more to begin than to do. Panels
/// that share `x` stay together all the same.
const MOST_WORK: usize = 1024 * 1024;
const LEAST_WORK: usize = 64 * 1024;
/// Tasks for each thread, where there is work enough.
const TASKS: usize = 4;

/// A stretch of a panel of weights, unpacked.
#[repr(C, align(64))]
struct Panel {
    /// Four codes of each row, 16 rows to a line: which four is up to the format, see [`inputs::Layout`].
    codes: [[Line; 2]; STRETCH / 4],
    /// Per group.
    scales: [[[f32; 16]; 2]; STRETCH / 16],
    biases: [[[f32; 16]; 2]; STRETCH / 16],
}

impl Panel {
    const ZERO: Panel = Panel {
        codes: [[Line::ZERO; 2]; STRETCH / 4],
        scales: [[[0.0; 16]; 2]; STRETCH / 16],
        biases: [[[0.0; 16]; 2]; STRETCH / 16],
    };
}

thread_local! {
    /// Fresh memory costs more to map than many a product to compute.
    static UNPACKED: Cell<Option<Box<Panel>>> = const { Cell::new(None) };
}

/// Some groups of a panel, and where they begin.
#[derive(Clone, Copy)]
struct Stretch<'a> {
    panel: &'a Panel,
    /// The first input, a multiple of STRETCH.
    start: usize,
    /// How many groups of how many inputs.
    groups: usize,
    group: usize,
}

/// A weight whose codes are integers, as it is stored.
enum Source<'a> {
    Rows(Codes<'a>),
    Blocks(Packed<'a>),
}

impl<'a> Source<'a> {
    /// # Panics
    /// If the weight does not suit.
    fn of(weight: &Weight<'a>, k: usize) -> Source<'a> {
        match weight {
            Weight::Packed(packed) => Source::Blocks(*packed),
            weight => Source::Rows(Codes::of(weight, k).expect("a weight that suits")),
        }
    }

    fn layout(&self) -> Layout {
        match self {
            Source::Rows(codes) => codes.layout(),
            Source::Blocks(packed) => blocks::layout(packed),
        }
    }

    /// Unpacks `inputs` of `rows` rows from the `first` on; what the panel holds of other rows is left as it was.
    fn unpack(&self, first: usize, rows: usize, inputs: Range<usize>, panel: &mut Panel) {
        match self {
            Source::Rows(codes) => codes.unpack(first, rows, inputs, panel),
            Source::Blocks(packed) => blocks::unpack(*packed, first, rows, inputs, panel),
        }
    }
}

/// Whether this product is for such a weight.
pub(super) fn suits(weight: &Weight) -> bool {
    matches!(weight, Weight::Packed(_)) || Codes::of(weight, 0).is_some()
}

/// Products that share `x` and which of its rows meet which matrix.
pub(super) fn multiply(x: &[f32], products: Vec<(Weight, &Product, &mut [f32])>, width: Width) {
    let Some(&(_, shape, _)) = products.first() else { return };
    let k = shape.k;
    let products = products.into_iter().map(|(weight, product, out)| (Source::of(&weight, k), product, out));
    let products: Vec<(Source, &Product, &mut [f32])> = products.collect();
    let mut inputs: Vec<Inputs> = vec![];
    for (codes, ..) in &products {
        if inputs.iter().all(|inputs| inputs.layout != codes.layout()) {
            inputs.push(Inputs::new(x, shape, codes.layout(), width));
        }
    }
    let inputs_of = |codes: &Source| inputs.iter().find(|inputs| inputs.layout == codes.layout());
    let products = products.into_iter().map(|(codes, product, out)| {
        let inputs = inputs_of(&codes).expect("just made");
        Job { codes, gated: None, inputs, product, out: Parts::new(out) }
    });
    run(products.collect());
}

/// `out = activation(x · gateᵀ) * (x · upᵀ)`, if both weights ask the same of `x`: as the three steps one after the other, but
/// products go through no memory.
pub(super) fn multiply_gated(
    x: &[f32],
    [gate, up]: [Weight; 2],
    product: &Product,
    activation: Activation,
    out: &mut [f32],
    width: Width,
) -> bool {
    let [gate, up] = [gate, up].map(|weight| Source::of(&weight, product.k));
    if gate.layout() != up.layout() {
        return false;
    }
    let inputs = &Inputs::new(x, product, gate.layout(), width);
    run(vec![Job { codes: gate, gated: Some((up, activation)), inputs, product, out: Parts::new(out) }]);
    true
}

/// A product to be cut into tasks.
struct Job<'a> {
    codes: Source<'a>,
    /// What the product gates, and how.
    gated: Option<(Source<'a>, Activation)>,
    inputs: &'a Inputs,
    product: &'a Product<'a>,
    out: Parts<'a, f32>,
}

/// Products of one `k` with as many rows.
fn run(jobs: Vec<Job>) {
    let (k, rows) = (jobs[0].product.k, jobs[0].product.sources.len());
    let work = jobs.iter().map(|job| rows * k * job.product.n).sum();
    let mut tasks = Vec::with_capacity(2 * TASKS * threads() * jobs.len());
    for Job { codes, gated, inputs, product, out } in &jobs {
        let n = product.n;
        for (e, range) in product.matrices() {
            for start in range.clone().step_by(ROWS) {
                let rows = start..range.end.min(start + ROWS);
                for columns in cut(n, k * rows.len(), product.starts.len() - 1) {
                    tasks.push(Task {
                        codes,
                        gated: gated.as_ref().map(|(up, activation)| (up, *activation)),
                        first: e * n + columns.start,
                        columns: columns.len(),
                        inputs,
                        start: rows.start,
                        output: Output {
                            out,
                            targets: &product.targets[rows.clone()],
                            n,
                            column: columns.start,
                        },
                        k,
                    });
                }
            }
        }
    }
    for_each(tasks.len(), work, |i| tasks[i].run());
}

/// Cuts `n` columns, each so many multiply-adds, into pieces of whole panels, as many for each thread and as even as may be. So
/// many `matrices` are cut at once.
fn cut(n: usize, work: usize, matrices: usize) -> impl Iterator<Item = Range<usize>> {
    let panels = n.div_ceil(PANEL);
    let most = (TASKS * threads()).div_ceil(matrices);
    let pieces = (n * work / LEAST_WORK).min(most).next_multiple_of(threads().min(most));
    let pieces = pieces.max((n * work / MOST_WORK).min(panels.div_ceil(PANELS))).clamp(1, panels);
    let bound = move |piece: usize| (piece * panels / pieces * PANEL).min(n);
    (0..pieces).map(move |piece| bound(piece)..bound(piece + 1))
}

/// Some rows of a matrix against some of its rows of `x`.
struct Task<'a> {
    codes: &'a Source<'a>,
    gated: Option<(&'a Source<'a>, Activation)>,
    /// The first of the weight's rows, and how many.
    first: usize,
    columns: usize,
    inputs: &'a Inputs,
    /// Where the rows of `x` begin.
    start: usize,
    output: Output<'a>,
    k: usize,
}

impl Task<'_> {
    fn run(&self) {
        let mut panel = UNPACKED.take().unwrap_or_else(|| Box::new(Panel::ZERO));
        let rows = self.output.targets.len();
        let panels = PANELS.min(self.columns.div_ceil(PANEL));
        with_scratch(2 * rows * panels * PANEL, |sums| {
            let (sums, ups) = sums.as_chunks_mut::<PANEL>().0.split_at_mut(rows * panels);
            for column in (0..self.columns).step_by(panels * PANEL) {
                let columns = column..self.columns.min(column + panels * PANEL);
                let sums = &mut sums[..rows * columns.len().div_ceil(PANEL)];
                self.multiply(self.codes, columns.clone(), &mut panel, sums);
                if let Some((up, activation)) = self.gated {
                    let ups = &mut ups[..sums.len()];
                    self.multiply(up, columns.clone(), &mut panel, ups);
                    gate(sums.as_flattened_mut(), ups.as_flattened(), activation);
                }
                for row in 0..rows {
                    for (column, sums) in columns.clone().step_by(PANEL).zip(sums.chunks(rows)) {
                        self.output.write(row, column, &sums[row], PANEL.min(columns.end - column));
                    }
                }
            }
        });
        UNPACKED.set(Some(panel));
        #[cfg(target_arch = "x86_64")]
        tiles::release();
    }

    /// Sums of some columns, a panel's for each row, then the next one's.
    fn multiply(&self, codes: &Source, columns: Range<usize>, panel: &mut Panel, sums: &mut [[f32; PANEL]]) {
        let rows = self.output.targets.len();
        let panels = columns.clone().step_by(PANEL).map(|column| column..columns.end.min(column + PANEL));
        if let Source::Blocks(packed) = codes
            && let Some(multiply) = blocks::packed_kernel(rows)
        {
            for (columns, sums) in panels.zip(sums.chunks_mut(rows)) {
                for half in 0..columns.len() / 16 {
                    let first = self.first + columns.start + 16 * half;
                    let groups = packed.groups(first, 0..self.k / codes.layout().group);
                    let lines = blocks::Lines { packing: packed.packing(), groups, half };
                    for (tile, sums) in self.tiles().zip(sums.chunks_mut(TILE)) {
                        // SAFETY: the processor has the features.
                        unsafe { multiply(lines, tile, sums) };
                    }
                }
            }
            return;
        }
        let group = codes.layout().group;
        sums.fill([0.0; PANEL]);
        // What all panels multiply stays in the second cache.
        for start in (0..self.k).step_by(STRETCH) {
            let inputs = start..self.k.min(start + STRETCH);
            let groups = inputs.len() / group;
            for (columns, sums) in panels.clone().zip(sums.chunks_mut(rows)) {
                codes.unpack(self.first + columns.start, columns.len(), inputs.clone(), panel);
                add(Stretch { panel, start, groups, group }, self.tiles(), sums);
            }
        }
    }

    fn tiles(&self) -> impl Iterator<Item = Tile<'_>> {
        self.inputs.tiles(self.start, self.output.targets.len())
    }
}

/// Adds a stretch's products with rows of `x` to the rows' sums.
fn add<'a>(stretch: Stretch, tiles: impl Iterator<Item = Tile<'a>>, sums: &mut [[f32; PANEL]]) {
    #[cfg(target_arch = "x86_64")]
    if simd_level() == SimdLevel::Amx {
        // SAFETY: the processor has tiles, and the system lets this process use them.
        return unsafe { tiles::add(stretch, tiles, sums) };
    }
    for (tile, sums) in tiles.zip(sums.chunks_mut(TILE)) {
        match simd_level() {
            // SAFETY: the processor has the features.
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512Bf16 | SimdLevel::Avx512Vnni => unsafe { avx512::add(stretch, tile, sums) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512 | SimdLevel::Avx2 => unsafe { avx2::add(stretch, tile, sums) },
            _ => vectorize(portable::Add { stretch, tile, sums }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_cut_into_whole_panels_of_even_size() {
        for (n, work, matrices) in
            [(448, 448, 1), (16, 448, 1), (1000, 8 * 1024, 1), (248_320, 1024, 1), (512, 64, 128)]
        {
            let pieces: Vec<Range<usize>> = cut(n, work, matrices).collect();
            assert_eq!((pieces[0].start, pieces[pieces.len() - 1].end), (0, n));
            assert!(pieces.windows(2).all(|two| two[0].end == two[1].start && two[1].start % PANEL == 0));
            let panels = pieces.iter().map(|piece| piece.len().div_ceil(PANEL));
            let (least, most) = (panels.clone().min().unwrap_or(0), panels.max().unwrap_or(0));
            assert!(least > 0 && most <= least + 1, "{least} to {most} panels of {n}");
            assert!(most == 1 || pieces.iter().all(|piece| (piece.len() - PANEL) * work <= MOST_WORK));
        }
    }

    #[test]
    fn many_rows_leave_panels_together_that_share_them() {
        let pieces = cut(64 * PANELS * PANEL, ROWS * 4096, 1).count();
        assert_eq!(pieces, (TASKS * threads()).clamp(64, 64 * PANELS));
    }
}

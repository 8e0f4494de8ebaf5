//! The product in bfloat16: factors are rounded to bfloat16 (to nearest, ties to even), multiplied exactly and summed in
//! float32.
//!
//! Rows are cut into blocks of 64 inputs, the last one filled up with zeros. What a number of a block meets is the same
//! for every format, but its place may be another ([`Layout`]); a block is two *lines* of 16 pairs. Each family of
//! instructions has one order of summation, whatever the number of rows or threads:
//!
//! - **Lanes** (all but AMX): one sum per pair of a line. For each line in turn `sum = fma(odd, odd, sum)`, then `sum =
//!   fma(even, even, sum)`; at the end the 16 sums are added as a fixed tree. This is what AVX-512's `vdpbf16ps` does;
//!   everything else follows it with plain fused multiply-adds, to the same bits.
//! - **Tiles** (AMX): one sum per output. For each line in turn, from zero and pair after pair, the products of the even
//!   numbers are summed with fused multiply-adds, those of the odd ones apart from them; both are added, and then to the
//!   sum. One row goes through the tiles as many do.
//!
//! Numbers below the normal range of float32 may count as zero.

#[cfg(target_arch = "x86_64")]
mod avx512;
mod inputs;
mod lanes;
mod scratch;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tiles;
mod unpack;

use std::ops::Range;

use super::{Floats, Weight, product::Product};
use crate::{
    linear::{Affine, FloatFormat},
    parallel::{for_each, threads},
    shared::Parts,
    simd::{Vectors, vectorize, vectors},
};
use inputs::{Inputs, Layout};
use unpack::{AffineRows, DenseRows, FloatRows, NibbleRows, Unpack};

/// 16 pairs of bfloat16 numbers, the even one in the lower half.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line(pub [u32; 16]);

impl Line {
    const ZERO: Line = Line([0; 16]);
}

/// 64 inputs of a row.
type Block = [Line; 2];
/// Inputs in a block.
const BLOCK: usize = 64;
/// Weight rows computed together.
const PANEL: usize = 32;
/// Multiply-adds worth handing to a thread.
const TASK: usize = 128 * 1024;

/// Products that share `x` and which of its rows meet which matrix.
pub(super) fn multiply(x: &[f32], products: Vec<(Weight, &Product, &mut [f32])>) {
    let Some(&(_, shape, _)) = products.first() else { return };
    let (k, rows) = (shape.k, shape.sources.len());
    let inputs = Inputs::new(x, shape, products.iter().map(|(weight, ..)| layout(weight)));
    let work = products.iter().map(|(_, product, _)| rows * k * product.n).sum();
    let parts = 4 * threads() * products.len();
    let mut tasks = vec![];
    let written = products.into_iter().map(|(weight, product, out)| {
        assert_eq!(out.len(), rows * product.n, "out is not [{rows}, {}]", product.n);
        (weight, product, Parts::new(out))
    });
    let written: Vec<_> = written.collect();
    for (weight, product, out) in &written {
        let n = product.n;
        for (e, rows) in product.matrices() {
            let most = (n / parts.div_ceil(product.starts.len() - 1)).max(1);
            let panel = (TASK / (k * rows.len())).min(most).max(1).next_multiple_of(PANEL);
            for column in (0..n).step_by(panel) {
                tasks.push(Task {
                    weight: *weight,
                    first: e * n + column,
                    rows: panel.min(n - column),
                    x: inputs.of(layout(weight), rows.clone()),
                    output: Output { out, targets: &product.targets[rows.clone()], n, column },
                    blocks: k.div_ceil(BLOCK),
                    k,
                });
            }
        }
    }
    for_each(tasks.len(), work, |i| tasks[i].run());
}

fn layout(weight: &Weight) -> Layout {
    match weight {
        Weight::Affine(Affine { bits: 4, .. }) => Layout::Fourths,
        Weight::Microscaled(weight) if weight.format != FloatFormat::Mxfp8 => Layout::Fourths,
        _ => Layout::Natural,
    }
}

/// Some rows of a matrix against all its rows of `x`.
struct Task<'a> {
    weight: Weight<'a>,
    /// The first of the weight's rows, and how many.
    first: usize,
    rows: usize,
    /// The matrix's rows of `x`, as [`Inputs`] lays them out.
    x: &'a [Line],
    output: Output<'a>,
    /// Blocks in a row.
    blocks: usize,
    k: usize,
}

/// Where a task writes: the columns from `column` on of the rows `targets` of an output `[.., n]`.
struct Output<'a> {
    out: &'a Parts<'a, f32>,
    targets: &'a [u32],
    n: usize,
    column: usize,
}

impl Output<'_> {
    /// `count` columns of the task's row `index`, from its column `offset` on.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "no two tasks share columns of a row")]
    fn part(&self, index: usize, offset: usize, count: usize) -> &mut [f32] {
        debug_assert!(self.column + offset + count <= self.n);
        let at = self.targets[index] as usize * self.n + self.column + offset;
        // SAFETY: no two tasks share columns of a row, and a task uses one part at a time.
        unsafe { self.out.part(at, count) }
    }

    /// Row `index` of the task's, from its column `offset` on.
    #[inline(always)]
    fn write(&self, index: usize, offset: usize, values: &[f32]) {
        self.part(index, offset, values.len()).copy_from_slice(values);
    }
}

impl Task<'_> {
    fn run(&self) {
        let k = self.k;
        match self.weight {
            Weight::Dense(Floats::Bf16(values)) => self.run_on(DenseRows { values, k }),
            Weight::Dense(_) => unreachable!("more precise weights are multiplied in float32"),
            Weight::Affine(weight) => match weight.bits {
                2 => self.run_on(AffineRows::<2>::new(weight, k)),
                3 => self.run_on(AffineRows::<3>::new(weight, k)),
                4 => match (weight.scales, weight.biases) {
                    (Floats::F32(s), Floats::F32(b)) => self.run_on(NibbleRows::new(weight, s, b, k)),
                    (Floats::F16(s), Floats::F16(b)) => self.run_on(NibbleRows::new(weight, s, b, k)),
                    (Floats::Bf16(s), Floats::Bf16(b)) => self.run_on(NibbleRows::new(weight, s, b, k)),
                    _ => unreachable!("scales and biases are of one type"),
                },
                5 => self.run_on(AffineRows::<5>::new(weight, k)),
                6 => self.run_on(AffineRows::<6>::new(weight, k)),
                _ => self.run_on(AffineRows::<8>::new(weight, k)),
            },
            Weight::Microscaled(weight) => match weight.format {
                FloatFormat::Mxfp4 => self.run_on(FloatRows::<4, 32>::new(weight, k)),
                FloatFormat::Mxfp8 => self.run_on(FloatRows::<8, 32>::new(weight, k)),
                FloatFormat::Nvfp4 => self.run_on(FloatRows::<4, 16>::new(weight, k)),
            },
        }
    }

    fn run_on(&self, weight: impl Unpack) {
        match vectors() {
            // SAFETY: the processor has tiles, and the system lets this process use them.
            #[cfg(target_arch = "x86_64")]
            Vectors::Amx => unsafe { tiles::run(self, weight) },
            // SAFETY: the processor has AVX-512 with bfloat16.
            #[cfg(target_arch = "x86_64")]
            Vectors::Avx512Bf16 => unsafe { avx512::run(self, weight) },
            _ => vectorize(lanes::Lanes { task: self, weight }),
        }
    }

    /// Rows `first..` of the task, PANEL at a time: where each begins and how many it has.
    fn panels(&self) -> impl Iterator<Item = Range<usize>> {
        (0..self.rows).step_by(PANEL).map(|start| start..self.rows.min(start + PANEL))
    }

    /// Rows of `x`.
    fn inputs(&self) -> usize {
        self.output.targets.len()
    }
}

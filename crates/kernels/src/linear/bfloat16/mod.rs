//! The product in bfloat16, for weights of no more precision than that: activations are rounded to bfloat16 (to nearest,
//! ties to even), multiplied exactly and summed in float32.
//!
//! Rows are cut into blocks of 64 inputs, the last one filled up with zeros; a block is two *lines* of 16 pairs. Each
//! family of instructions has one order of summation, whatever the number of rows or threads:
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
#[cfg(target_arch = "x86_64")]
mod tiles;
mod unpack;

use std::ops::Range;

use super::{Floats, Weight, lines::Line, output::Output, product::Product};
use crate::{
    parallel::{for_each, threads},
    shared::Parts,
    simd::{SimdLevel, simd_level, vectorize},
};
use inputs::Inputs;
use unpack::{DenseRows, SmallFloatRows, Unpack};

/// 64 inputs of a row, as 32 pairs; of a pair the even number is the lower half.
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
    let inputs = Inputs::new(x, shape);
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
                    x: inputs.of(rows.clone()),
                    output: Output { out, targets: &product.targets[rows.clone()], n, column },
                    blocks: k.div_ceil(BLOCK),
                    k,
                });
            }
        }
    }
    for_each(tasks.len(), work, |i| tasks[i].run());
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

impl Task<'_> {
    fn run(&self) {
        let k = self.k;
        match self.weight {
            Weight::Dense(Floats::Bf16(values)) => self.run_on(DenseRows { values, k }),
            Weight::Microscaled(weight) => self.run_on(SmallFloatRows { weight, k }),
            Weight::Dense(_) | Weight::Affine(_) | Weight::Packed(_) => {
                unreachable!("weights of another order")
            }
        }
    }

    fn run_on(&self, weight: impl Unpack) {
        match simd_level() {
            // SAFETY: the processor has tiles, and the system lets this process use them.
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Amx => unsafe { tiles::run(self, weight) },
            // SAFETY: the processor has AVX-512 with bfloat16.
            #[cfg(target_arch = "x86_64")]
            SimdLevel::Avx512Bf16 => unsafe { avx512::run(self, weight) },
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

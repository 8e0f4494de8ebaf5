//! The product in bfloat16, for weights of no more precision: activations are rounded to bfloat16
//! (to nearest, ties to even), multiplied exactly and summed in float32.
//!
//! Rows are cut into blocks of 64 inputs, the last one padded with zeros; a block is two *lines* of
//! 16 pairs. Each instruction set has one order of summation, whatever the number of rows or
//! threads:
//!
//! - **Lanes** (all but AMX): one sum per pair of a line. For each line in turn
//!   `sum = fma(odd, odd, sum)`, then `sum = fma(even, even, sum)`; at the end the 16 sums are
//!   added as a fixed tree. AVX-512's `vdpbf16ps` computes this; other instruction sets use plain
//!   fused multiply-adds and get the same bits.
//! - **Tiles** (AMX): one sum per output. For each line in turn, from zero and pair after pair, the
//!   products of the even numbers are summed with fused multiply-adds, those of the odd ones
//!   separately; both are added, and then to the sum. A single row goes through the tiles too.
//!
//! Numbers below the normal range of float32 may count as zero.

pub(crate) mod inputs;
mod kernels;
pub(crate) mod lanes;
pub(crate) mod task;
pub(crate) mod weight;

use super::{output::TaskOutput, row_groups::RowGroups, weight::Weight};
use crate::{
    disjoint::DisjointMut,
    linear::tiling::{INPUT_BLOCK, PANEL_ROWS},
    parallel::{for_each, threads},
};
use inputs::Bf16Inputs;
use task::Bf16Task;

/// Multiply-adds of a task.
const TASK_WORK: usize = 128 * 1024;

/// Products that share `x` and its grouping by matrix.
pub(super) fn multiply(x: &[f32], products: Vec<(Weight, &RowGroups, &mut [f32])>) {
    let Some(&(_, shape, _)) = products.first() else { return };
    let (k, rows) = (shape.k, shape.sources.len());
    let kernel = kernels::kernel(rows, shape.starts.len() - 1);
    let inputs = Bf16Inputs::new(x, shape, &kernel);
    let work = products.iter().map(|(_, groups, _)| rows * k * groups.n).sum();
    let parts = 4 * threads() * products.len();
    let mut tasks = vec![];
    let outputs = products.into_iter().map(|(weight, groups, out)| {
        assert_eq!(out.len(), rows * groups.n, "out is not [{rows}, {}]", groups.n);
        (weight, groups, DisjointMut::new(out))
    });
    let outputs: Vec<_> = outputs.collect();
    for (weight, groups, out) in &outputs {
        let n = groups.n;
        for (e, rows) in groups.matrices() {
            let max = (n / parts.div_ceil(groups.starts.len() - 1)).max(1);
            let columns = (TASK_WORK / (k * rows.len())).min(max).max(1).next_multiple_of(PANEL_ROWS);
            for column in (0..n).step_by(columns) {
                tasks.push(Bf16Task {
                    weight: *weight,
                    first: e * n + column,
                    rows: columns.min(n - column),
                    x: inputs.rows(rows.clone()),
                    output: TaskOutput { out, targets: &groups.targets[rows.clone()], n, column },
                    blocks: k.div_ceil(INPUT_BLOCK),
                    k,
                });
            }
        }
    }
    for_each(tasks.len(), work, |i| (kernel.multiply)(&tasks[i]));
}

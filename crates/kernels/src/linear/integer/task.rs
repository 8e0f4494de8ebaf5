//! Cuts integer products into tasks for threads, and runs them.

use std::{cell::Cell, ops::Range};

use super::{
    inputs::{InputLayout, InputTiles, QuantizedInputs},
    kernels::IntegerKernels,
    packed::{self, PackedRows},
    panel::{K_BLOCK, KBlock, UnpackedPanel},
    unpack::CodeMatrix,
};
use crate::{
    disjoint::DisjointMut,
    gated::{Activation, gate_in_place},
    linear::{
        output::TaskOutput,
        packed::Packed,
        row_groups::RowGroups,
        tiling::{PANEL_ROWS, TILE_ROWS},
        weight::Weight,
    },
    memory::with_scratch,
    parallel::{for_each, threads},
};

/// Most rows of `x` in a task: with 512 inputs, 256 KB.
const MAX_TASK_ROWS: usize = 256;
/// Panels that are multiplied with one K block of `x` before the next: their sums are up to 128 KB.
const PANELS: usize = 4;
/// Multiply-adds of a task: with more, threads wait for the last task; with fewer, starting a task
/// dominates. Panels that share `x` stay together all the same.
const MAX_TASK_WORK: usize = 1024 * 1024;
const MIN_TASK_WORK: usize = 64 * 1024;
/// Tasks per thread, given enough work.
const TASKS: usize = 4;

thread_local! {
    /// Reused, since mapping fresh memory can cost more than a small product.
    static PANEL: Cell<Option<Box<UnpackedPanel>>> = const { Cell::new(None) };
}

/// A weight with integer codes.
pub(super) enum IntegerWeight<'a> {
    Rows(CodeMatrix<'a>),
    Packed(Packed<'a>),
}

impl<'a> IntegerWeight<'a> {
    /// # Panics
    /// If the codes are not integers.
    pub(super) fn new(weight: &Weight<'a>, k: usize) -> IntegerWeight<'a> {
        match weight {
            Weight::Packed(packed) => IntegerWeight::Packed(*packed),
            weight => IntegerWeight::Rows(CodeMatrix::new(weight, k)),
        }
    }

    /// The layout of `x` that it requires.
    pub(super) fn layout(&self) -> InputLayout {
        match self {
            IntegerWeight::Rows(codes) => codes.layout(),
            IntegerWeight::Packed(packed) => packed::input_layout(packed),
        }
    }
}

/// A product, or a gated product, to be cut into tasks.
pub(super) struct IntegerMatmul<'a> {
    pub weight: IntegerWeight<'a>,
    /// The weight whose product is gated by this one, and the activation.
    pub gated: Option<(IntegerWeight<'a>, Activation)>,
    pub inputs: &'a QuantizedInputs,
    pub groups: &'a RowGroups<'a>,
    pub out: DisjointMut<'a, f32>,
}

/// Runs products with the same `k` and number of rows.
pub(super) fn run(matmuls: Vec<IntegerMatmul>, kernels: &IntegerKernels) {
    let (k, rows) = (matmuls[0].groups.k, matmuls[0].groups.sources.len());
    let work = matmuls.iter().map(|matmul| rows * k * matmul.groups.n).sum();
    // Indices alone: tasks are more than twice as large.
    let mut pieces: Vec<Piece> = Vec::with_capacity(TASKS * threads() * matmuls.len());
    for (matmul, IntegerMatmul { groups, .. }) in matmuls.iter().enumerate() {
        for (matrix, range) in groups.matrices() {
            for start in range.clone().step_by(MAX_TASK_ROWS) {
                let rows = start..range.end.min(start + MAX_TASK_ROWS);
                let cut = cut_columns(groups.n, k * rows.len(), groups.starts.len() - 1);
                pieces.extend(cut.map(|columns| Piece { matmul, matrix, rows: rows.clone(), columns }));
            }
        }
    }
    for_each(pieces.len(), work, |i| matmuls[pieces[i].matmul].task(&pieces[i], kernels).run());
}

/// Some rows of `x` and some columns of one matrix.
struct Piece {
    matmul: usize,
    matrix: usize,
    rows: Range<usize>,
    columns: Range<usize>,
}

impl IntegerMatmul<'_> {
    fn task<'a>(&'a self, piece: &Piece, kernels: &'a IntegerKernels) -> IntegerTask<'a> {
        let IntegerMatmul { weight, gated, inputs, groups, out } = self;
        let Piece { matrix, rows, columns, .. } = piece;
        IntegerTask {
            kernels,
            weight,
            gated: gated.as_ref().map(|(up, activation)| (up, *activation)),
            first: matrix * groups.n + columns.start,
            columns: columns.len(),
            inputs,
            start: rows.start,
            output: TaskOutput {
                out,
                targets: &groups.targets[rows.clone()],
                n: groups.n,
                column: columns.start,
            },
            k: groups.k,
        }
    }
}

/// Cuts `n` columns of `work` multiply-adds each into pieces of whole panels and of even size;
/// their number is a multiple of the threads if possible. `matrices` matrices are cut at once.
fn cut_columns(n: usize, work: usize, matrices: usize) -> impl Iterator<Item = Range<usize>> {
    let panels = n.div_ceil(PANEL_ROWS);
    let max = (TASKS * threads()).div_ceil(matrices);
    let pieces = (n * work / MIN_TASK_WORK).min(max).next_multiple_of(threads().min(max));
    let pieces = pieces.max((n * work / MAX_TASK_WORK).min(panels.div_ceil(PANELS))).clamp(1, panels);
    let bound = move |piece: usize| (piece * panels / pieces * PANEL_ROWS).min(n);
    (0..pieces).map(move |piece| bound(piece)..bound(piece + 1))
}

/// Some rows of a matrix times some of its rows of `x`.
struct IntegerTask<'a> {
    kernels: &'a IntegerKernels,
    weight: &'a IntegerWeight<'a>,
    gated: Option<(&'a IntegerWeight<'a>, Activation)>,
    /// The first of the weight's rows, and their number.
    first: usize,
    columns: usize,
    inputs: &'a QuantizedInputs,
    /// The first of the rows of `x`.
    start: usize,
    output: TaskOutput<'a>,
    k: usize,
}

impl IntegerTask<'_> {
    fn run(&self) {
        let mut panel = PANEL.take().unwrap_or_else(|| Box::new(UnpackedPanel::ZERO));
        let rows = self.output.targets.len();
        let panels = PANELS.min(self.columns.div_ceil(PANEL_ROWS));
        with_scratch(2 * rows * panels * PANEL_ROWS, |sums| {
            let (sums, ups) = sums.as_chunks_mut::<PANEL_ROWS>().0.split_at_mut(rows * panels);
            for column in (0..self.columns).step_by(panels * PANEL_ROWS) {
                let columns = column..self.columns.min(column + panels * PANEL_ROWS);
                let sums = &mut sums[..rows * columns.len().div_ceil(PANEL_ROWS)];
                self.multiply(self.weight, columns.clone(), &mut panel, sums);
                if let Some((up, activation)) = self.gated {
                    let ups = &mut ups[..sums.len()];
                    self.multiply(up, columns.clone(), &mut panel, ups);
                    gate_in_place(sums.as_flattened_mut(), ups.as_flattened(), activation);
                }
                for row in 0..rows {
                    for (column, sums) in columns.clone().step_by(PANEL_ROWS).zip(sums.chunks(rows)) {
                        self.output.write(row, column, &sums[row], PANEL_ROWS.min(columns.end - column));
                    }
                }
            }
        });
        PANEL.set(Some(panel));
        (self.kernels.finish)();
    }

    /// Sums of some columns: for each panel, all rows.
    fn multiply(
        &self,
        weight: &IntegerWeight,
        columns: Range<usize>,
        panel: &mut UnpackedPanel,
        sums: &mut [[f32; PANEL_ROWS]],
    ) {
        let rows = self.output.targets.len();
        let panels =
            columns.clone().step_by(PANEL_ROWS).map(|column| column..columns.end.min(column + PANEL_ROWS));
        if let IntegerWeight::Packed(packed) = weight
            && let Some(multiply) = self.kernels.multiply_packed(rows)
        {
            for (columns, sums) in panels.zip(sums.chunks_mut(rows)) {
                for half in 0..columns.len() / 16 {
                    let first = self.first + columns.start + 16 * half;
                    let groups = packed.groups(first, 0..self.k / weight.layout().group);
                    let packed_rows = PackedRows { packing: packed.packing(), groups, half };
                    for (tile, sums) in self.tiles().zip(sums.chunks_mut(TILE_ROWS)) {
                        // SAFETY: the processor has the features of the selected kernels.
                        unsafe { multiply(packed_rows, tile, sums) };
                    }
                }
            }
            return;
        }
        let group = weight.layout().group;
        sums.fill([0.0; PANEL_ROWS]);
        // A K block of `x`, a segment of the sums, stays in the second-level cache for all panels.
        for start in (0..self.k).step_by(K_BLOCK) {
            let inputs = start..self.k.min(start + K_BLOCK);
            let groups = inputs.len() / group;
            for (columns, sums) in panels.clone().zip(sums.chunks_mut(rows)) {
                let (first, rows) = (self.first + columns.start, columns.len());
                // SAFETY: the processor has the features of the selected kernels; the weight has
                // these rows.
                unsafe {
                    match weight {
                        IntegerWeight::Rows(codes) => {
                            (self.kernels.unpack)(codes, first, rows, inputs.clone(), panel);
                        }
                        IntegerWeight::Packed(packed) => {
                            (self.kernels.unpack_packed)(*packed, first, rows, inputs.clone(), panel);
                        }
                    }
                    (self.kernels.multiply)(KBlock { panel, start, groups, group }, self.tiles(), sums);
                }
            }
        }
    }

    fn tiles(&self) -> InputTiles<'_> {
        self.inputs.tiles(self.start, self.output.targets.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_columns_gives_whole_panels_of_even_size() {
        for (n, work, matrices) in
            [(448, 448, 1), (16, 448, 1), (1000, 8 * 1024, 1), (248_320, 1024, 1), (512, 64, 128)]
        {
            let pieces: Vec<Range<usize>> = cut_columns(n, work, matrices).collect();
            assert_eq!((pieces[0].start, pieces[pieces.len() - 1].end), (0, n));
            assert!(
                pieces.windows(2).all(|two| two[0].end == two[1].start && two[1].start % PANEL_ROWS == 0)
            );
            let panels = pieces.iter().map(|piece| piece.len().div_ceil(PANEL_ROWS));
            let (least, most) = (panels.clone().min().unwrap_or(0), panels.max().unwrap_or(0));
            assert!(least > 0 && most <= least + 1, "{least} to {most} panels of {n}");
            assert!(
                most == 1 || pieces.iter().all(|piece| (piece.len() - PANEL_ROWS) * work <= MAX_TASK_WORK)
            );
        }
    }

    #[test]
    fn cut_columns_of_many_rows_keeps_panels_together() {
        let pieces = cut_columns(64 * PANELS * PANEL_ROWS, MAX_TASK_ROWS * 4096, 1).count();
        assert_eq!(pieces, (TASKS * threads()).clamp(64, 64 * PANELS));
    }
}

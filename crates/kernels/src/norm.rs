//! Root-mean-square norm, alone or with a gate, and the residual sum before it.

use std::ops::Range;

use crate::{
    lanes::{LANES, Lanes, fma, load_scalar, reduce, silu, store_scalar},
    parallel::for_each_chunk,
    scalar::Scalar,
    simd::{WithSimd, dispatch},
};

/// Elements of a task.
const TASK_ELEMENTS: usize = 1024;
/// Elements whose squares are added up by themselves, before the sums of all blocks are: blocks do
/// not wait for each other, and on a GPU each has threads of its own (cuda/math.cuh).
const BLOCK: usize = 256;

/// `out = x / sqrt(mean(x²) + eps) * weight` per row of `weight.len()` values, in float32, rounded
/// once.
pub fn rms_norm<T: Scalar, W: Scalar>(x: &[T], weight: &[W], out: &mut [T], eps: f32) {
    for_each_rows(x.len(), weight, out, 4, |at, out| {
        dispatch(NormRows { x: &x[at..][..out.len()], weight, gate: None, out, eps });
    });
}

/// [`rms_norm`] in place, of each run of `weight.len()` values in `columns` of rows of `width`.
pub fn rms_norm_columns(x: &mut [f32], width: usize, columns: Range<usize>, weight: &[f32], eps: f32) {
    let run = weight.len();
    assert!(
        x.len().is_multiple_of(width) && columns.len().is_multiple_of(run),
        "runs of {run} in {columns:?}"
    );
    let work = 4 * x.len() / width * columns.len();
    for_each_chunk(x, width * (TASK_ELEMENTS / columns.len()).max(1), work, |_, rows| {
        for row in rows.chunks_exact_mut(width) {
            dispatch(NormInPlace { x: &mut row[columns.clone()], weight, eps });
        }
    });
}

/// `x += y`, element by element.
pub fn add<T: Scalar>(x: &mut [f32], y: &[T]) {
    assert_eq!(x.len(), y.len(), "x and y differ in length");
    // Memory-bound.
    for_each_chunk(x, TASK_ELEMENTS, 4 * y.len(), |i, x| {
        let y = &y[i * TASK_ELEMENTS..][..x.len()];
        dispatch(AddRows { x, y });
    });
}

/// [`rms_norm`] times `silu(gate)`, in float32, rounded once: the output of a gated delta rule.
pub fn gated_rms_norm<T: Scalar, W: Scalar>(x: &[T], gate: &[T], weight: &[W], out: &mut [T], eps: f32) {
    assert_eq!(gate.len(), x.len(), "x and gate differ in length");
    // An activation costs about 16 multiply-adds.
    for_each_rows(x.len(), weight, out, 4 + 16, |at, out| {
        let range = at..at + out.len();
        dispatch(NormRows { x: &x[range.clone()], weight, gate: Some(&gate[range]), out, eps });
    });
}

/// Calls `f` with some rows of `out` and their start; `work` is the multiply-adds per element.
fn for_each_rows<T: Scalar, W: Scalar>(
    length: usize,
    weight: &[W],
    out: &mut [T],
    work: usize,
    f: impl Fn(usize, &mut [T]) + Sync,
) {
    let row = weight.len();
    assert!(length == out.len() && length.is_multiple_of(row), "rows of {row} in {length}");
    let chunk = row * (TASK_ELEMENTS / row).max(1);
    for_each_chunk(out, chunk, work * length, |i, out| f(i * chunk, out));
}

struct NormRows<'a, T, W> {
    x: &'a [T],
    weight: &'a [W],
    gate: Option<&'a [T]>,
    out: &'a mut [T],
    eps: f32,
}

impl<T: Scalar, W: Scalar> WithSimd for NormRows<'_, T, W> {
    #[inline(always)]
    fn run(self) {
        let row = self.weight.len();
        for (i, (x, out)) in self.x.chunks_exact(row).zip(self.out.chunks_exact_mut(row)).enumerate() {
            let scale = row_factor(x, self.eps);
            for (chunk, out) in out.chunks_mut(LANES).enumerate() {
                let mut lanes = load_scalar(x, chunk);
                let weight = load_scalar(self.weight, chunk);
                for i in 0..LANES {
                    lanes[i] = lanes[i] * scale * weight[i];
                }
                if let Some(gate) = self.gate {
                    times_silu(&mut lanes, &load_scalar(&gate[i * row..][..row], chunk));
                }
                store_scalar(&lanes, out);
            }
        }
    }
}

struct NormInPlace<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl WithSimd for NormInPlace<'_> {
    #[inline(always)]
    fn run(self) {
        for run in self.x.chunks_exact_mut(self.weight.len()) {
            let scale = row_factor(run, self.eps);
            for (x, weight) in run.iter_mut().zip(self.weight) {
                *x = *x * scale * weight;
            }
        }
    }
}

/// The factor that normalises a row.
#[inline(always)]
fn row_factor<T: Scalar>(row: &[T], eps: f32) -> f32 {
    let mut sum = 0.0;
    for block in row.chunks(BLOCK) {
        let mut squares = [0.0; LANES];
        for chunk in 0..block.len().div_ceil(LANES) {
            let lanes = load_scalar(block, chunk);
            fma(&mut squares, &lanes, &lanes);
        }
        sum += reduce(&squares);
    }
    1.0 / (sum / row.len() as f32 + eps).sqrt()
}

#[inline(always)]
fn times_silu(lanes: &mut Lanes, gate: &Lanes) {
    for i in 0..LANES {
        lanes[i] *= silu(gate[i]);
    }
}

struct AddRows<'a, T> {
    x: &'a mut [f32],
    y: &'a [T],
}

impl<T: Scalar> WithSimd for AddRows<'_, T> {
    #[inline(always)]
    fn run(self) {
        for (x, y) in self.x.iter_mut().zip(self.y) {
            *x += y.to_f32();
        }
    }
}

//! Root-mean-square norm, alone or in front of a gate, and the sums that norms are of.

use std::ops::Range;

use crate::{
    lanes::{LANES, Lanes, fma, load_scalar, reduce, silu, store_scalar},
    parallel::for_each_chunk,
    scalar::Scalar,
    simd::{Work, vectorize},
};

/// Elements a thread takes at a time.
const BLOCK: usize = 1024;

/// `out = x / sqrt(mean(x²) + eps) * weight` per row of `weight.len()` values, in float32, rounded once.
pub fn rms_norm<T: Scalar, W: Scalar>(x: &[T], weight: &[W], out: &mut [T], eps: f32) {
    each_block(x.len(), weight, out, 4, |at, out| {
        vectorize(Rows { x: &x[at..][..out.len()], weight, gate: None, out, eps });
    });
}

/// [`rms_norm`] in place, of each run of `weight.len()` values in some columns of rows of `width`.
pub fn rms_norm_columns(x: &mut [f32], width: usize, columns: Range<usize>, weight: &[f32], eps: f32) {
    let run = weight.len();
    assert!(
        x.len().is_multiple_of(width) && columns.len().is_multiple_of(run),
        "runs of {run} in {columns:?}"
    );
    let work = 4 * x.len() / width * columns.len();
    for_each_chunk(x, width * (BLOCK / columns.len()).max(1), work, |_, rows| {
        for row in rows.chunks_exact_mut(width) {
            vectorize(InPlace { x: &mut row[columns.clone()], weight, eps });
        }
    });
}

/// `x += y`, element by element.
pub fn add<T: Scalar>(x: &mut [f32], y: &[T]) {
    assert_eq!(x.len(), y.len(), "x and y differ in length");
    // What it costs is memory's.
    for_each_chunk(x, BLOCK, 4 * y.len(), |i, x| {
        let y = &y[i * BLOCK..][..x.len()];
        vectorize(Add { x, y });
    });
}

/// [`rms_norm`] times `silu(gate)`, in float32, rounded once: the end of a gated delta rule.
pub fn gated_rms_norm<T: Scalar, W: Scalar>(x: &[T], gate: &[T], weight: &[W], out: &mut [T], eps: f32) {
    assert_eq!(gate.len(), x.len(), "x and gate differ in length");
    // An activation costs about as much as 16 multiply-adds.
    each_block(x.len(), weight, out, 4 + 16, |at, out| {
        let range = at..at + out.len();
        vectorize(Rows { x: &x[range.clone()], weight, gate: Some(&gate[range]), out, eps });
    });
}

/// Calls `f` with some rows of `out` at a time, and where they start; an element is so many multiply-adds of work.
fn each_block<T: Scalar, W: Scalar>(
    length: usize,
    weight: &[W],
    out: &mut [T],
    work: usize,
    f: impl Fn(usize, &mut [T]) + Sync,
) {
    let row = weight.len();
    assert!(length == out.len() && length.is_multiple_of(row), "rows of {row} in {length}");
    // A block of rows is worth a thread's while; a single one is not.
    let block = row * (BLOCK / row).max(1);
    for_each_chunk(out, block, work * length, |i, out| f(i * block, out));
}

struct Rows<'a, T, W> {
    x: &'a [T],
    weight: &'a [W],
    gate: Option<&'a [T]>,
    out: &'a mut [T],
    eps: f32,
}

impl<T: Scalar, W: Scalar> Work for Rows<'_, T, W> {
    #[inline(always)]
    fn run(self) {
        let row = self.weight.len();
        for (i, (x, out)) in self.x.chunks_exact(row).zip(self.out.chunks_exact_mut(row)).enumerate() {
            let scale = scale(x, self.eps);
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

struct InPlace<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl Work for InPlace<'_> {
    #[inline(always)]
    fn run(self) {
        for run in self.x.chunks_exact_mut(self.weight.len()) {
            let scale = scale(run, self.eps);
            for (x, weight) in run.iter_mut().zip(self.weight) {
                *x = *x * scale * weight;
            }
        }
    }
}

/// What a norm multiplies a row by.
#[inline(always)]
fn scale<T: Scalar>(row: &[T], eps: f32) -> f32 {
    let mut squares = [0.0; LANES];
    for chunk in 0..row.len().div_ceil(LANES) {
        let lanes = load_scalar(row, chunk);
        fma(&mut squares, &lanes, &lanes);
    }
    1.0 / (reduce(&squares) / row.len() as f32 + eps).sqrt()
}

#[inline(always)]
fn times_silu(lanes: &mut Lanes, gate: &Lanes) {
    for i in 0..LANES {
        lanes[i] *= silu(gate[i]);
    }
}

struct Add<'a, T> {
    x: &'a mut [f32],
    y: &'a [T],
}

impl<T: Scalar> Work for Add<'_, T> {
    #[inline(always)]
    fn run(self) {
        for (x, y) in self.x.iter_mut().zip(self.y) {
            *x += y.to_f32();
        }
    }
}

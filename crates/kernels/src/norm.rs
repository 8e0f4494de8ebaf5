//! Root-mean-square norm, alone, behind a residual sum, or in front of a gate.

use crate::{
    lanes::{LANES, Lanes, fma, load_scalar, reduce, silu, store_scalar},
    parallel::for_each_chunk,
    scalar::Scalar,
    shared::Parts,
    simd::{Work, vectorize},
};

/// `out = x / sqrt(mean(x²) + eps) * weight` per row of `weight.len()` values, in float32, rounded once.
pub fn rms_norm<T: Scalar, W: Scalar>(x: &[T], weight: &[W], out: &mut [T], eps: f32) {
    each_block(x.len(), weight, out, |at, out| {
        vectorize(Rows { x: &x[at..][..out.len()], weight, gate: None, out, eps });
    });
}

/// [`rms_norm`] of `sum`, which receives `x + residual`, rounded.
pub fn add_rms_norm<T: Scalar, W: Scalar>(
    x: &[T],
    residual: &[T],
    weight: &[W],
    sum: &mut [T],
    out: &mut [T],
    eps: f32,
) {
    assert_eq!((residual.len(), sum.len()), (x.len(), x.len()), "x, residual and sum differ in length");
    let sums = Parts::new(sum);
    each_block(x.len(), weight, out, |at, out| {
        let range = at..at + out.len();
        #[allow(unsafe_code, reason = "blocks write rows of their own")]
        // SAFETY: each row belongs to one block.
        let sum = unsafe { sums.part(at, out.len()) };
        vectorize(Add { x: &x[range.clone()], residual: &residual[range], sum });
        vectorize(Rows { x: sum, weight, gate: None, out, eps });
    });
}

/// [`rms_norm`] times `silu(gate)`, in float32, rounded once: the end of a gated delta rule.
pub fn gated_rms_norm<T: Scalar, W: Scalar>(x: &[T], gate: &[T], weight: &[W], out: &mut [T], eps: f32) {
    assert_eq!(gate.len(), x.len(), "x and gate differ in length");
    each_block(x.len(), weight, out, |at, out| {
        let range = at..at + out.len();
        vectorize(Rows { x: &x[range.clone()], weight, gate: Some(&gate[range]), out, eps });
    });
}

/// Calls `f` with some rows of `out` at a time, and where they start.
fn each_block<T: Scalar, W: Scalar>(
    length: usize,
    weight: &[W],
    out: &mut [T],
    f: impl Fn(usize, &mut [T]) + Sync,
) {
    let row = weight.len();
    assert!(length == out.len() && length.is_multiple_of(row), "rows of {row} in {length}");
    // A block of rows is worth a thread's while; a single one is not.
    let block = row * (4096 / row).max(1);
    for_each_chunk(out, block, 4 * length, |i, out| f(i * block, out));
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
            let mut squares = [0.0; LANES];
            for chunk in 0..row.div_ceil(LANES) {
                let lanes = load_scalar(x, chunk);
                fma(&mut squares, &lanes, &lanes);
            }
            let scale = 1.0 / (reduce(&squares) / row as f32 + self.eps).sqrt();
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

#[inline(always)]
fn times_silu(lanes: &mut Lanes, gate: &Lanes) {
    for i in 0..LANES {
        lanes[i] *= silu(gate[i]);
    }
}

struct Add<'a, T> {
    x: &'a [T],
    residual: &'a [T],
    sum: &'a mut [T],
}

impl<T: Scalar> Work for Add<'_, T> {
    #[inline(always)]
    fn run(self) {
        for ((sum, x), residual) in self.sum.iter_mut().zip(self.x).zip(self.residual) {
            *sum = T::from_f32(x.to_f32() + residual.to_f32());
        }
    }
}

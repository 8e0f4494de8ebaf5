//! Root-mean-square norm.

use crate::{
    lanes::{LANES, fma, reduce},
    parallel::for_each_chunk,
    scalar::Scalar,
    simd::{Work, vectorize},
};

/// `out = x / sqrt(mean(x²) + eps) * weight` per row of `weight.len()` values, in float32, rounded once.
pub fn rms_norm<T: Scalar, W: Scalar>(x: &[T], weight: &[W], out: &mut [T], eps: f32) {
    let row = weight.len();
    assert!(x.len() == out.len() && x.len().is_multiple_of(row), "rows of {row} in {}", x.len());
    // A block of rows is worth a thread's while; a single one is not.
    let block = row * (4096 / row).max(1);
    for_each_chunk(out, block, 4 * x.len(), |i, out| {
        vectorize(Rows { x: &x[i * block..][..out.len()], weight, out, eps });
    });
}

struct Rows<'a, T, W> {
    x: &'a [T],
    weight: &'a [W],
    out: &'a mut [T],
    eps: f32,
}

impl<T: Scalar, W: Scalar> Work for Rows<'_, T, W> {
    #[inline(always)]
    fn run(self) {
        let row = self.weight.len();
        for (x, out) in self.x.chunks_exact(row).zip(self.out.chunks_exact_mut(row)) {
            let mut squares = [0.0; LANES];
            for chunk in x.chunks(LANES) {
                let mut lanes = [0.0; LANES];
                for (lane, v) in lanes.iter_mut().zip(chunk) {
                    *lane = v.to_f32();
                }
                fma(&mut squares, &lanes, &lanes);
            }
            let scale = 1.0 / (reduce(&squares) / row as f32 + self.eps).sqrt();
            for ((out, x), w) in out.iter_mut().zip(x).zip(self.weight) {
                *out = T::from_f32(x.to_f32() * scale * w.to_f32());
            }
        }
    }
}

//! Layer norm (Ba et al., "Layer Normalization", 2016).

use crate::{
    lanes::{LANES, load_scalar, reduce},
    parallel::for_each_chunk,
    scalar::Scalar,
    simd::{WithSimd, dispatch},
};

/// Elements of a task.
const TASK_ELEMENTS: usize = 4096;

/// `out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias` per row of `weight.len()`
/// values, in float32, rounded once.
pub fn layer_norm<T: Scalar>(x: &[T], [weight, bias]: [&[f32]; 2], out: &mut [T], eps: f32) {
    let row = weight.len();
    assert!(x.len() == out.len() && x.len().is_multiple_of(row) && bias.len() == row, "rows of {row}");
    let chunk = row * (TASK_ELEMENTS / row).max(1);
    for_each_chunk(out, chunk, 6 * x.len(), |i, out| {
        let x = &x[i * chunk..][..out.len()];
        dispatch(NormRows { x, weight, bias, out, eps });
    });
}

struct NormRows<'a, T> {
    x: &'a [T],
    weight: &'a [f32],
    bias: &'a [f32],
    out: &'a mut [T],
    eps: f32,
}

impl<T: Scalar> WithSimd for NormRows<'_, T> {
    #[inline(always)]
    fn run(self) {
        let width = self.weight.len();
        for (out, x) in self.out.chunks_exact_mut(width).zip(self.x.chunks_exact(width)) {
            let mean = sum(x, |x| x) / width as f32;
            let variance = sum(x, |x| (x - mean) * (x - mean)) / width as f32;
            let factor = 1.0 / (variance + self.eps).sqrt();
            let parameters = self.weight.iter().zip(self.bias);
            for ((out, x), (weight, bias)) in out.iter_mut().zip(x).zip(parameters) {
                *out = T::from_f32(((x.to_f32() - mean) * factor).mul_add(*weight, *bias));
            }
        }
    }
}

/// The sum of `f` of a row's values, in sixteen lanes.
#[inline(always)]
fn sum<T: Scalar>(row: &[T], f: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0; LANES];
    for chunk in 0..row.len() / LANES {
        let values = load_scalar(row, chunk);
        for i in 0..LANES {
            sums[i] += f(values[i]);
        }
    }
    let rest = &row[row.len() / LANES * LANES..];
    rest.iter().zip(&mut sums).for_each(|(x, sum)| *sum += f(x.to_f32()));
    reduce(&sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layer_norm_matches_its_definition() {
        for width in [1, 7, 16, 50] {
            let x: Vec<f32> = (0..3 * width).map(|i| ((i * 37) % 23) as f32 - 5.0).collect();
            let weight: Vec<f32> = (0..width).map(|i| 1.0 + i as f32 / 10.0).collect();
            let bias: Vec<f32> = (0..width).map(|i| i as f32 - 3.0).collect();
            let mut out = vec![0.0; x.len()];
            layer_norm(&x, [&weight, &bias], &mut out, 1e-6);
            for (row, out) in x.chunks_exact(width).zip(out.chunks_exact(width)) {
                let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / width as f64;
                let variance = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / width as f64;
                for i in 0..width {
                    let normed = (f64::from(row[i]) - mean) / (variance + 1e-6).sqrt();
                    let expected = normed * f64::from(weight[i]) + f64::from(bias[i]);
                    assert!((f64::from(out[i]) - expected).abs() < 1e-4, "{width}: {} {expected}", out[i]);
                }
            }
        }
    }
}

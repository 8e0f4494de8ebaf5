//! Gaussian error linear units (Hendrycks & Gimpel, 2016), element by element.

use crate::{
    gated::gelu_tanh,
    lanes::exp,
    parallel::for_each_chunk,
    scalar::Scalar,
    simd::{WithSimd, dispatch},
};

/// Elements of a task.
const TASK_ELEMENTS: usize = 1024;

/// How the Gaussian distribution is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gelu {
    /// `x / 2 * (1 + erf(x / √2))`
    Exact,
    /// By `tanh`, as [`Activation::GeluTanh`](crate::Activation::GeluTanh).
    Tanh,
}

/// `out = gelu(x)` in float32, rounded once.
pub fn gelu<T: Scalar>(x: &[T], out: &mut [T], kind: Gelu) {
    assert_eq!(x.len(), out.len(), "x and out differ in length");
    // A gelu costs about 20 multiply-adds.
    for_each_chunk(out, TASK_ELEMENTS, 20 * x.len(), |i, out| {
        let x = &x[i * TASK_ELEMENTS..][..out.len()];
        dispatch(GeluElements { x, out, kind });
    });
}

struct GeluElements<'a, T> {
    x: &'a [T],
    out: &'a mut [T],
    kind: Gelu,
}

impl<T: Scalar> WithSimd for GeluElements<'_, T> {
    #[inline(always)]
    fn run(self) {
        let pairs = self.out.iter_mut().zip(self.x);
        match self.kind {
            Gelu::Exact => pairs.for_each(|(out, x)| *out = T::from_f32(gelu_exact(x.to_f32()))),
            Gelu::Tanh => pairs.for_each(|(out, x)| *out = T::from_f32(gelu_tanh(x.to_f32()))),
        }
    }
}

#[inline(always)]
fn gelu_exact(x: f32) -> f32 {
    let tail = 0.5 * erfc(x.abs() * std::f32::consts::FRAC_1_SQRT_2);
    x * if x >= 0.0 { 1.0 - tail } else { tail }
}

/// Coefficients of `ln(erfc(x) / t) + x²` in `t = 1 / (1 + x / 2)`, the highest power first (the
/// Chebyshev fit of "Numerical Recipes", §6.2).
pub const ERFC_FIT: [f32; 10] = [
    0.170_872_77,
    -0.822_152_2,
    1.488_515_9,
    -1.135_204,
    0.278_868_07,
    -0.186_288_06,
    0.096_784_18,
    0.374_091_96,
    1.000_023_7,
    -1.265_512_2,
];

/// `1 - erf(x)` for `x >= 0`, to a relative error of about 1e-6.
#[inline(always)]
fn erfc(x: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.5 * x);
    let [mut fit, rest @ ..] = ERFC_FIT;
    for coefficient in rest {
        fit = fit.mul_add(t, coefficient);
    }
    t * exp(fit - x * x)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the series `erf(x) = 2/√π Σ (-1)ⁿ x²ⁿ⁺¹ / (n! (2n + 1))`.
    fn exact(x: f64) -> f64 {
        let z = x / 2f64.sqrt();
        let (mut power, mut sum) = (z, 0.0);
        for n in 0..200 {
            sum += power / f64::from(2 * n + 1);
            power *= -z * z / f64::from(n + 1);
        }
        x / 2.0 * (1.0 + sum * 2.0 / std::f64::consts::PI.sqrt())
    }

    #[test]
    fn gelu_is_within_a_millionth_of_exact() {
        let x: Vec<f32> = (-500..=500).map(|i| i as f32 / 100.0).collect();
        let mut out = vec![0.0; x.len()];
        gelu(&x, &mut out, Gelu::Exact);
        for (x, out) in x.iter().zip(&out) {
            let expected = exact(f64::from(*x));
            assert!((f64::from(*out) - expected).abs() < 1e-6, "{x}: {out}, not {expected}");
        }
        let mut ends = [0.0; 3];
        gelu(&[-40.0f32, 0.0, 40.0], &mut ends, Gelu::Exact);
        assert_eq!(ends, [-0.0, 0.0, 40.0]);
    }
}

//! Gates: sigmoids that scale values, and what a Gated DeltaNet makes of its two gate projections.

use crate::{
    lanes::exp,
    scalar::Scalar,
    simd::{Work, vectorize},
};

/// `values *= sigmoid(gates)`, in float32, rounded once.
pub fn scale_by_sigmoid<T: Scalar>(values: &mut [T], gates: &[T]) {
    assert_eq!(values.len(), gates.len(), "a gate for each value");
    vectorize(Scaled { values, gates });
}

/// Decay and step of a delta rule, per token and head: `g = exp(neg_exp_a * softplus(a + dt_bias))`,
/// `beta = sigmoid(b)` (Yang et al., "Gated Delta Networks", 2024). `a`, `b`, `g`, `beta` `[tokens, heads]`;
/// `neg_exp_a`, `dt_bias` `[heads]`.
pub fn delta_gates(
    a: &[f32],
    b: &[f32],
    neg_exp_a: &[f32],
    dt_bias: &[f32],
    g: &mut [f32],
    beta: &mut [f32],
) {
    let heads = neg_exp_a.len();
    assert!(dt_bias.len() == heads && a.len().is_multiple_of(heads), "{heads} heads in {}", a.len());
    assert_eq!((b.len(), g.len(), beta.len()), (a.len(), a.len(), a.len()), "gates differ in length");
    for (i, g) in g.iter_mut().enumerate() {
        let head = i % heads;
        *g = exp(neg_exp_a[head] * softplus(a[i] + dt_bias[head]));
    }
    for (beta, b) in beta.iter_mut().zip(b) {
        *beta = sigmoid(*b);
    }
}

struct Scaled<'a, T> {
    values: &'a mut [T],
    gates: &'a [T],
}

impl<T: Scalar> Work for Scaled<'_, T> {
    #[inline(always)]
    fn run(self) {
        for (value, gate) in self.values.iter_mut().zip(self.gates) {
            *value = T::from_f32(value.to_f32() * sigmoid(gate.to_f32()));
        }
    }
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    // exp's argument stays at or below 0.
    let e = exp(-x.abs());
    if x >= 0.0 { 1.0 / (1.0 + e) } else { e / (1.0 + e) }
}

/// `ln(1 + exp(x))`, without overflow.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + exp(-x.abs()).ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINTS: [f32; 11] = [-95.0, -20.0, -3.0, -0.5, -1e-4, 0.0, 1e-4, 0.7, 4.0, 30.0, 95.0];

    #[test]
    fn sigmoids_and_softplus_match_their_definitions() {
        for x in POINTS {
            let exact = 1.0 / (1.0 + (-f64::from(x)).exp());
            assert!((f64::from(sigmoid(x)) - exact).abs() <= 3e-7 * exact + 1e-37, "sigmoid({x})");
            let exact = f64::from(x).max(0.0) + (-f64::from(x).abs()).exp().ln_1p();
            assert!((f64::from(softplus(x)) - exact).abs() <= 3e-7 * exact + 1e-37, "softplus({x})");
        }
    }

    #[test]
    fn gates_of_each_head_use_that_heads_numbers() {
        let (a, b) = ([0.5, -2.0, 3.0, 0.0], [1.0, -1.0, 0.0, 9.0]);
        let (neg_exp_a, dt_bias) = ([-0.5, -3.0], [0.25, -0.75]);
        let (mut g, mut beta) = ([0.0; 4], [0.0; 4]);
        delta_gates(&a, &b, &neg_exp_a, &dt_bias, &mut g, &mut beta);
        for i in 0..4 {
            let head = i % 2;
            let expected = (neg_exp_a[head] * (1.0 + (a[i] + dt_bias[head]).exp()).ln()).exp();
            assert!((g[i] - expected).abs() < 1e-6, "decay {i}: {} for {expected}", g[i]);
            assert!((beta[i] - 1.0 / (1.0 + (-b[i]).exp())).abs() < 1e-6, "step {i}");
        }
    }

    #[test]
    fn values_are_scaled_by_their_own_gates() {
        let mut values = vec![2.0f32; POINTS.len()];
        scale_by_sigmoid(&mut values, &POINTS);
        for (value, x) in values.iter().zip(POINTS) {
            assert!((value - 2.0 / (1.0 + (-x).exp())).abs() < 1e-6, "gate {x}: {value}");
        }
    }
}

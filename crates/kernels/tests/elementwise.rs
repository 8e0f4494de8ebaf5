//! Norms, gates and choices of the largest, against their definitions.

mod common;

use common::*;
use half::{bf16, f16};
use kernels::*;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn top_k_sorts_like_a_stable_sort(
        rows in 1usize..6, columns in 1usize..300, k in 0usize..300, steps in 1usize..40, seed in 0u64..1000,
    ) {
        let k = k.min(columns);
        // Few distinct values, both zeros, infinities and NaN among them.
        let odd = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0];
        let score = |word: u32| match word as usize % (steps + odd.len()) {
            i if i < odd.len() => odd[i],
            i => (i as f32 - steps as f32 / 2.0) / 8.0,
        };
        let scores: Vec<f32> = random_words(seed, rows * columns).into_iter().map(score).collect();
        check_top_k::<f32>(&scores, columns, k);
        check_top_k::<f16>(&scores, columns, k);
        check_top_k::<bf16>(&scores, columns, k);
    }

    #[test]
    fn gated_is_its_definition(n in 1usize..200, size in 1usize..5, seed in 0u64..1000) {
        for activation in [Activation::Silu, Activation::GeluTanh] {
            check_gated::<f32>(n, 4.0 * size as f32, activation, seed);
            check_gated::<f16>(n, 4.0 * size as f32, activation, seed);
            check_gated::<bf16>(n, 4.0 * size as f32, activation, seed);
        }
    }
}

fn check_top_k<T: Float>(scores: &[f32], columns: usize, k: usize) {
    let scores: Vec<T> = scores.iter().map(|&s| T::from_f32(s)).collect();
    let mut got = vec![u32::MAX; scores.len() / columns * k];
    top_k(&scores, columns, k, &mut got);
    let sorted = |row: &[T]| {
        let mut indices: Vec<u32> = (0..columns as u32).collect();
        let score = |i: u32| row[i as usize].to_f32();
        indices.sort_by(|&a, &b| match (score(a).is_nan(), score(b).is_nan()) {
            (false, false) => score(b).partial_cmp(&score(a)).expect("numbers"),
            (a, b) => a.cmp(&b),
        });
        indices.truncate(k);
        indices
    };
    let expected: Vec<u32> = scores.chunks(columns).flat_map(sorted).collect();
    assert_eq!(got, expected);
}

fn check_gated<T: Float>(n: usize, size: f32, activation: Activation, seed: u64) {
    let gate = noise::<f32>(seed, n).into_iter().map(|x| T::from_f32(x * size)).collect::<Vec<T>>();
    let up = noise::<T>(seed + 1, n);
    let mut out = unwritten::<T>(n);
    gated(&gate, &up, &mut out, activation);
    let act = |x: f64| match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            x / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
    };
    let exact: Vec<f64> = wide(&gate).into_iter().zip(wide(&up)).map(|(g, u)| act(g) * u).collect();
    close(&out, &exact, 2e-6);
}

#[test]
fn a_long_gate_is_its_parts() {
    let (gate, up) = (noise::<f32>(1, 50_000), noise::<f32>(2, 50_000));
    let mut out = unwritten::<f32>(gate.len());
    gated(&gate, &up, &mut out, Activation::GeluTanh);
    for at in (0..gate.len()).step_by(777) {
        let mut one = unwritten::<f32>(1);
        gated(&gate[at..=at], &up[at..=at], &mut one, Activation::GeluTanh);
        assert_eq!(bits(&one), bits(&out[at..=at]));
    }
}

#[test]
fn rms_norm_in_half_precision_rounds_once() {
    let (x, weight) = (noise::<bf16>(4, 3 * 50), noise::<f32>(5, 50));
    let mut out = unwritten::<bf16>(x.len());
    rms_norm(&x, &weight, &mut out, 1e-6);
    let mut exact = wide(&x);
    for row in exact.chunks_mut(50) {
        let mean = row.iter().map(|v| v * v).sum::<f64>() / 50.0;
        row.iter_mut().zip(&weight).for_each(|(x, w)| *x *= *w as f64 / (mean + 1e-6).sqrt());
    }
    close(&out, &exact, 1e-6);
}

//! Norms, gates and top-k, against their definitions.

use crate::support::*;
use half::{bf16, f16};
use lanner_kernels::*;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn top_k_matches_a_stable_sort(
        rows in 1usize..6, columns in prop_oneof![1usize..300, 4000usize..6000], k in 0usize..60,
        steps in 1usize..40, seed in 0u64..1000,
    ) {
        let k = k.min(columns);
        // Few distinct values, including both zeros, infinities and NaN.
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
    fn gated_matches_its_definition(n in 1usize..200, size in 1usize..5, seed in 0u64..1000) {
        for activation in [Activation::Silu, Activation::GeluTanh, Activation::ClampedSwish { limit: 1.5 }] {
            check_gated::<f32>(n, 4.0 * size as f32, activation, seed);
            check_gated::<f16>(n, 4.0 * size as f32, activation, seed);
            check_gated::<bf16>(n, 4.0 * size as f32, activation, seed);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn norms_match_their_definitions_and_are_row_invariant(rows in 1usize..40, row in 1usize..200, seed in 0u64..1000) {
        check_norms::<f32>(rows, row, seed);
        check_norms::<f16>(rows, row, seed);
        check_norms::<bf16>(rows, row, seed);
    }

    #[test]
    fn sigmoid_and_delta_gates_match_their_definitions(rows in 1usize..40, dim in 1usize..70, gap in 0usize..70, seed in 0u64..1000) {
        check_sigmoid_gated::<f32>(rows, dim, gap, seed);
        check_sigmoid_gated::<f16>(rows, dim, gap, seed);
        check_sigmoid_gated::<bf16>(rows, dim, gap, seed);
        check_delta_gates::<f32>(rows, dim, seed);
        check_delta_gates::<bf16>(rows, dim, seed);
    }
}

/// Each norm against float64, and each row against itself alone.
fn check_norms<T: Float>(rows: usize, row: usize, seed: u64) {
    let (x, other, weight) =
        (noise::<T>(seed, rows * row), noise::<T>(seed + 1, rows * row), noise::<f32>(seed + 2, row));
    let norm = |x: &[f64]| -> Vec<f64> {
        let scale = |x: &[f64]| 1.0 / (x.iter().map(|v| v * v).sum::<f64>() / row as f64 + 1e-6).sqrt();
        x.chunks(row)
            .flat_map(|x| x.iter().zip(&weight).map(|(v, w)| v * *w as f64 * scale(x)).collect::<Vec<_>>())
            .collect()
    };
    let (mut plain, mut gated) = (unwritten::<T>(x.len()), unwritten::<T>(x.len()));
    rms_norm(&x, &weight, &mut plain, 1e-6);
    close(&plain, &norm(&wide(&x)), 1e-6);
    gated_rms_norm(&x, &other, &weight, &mut gated, 1e-6);
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let exact: Vec<f64> = norm(&wide(&x)).iter().zip(wide(&other)).map(|(x, gate)| x * silu(gate)).collect();
    close(&gated, &exact, 1e-6);
    let mut sum: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
    add(&mut sum, &other);
    let exact: Vec<f64> = wide(&x).iter().zip(wide(&other)).map(|(x, y)| x + y).collect();
    close(&sum, &exact, 0.0);
    // In place, the middle columns of rows three times as wide.
    let mut packed = unwritten::<f32>(x.len());
    rms_norm(&sum, &weight, &mut packed, 1e-6);
    let mut middle: Vec<f32> = sum.chunks(row).flat_map(|x| [x, x, x].concat()).collect();
    rms_norm_columns(&mut middle, 3 * row, row..2 * row, &weight, 1e-6);
    let expected = sum.chunks(row).zip(packed.chunks(row)).flat_map(|(x, normed)| [x, normed, x].concat());
    assert_eq!(bits(&middle), bits(&expected.collect::<Vec<f32>>()));
    for at in (0..x.len()).step_by(row) {
        let mut alone = unwritten::<T>(row);
        rms_norm(&x[at..][..row], &weight, &mut alone, 1e-6);
        assert_eq!(bits(&alone), bits(&plain[at..][..row]));
        gated_rms_norm(&x[at..][..row], &other[at..][..row], &weight, &mut alone, 1e-6);
        assert_eq!(bits(&alone), bits(&gated[at..][..row]));
    }
}

/// Rows of gates are further apart than their length: each follows its head's query.
fn check_sigmoid_gated<T: Float>(rows: usize, dim: usize, gap: usize, seed: u64) {
    let x = noise::<T>(seed, rows * dim);
    let gate: Vec<T> =
        noise::<f32>(seed + 1, rows * (dim + gap)).iter().map(|g| T::from_f32(8.0 * g)).collect();
    let mut out = x.clone();
    sigmoid_gated(&mut out, &gate, dim + gap, dim);
    let gates = gate.chunks(dim + gap).flat_map(|row| wide(&row[..dim]));
    let exact: Vec<f64> = wide(&x).iter().zip(gates).map(|(x, g)| x / (1.0 + (-g).exp())).collect();
    close(&out, &exact, 1e-6);
}

fn check_delta_gates<T: Float>(tokens: usize, heads: usize, seed: u64) {
    let n = tokens * heads;
    let spread =
        |seed, n| -> Vec<T> { noise::<f32>(seed, n).iter().map(|v| T::from_f32(20.0 * v)).collect() };
    let (a, b, bias) = (spread(seed, n), spread(seed + 1, n), noise::<f32>(seed + 2, heads));
    let rate: Vec<f32> = noise::<f32>(seed + 3, heads).iter().map(|r| -4.0 - 4.0 * r).collect();
    let (mut decay, mut beta) = (unwritten::<f32>(n), unwritten::<f32>(n));
    delta_gates([&a, &b], &rate, &bias, &mut decay, &mut beta);
    for i in 0..n {
        let (a, b) = ((a[i].to_f32() + bias[i % heads]) as f64, b[i].to_f32() as f64);
        let exact = (rate[i % heads] as f64 * (a.max(0.0) + (-a.abs()).exp().ln_1p())).exp();
        assert!((decay[i] as f64 - exact).abs() < 1e-6, "decay {} for {exact}", decay[i]);
        assert!((beta[i] as f64 - 1.0 / (1.0 + (-b).exp())).abs() < 1e-6, "beta {}", beta[i]);
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
    let gated = |(x, up): (f64, f64)| match activation {
        Activation::Silu => x / (1.0 + (-x).exp()) * up,
        Activation::GeluTanh => {
            x / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh()) * up
        }
        Activation::ClampedSwish { limit } => {
            let (x, limit) = (x.min(f64::from(limit)), f64::from(limit));
            x / (1.0 + (-1.702 * x).exp()) * (up.clamp(-limit, limit) + 1.0)
        }
    };
    let exact: Vec<f64> = wide(&gate).into_iter().zip(wide(&up)).map(gated).collect();
    close(&out, &exact, 2e-6);
}

#[test]
fn softcap_matches_its_definition() {
    let x: Vec<f32> = noise::<f32>(3, 2500).into_iter().map(|x| 40.0 * x).collect();
    let mut out = unwritten::<f32>(x.len());
    softcap(&x, &mut out, 15.0);
    let exact: Vec<f64> = wide(&x).into_iter().map(|x| 15.0 * (x / 15.0).tanh()).collect();
    close(&out, &exact, 4e-6);
    let mut rounded = unwritten::<bf16>(x.len());
    let x: Vec<bf16> = x.into_iter().map(bf16::from_f32).collect();
    softcap(&x, &mut rounded, 15.0);
    let exact: Vec<f64> = wide(&x).into_iter().map(|x| 15.0 * (x / 15.0).tanh()).collect();
    close(&rounded, &exact, 4e-6);
}

#[test]
fn gated_of_a_long_input_matches_its_parts() {
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
fn rms_norm_in_bfloat16_rounds_once() {
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

//! Grouped products, against the plain product of each row with its matrix, bit for bit.

use crate::support::{
    weights::{AffineParts, FloatParts, matrix},
    *,
};
use half::bf16;
use lanner_kernels::{Precision::*, *};
use proptest::prelude::*;

/// Tokens, output rows per token, experts, groups, out.
type Sizes = (usize, usize, usize, usize, usize);

fn sizes() -> impl Strategy<Value = Sizes> {
    (0usize..60, 1usize..4, 1usize..9, 1usize..4, 1usize..70)
}

fn choices(seed: u64, rows: usize, experts: usize) -> Vec<u32> {
    random_words(seed, rows).into_iter().map(|word| word % experts as u32).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn grouped_linear_of_dense_weights_matches_linear((tokens, per_row, experts, groups, n) in sizes(), tail in 0usize..17, seed in 0u64..1000) {
        let k = 16 * groups + tail;
        let (full, half) = (noise::<f32>(seed, experts * n * k), noise::<bf16>(seed, experts * n * k));
        check([tokens, per_row, experts, k, n], seed, Weight::Dense(Floats::F32(&full)));
        check([tokens, per_row, experts, k, n], seed, Weight::Dense(Floats::Bf16(&half)));
    }

    #[test]
    fn grouped_linear_of_affine_weights_matches_linear(
        (tokens, per_row, experts, groups, n) in sizes(), seed in 0u64..1000,
        bits in prop::sample::select(vec![2usize, 3, 4, 5, 6, 8]),
    ) {
        let parts = AffineParts::random(seed, experts * n, groups, 32, bits);
        check([tokens, per_row, experts, parts.k, n], seed, parts.weight());
    }

    #[test]
    fn grouped_linear_of_microscaled_weights_matches_linear(
        (tokens, per_row, experts, groups, n) in sizes(), seed in 0u64..1000,
        format in prop::sample::select(vec![FloatFormat::Mxfp4, FloatFormat::Mxfp8, FloatFormat::Nvfp4]),
    ) {
        let parts = FloatParts::random(seed, experts * n, groups, format);
        check([tokens, per_row, experts, parts.k, n], seed, parts.weight());
    }
}

fn check([tokens, per_row, experts, k, n]: [usize; 5], seed: u64, stack: Weight) {
    let x = noise::<f32>(seed + 9, tokens * k);
    let chosen = choices(seed, tokens * per_row, experts);
    for precision in [Float32, Rounded, Int8] {
        let mut out = unwritten::<f32>(chosen.len() * n);
        grouped_linear(&x, stack, &chosen, per_row, &mut out, k, n, precision);
        for (r, (&expert, out)) in chosen.iter().zip(out.chunks(n)).enumerate() {
            let mut alone = unwritten(n);
            let weight = matrix(&stack, expert as usize, n, k);
            linear(&x[r / per_row * k..][..k], weight, &mut alone, k, n, precision);
            assert_eq!(bits(&alone), bits(out), "row {r} with expert {expert}");
        }
    }
}

/// Enough work for threads, with experts of many rows and experts of none.
#[test]
fn grouped_linear_of_a_long_prompt_over_uneven_experts_matches_linear() {
    let (experts, k, n, per_row) = (64, 64, 72, 4);
    let weight = noise::<bf16>(1, experts * n * k);
    let weight = Weight::Dense(Floats::Bf16(&weight));
    let x = noise::<f32>(2, 300 * k);
    let chosen: Vec<u32> =
        random_words(3, 300 * per_row).into_iter().map(|w| (w % 64 * (w % 7)) % 64).collect();
    for precision in [Float32, Rounded, Int8] {
        let mut out = unwritten::<f32>(chosen.len() * n);
        grouped_linear(&x, weight, &chosen, per_row, &mut out, k, n, precision);
        for (r, out) in out.chunks(n).enumerate() {
            let mut alone = unwritten::<f32>(n);
            let one = matrix(&weight, chosen[r] as usize, n, k);
            linear(&x[r / per_row * k..][..k], one, &mut alone, k, n, precision);
            assert_eq!(bits(&alone), bits(out));
        }
    }
}

/// One matrix per head, as in the query projection of latent attention: `x` `[tokens * heads, k]`.
#[test]
fn grouped_linear_with_one_matrix_per_head_matches_float64() {
    let (heads, tokens, k, n) = (128, 3, 32, 24);
    let weight = noise::<f32>(1, heads * n * k);
    let x = noise::<f32>(2, tokens * heads * k);
    let chosen: Vec<u32> = (0..tokens * heads).map(|r| (r % heads) as u32).collect();
    let mut out = unwritten::<f32>(chosen.len() * n);
    grouped_linear(&x, Weight::Dense(Floats::F32(&weight)), &chosen, 1, &mut out, k, n, Float32);
    let exact: Vec<f64> = (0..out.len())
        .map(|i| {
            let (x, w) = (&x[i / n * k..][..k], &weight[(i / n % heads * n + i % n) * k..][..k]);
            x.iter().zip(w).map(|(a, b)| *a as f64 * *b as f64).sum()
        })
        .collect();
    close(&out, &exact, 1e-5);
}

#[test]
#[should_panic(expected = "expert 3 of 3 does not exist")]
fn grouped_linear_names_an_expert_that_does_not_exist() {
    let weight = Weight::Dense(Floats::F32(&[1.0; 12]));
    grouped_linear(&[1.0; 4], weight, &[0, 3], 1, &mut [0.0; 4], 2, 2, Float32);
}

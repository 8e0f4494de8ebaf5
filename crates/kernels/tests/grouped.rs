//! Grouped products: every row has the bits of the plain product with its own matrix.

mod common;

use common::{
    weights::{AffineParts, FloatParts, layout},
    *,
};
use half::bf16;
use kernels::*;
use proptest::prelude::*;

/// Tokens, output rows per token, experts, in, out.
type Sizes = (usize, usize, usize, usize, usize);

fn sizes() -> impl Strategy<Value = Sizes> {
    (0usize..30, 1usize..4, 1usize..9, 1usize..4, 1usize..70)
}

fn choices(seed: u64, rows: usize, experts: usize) -> Vec<u32> {
    random_words(seed, rows).into_iter().map(|word| word % experts as u32).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn grouped_linear_is_linear_row_by_row(sizes in sizes(), tail in 0usize..17, seed in 0u64..1000) {
        check_dense::<f32, f32>(sizes, tail, seed);
        check_dense::<bf16, bf16>(sizes, tail, seed);
        check_dense::<bf16, f32>(sizes, tail, seed);
    }

    #[test]
    fn grouped_affine_linear_is_quantized_linear_row_by_row(
        (tokens, per_row, experts, groups, n) in sizes(), seed in 0u64..1000,
        bits in prop::sample::select(vec![2usize, 3, 4, 5, 6, 8]),
    ) {
        let parts = AffineParts::random(seed, experts * n, groups, 32, bits);
        let weight = parts.weight();
        let k = parts.k;
        let (words, scales) = (n * k * bits / 32, n * groups);
        let one = |e: usize| Affine {
            codes: &weight.codes[e * words..][..words],
            scales: &weight.scales[e * scales..][..scales],
            biases: &weight.biases[e * scales..][..scales],
            ..weight
        };
        check::<bf16>([tokens, per_row, experts, k, n], seed,
            |x, chosen, out| grouped_affine_linear(x, weight, chosen, per_row, out, k, n),
            |x, e, out| quantized_linear(x, one(e), out, k, n));
    }

    #[test]
    fn grouped_microscaled_linear_is_microscaled_linear_row_by_row(
        (tokens, per_row, experts, groups, n) in sizes(), seed in 0u64..1000,
        format in prop::sample::select(vec![FloatFormat::Mxfp4, FloatFormat::Mxfp8, FloatFormat::Nvfp4]),
    ) {
        let parts = FloatParts::random(seed, experts * n, groups, format);
        let weight = parts.weight();
        let k = parts.k;
        let (words, scales) = (n * k * layout(format).0 / 32, n * groups);
        let one = |e: usize| Microscaled {
            codes: &weight.codes[e * words..][..words],
            scales: &weight.scales[e * scales..][..scales],
            format,
        };
        check::<f32>([tokens, per_row, experts, k, n], seed,
            |x, chosen, out| grouped_microscaled_linear(x, weight, chosen, per_row, out, k, n),
            |x, e, out| microscaled_linear(x, one(e), out, k, n));
    }
}

fn check_dense<X: Float, W: Float>((tokens, per_row, experts, k, n): Sizes, tail: usize, seed: u64) {
    let k = 16 * k + tail;
    let weight = noise::<W>(seed + 1, experts * n * k);
    check::<X>(
        [tokens, per_row, experts, k, n],
        seed,
        |x, chosen, out| grouped_linear(x, &weight, chosen, per_row, out, k, n),
        |x, e, out| linear(x, &weight[e * n * k..][..n * k], out, k, n),
    );
}

fn check<X: Float>(
    [tokens, per_row, experts, k, n]: [usize; 5],
    seed: u64,
    grouped: impl Fn(&[X], &[u32], &mut [X]),
    single: impl Fn(&[X], usize, &mut [X]),
) {
    let x = noise::<X>(seed + 9, tokens * k);
    let chosen = choices(seed, tokens * per_row, experts);
    let mut out = unwritten::<X>(chosen.len() * n);
    grouped(&x, &chosen, &mut out);
    for (r, (&expert, out)) in chosen.iter().zip(out.chunks(n)).enumerate() {
        let mut alone = unwritten::<X>(n);
        single(&x[r / per_row * k..][..k], expert as usize, &mut alone);
        assert_eq!(bits(&alone), bits(out), "row {r} with expert {expert}");
    }
}

/// Enough work for threads, with experts that many rows chose and experts that none did.
#[test]
fn a_long_prompt_over_uneven_experts() {
    let (experts, k, n, per_row) = (64, 48, 72, 4);
    let weight = noise::<f32>(1, experts * n * k);
    let x = noise::<f32>(2, 300 * k);
    let chosen: Vec<u32> =
        random_words(3, 300 * per_row).into_iter().map(|w| (w % 64 * (w % 7)) % 64).collect();
    let mut out = unwritten::<f32>(chosen.len() * n);
    grouped_linear(&x, &weight, &chosen, per_row, &mut out, k, n);
    for (r, out) in out.chunks(n).enumerate() {
        let mut alone = unwritten::<f32>(n);
        let matrix = &weight[chosen[r] as usize * n * k..][..n * k];
        linear(&x[r / per_row * k..][..k], matrix, &mut alone, k, n);
        assert_eq!(bits(&alone), bits(out));
    }
}

/// One matrix per head, as latent attention projects its queries: `x` `[tokens * heads, k]`.
#[test]
fn a_matrix_for_each_of_many_heads() {
    let (heads, tokens, k, n) = (128, 3, 32, 24);
    let weight = noise::<f32>(1, heads * n * k);
    let x = noise::<f32>(2, tokens * heads * k);
    let chosen: Vec<u32> = (0..tokens * heads).map(|r| (r % heads) as u32).collect();
    let mut out = unwritten::<f32>(chosen.len() * n);
    grouped_linear(&x, &weight, &chosen, 1, &mut out, k, n);
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
fn an_expert_that_does_not_exist_is_named() {
    grouped_linear(&[1.0f32; 4], &[1.0f32; 12], &[0, 3], 1, &mut [0.0f32; 4], 2, 2);
}

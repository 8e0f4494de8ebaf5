//! The delta rule and its convolution, against float64 and against themselves in pieces.

use crate::support::*;
use half::{bf16, f16};
use lanner_kernels::*;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn gated_delta_in_pieces_matches_gated_delta_at_once(
        tokens in 1usize..12, split in 0usize..12, value_dim in 1usize..70,
        key_dim in prop_oneof![1usize..40, prop::sample::select(vec![64usize, 128, 144])],
        by_channel in any::<bool>(), seed in 0u64..1000,
    ) {
        let shape = DeltaShape { tokens, key_heads: 2, value_heads: 4, key_dim, value_dim };
        check_delta::<f32>(shape, split.min(tokens), by_channel, seed);
        check_delta::<f16>(shape, split.min(tokens), by_channel, seed);
        check_delta::<bf16>(shape, split.min(tokens), by_channel, seed);
    }

    #[test]
    fn gated_delta_speculative_matches_one_token_at_a_time(
        uncommitted in 0usize..5, committed in 0usize..4, draft in 0usize..9, value_dim in 1usize..70,
        key_dim in prop_oneof![1usize..40, prop::sample::select(vec![64usize, 128, 144])],
        by_channel in any::<bool>(), seed in 0u64..1000,
    ) {
        let shape = DeltaShape { tokens: uncommitted + committed + draft, key_heads: 2, value_heads: 4, key_dim, value_dim };
        check_speculative(shape, uncommitted, committed, by_channel, seed);
    }

    #[test]
    fn causal_conv_in_pieces_matches_causal_conv_at_once(
        channels in prop_oneof![1usize..40, 250usize..300], tokens in 1usize..9, width in 1usize..11, seed in 0u64..1000,
        activation in prop::sample::select(vec![ConvActivation::None, ConvActivation::Silu]),
    ) {
        check_conv::<f32>(channels, tokens, width, activation, seed);
        check_conv::<f16>(channels, tokens, width, activation, seed);
        check_conv::<bf16>(channels, tokens, width, activation, seed);
    }
}

/// Numbers in [0, 1).
fn fractions(seed: u64, n: usize) -> Vec<f32> {
    noise::<f32>(seed, n).into_iter().map(|x| x * 0.5 + 0.5).collect()
}

/// Keys of length one, as in models: with longer keys the rule amplifies rounding errors.
fn keys<T: Scalar>(seed: u64, n: usize, key_dim: usize) -> Vec<T> {
    let mut keys = noise::<f32>(seed, n);
    for key in keys.chunks_exact_mut(key_dim) {
        let length = key.iter().map(|x| x * x).sum::<f32>().sqrt();
        key.iter_mut().for_each(|x| *x /= length);
    }
    keys.into_iter().map(T::from_f32).collect()
}

/// The usual draft. With multiples of 16 rows, the state is not copied.
#[test]
fn gated_delta_speculative_of_one_draft_token_keeps_the_state() {
    for (value_dim, key_dim) in [(64, 64), (36, 128), (37, 64), (64, 24)] {
        for (uncommitted, committed) in [(0, 1), (1, 1), (2, 1), (4, 1), (0, 0)] {
            let tokens = uncommitted + committed + 1;
            let shape = DeltaShape { tokens, key_heads: 2, value_heads: 4, key_dim, value_dim };
            check_speculative(shape, uncommitted, committed, false, 5);
        }
    }
}

#[test]
fn gated_delta_speculative_without_tokens_keeps_the_state() {
    check_speculative(
        DeltaShape { tokens: 0, key_heads: 2, value_heads: 4, key_dim: 64, value_dim: 37 },
        0,
        0,
        false,
        5,
    );
}

fn check_delta<T: Float>(shape: DeltaShape, split: usize, by_channel: bool, seed: u64) {
    let DeltaShape { tokens, key_dim, value_dim, .. } = shape;
    let (q, k) = (noise::<T>(seed, tokens * 2 * key_dim), keys::<T>(seed + 1, tokens * 2 * key_dim, key_dim));
    let v = noise::<T>(seed + 2, tokens * 4 * value_dim);
    let start = noise::<f32>(seed + 3, 4 * value_dim * key_dim);
    let decays = 4 * if by_channel { key_dim } else { 1 };
    let (g, beta) = (fractions(seed + 4, tokens * decays), fractions(seed + 5, tokens * 4));
    let mut state = start.clone();
    let mut out = unwritten::<T>(v.len());
    gated_delta(shape, [&q, &k, &v], &g, &beta, &mut state, &mut out);

    let mut pieces = start.clone();
    let mut joined = unwritten::<T>(v.len());
    for (from, to) in [(0, split), (split, tokens)] {
        let piece = DeltaShape { tokens: to - from, ..shape };
        let keys = from * 2 * key_dim..to * 2 * key_dim;
        let values = from * 4 * value_dim..to * 4 * value_dim;
        gated_delta(
            piece,
            [&q[keys.clone()], &k[keys], &v[values.clone()]],
            &g[from * decays..to * decays],
            &beta[from * 4..to * 4],
            &mut pieces,
            &mut joined[values],
        );
    }
    assert_eq!((bits(&out), bits(&state)), (bits(&joined), bits(&pieces)));
    let qkv = [wide(&q), wide(&k), wide(&v)];
    close(&out, &exact_delta(shape, qkv, &wide(&g), &wide(&beta), wide(&start)), 1e-5);
}

/// The first `uncommitted` tokens are those of earlier steps, the next `committed` are final, the
/// others drafts.
fn check_speculative(shape: DeltaShape, uncommitted: usize, committed: usize, by_channel: bool, seed: u64) {
    let DeltaShape { tokens, key_dim, value_dim, .. } = shape;
    let (q, k) =
        (noise::<f32>(seed, tokens * 2 * key_dim), keys::<f32>(seed + 1, tokens * 2 * key_dim, key_dim));
    let v = noise::<f32>(seed + 2, tokens * 4 * value_dim);
    let start = noise::<f32>(seed + 3, 4 * value_dim * key_dim);
    let decays = 4 * if by_channel { key_dim } else { 1 };
    let (g, beta) = (fractions(seed + 4, tokens * decays), fractions(seed + 5, tokens * 4));
    // One token at a time.
    let run = |state: &mut [f32], from: usize, to: usize| -> Vec<f32> {
        let mut out = vec![0.0; (to - from) * 4 * value_dim];
        for (t, out) in (from..to).zip(out.chunks_exact_mut(4 * value_dim)) {
            let keys = t * 2 * key_dim..(t + 1) * 2 * key_dim;
            let qkv = [&q[keys.clone()], &k[keys], &v[t * 4 * value_dim..][..4 * value_dim]];
            let (g, beta) = (&g[t * decays..][..decays], &beta[t * 4..][..4]);
            gated_delta(DeltaShape { tokens: 1, ..shape }, qkv, g, beta, state, out);
        }
        out
    };
    let mut expected = start.clone();
    run(&mut expected, 0, uncommitted);
    let mut outputs = run(&mut expected, uncommitted, uncommitted + committed);
    let mut last = expected.clone();
    outputs.extend(run(&mut last, uncommitted + committed, tokens));
    let side_by_side = |t: usize| {
        let (keys, values) = (2 * key_dim, 4 * value_dim);
        [&q[t * keys..][..keys], &k[t * keys..][..keys], &v[t * values..][..values]].concat()
    };
    let qkv: Vec<f32> = (0..tokens).flat_map(side_by_side).collect();
    let (early, qkv) = qkv.split_at(uncommitted * (4 * key_dim + 4 * value_dim));
    let (early_g, g) = g.split_at(uncommitted * decays);
    let (early_beta, beta) = beta.split_at(uncommitted * 4);
    let previous = DeltaTokens { qkv: early, g: early_g, beta: early_beta };
    let now = DeltaShape { tokens: tokens - uncommitted, ..shape };
    for keep in [false, true] {
        let (mut state, mut out, mut end) = (start.clone(), vec![0.0; outputs.len()], vec![0.0; start.len()]);
        let tokens = [previous, DeltaTokens { qkv, g, beta }];
        gated_delta_speculative(now, committed, tokens, &mut state, keep.then_some(&mut end), &mut out);
        assert_eq!((bits(&out), bits(&state)), (bits(&outputs), bits(&expected)));
        assert!(!keep || bits(&end) == bits(&last));
    }
}

fn exact_delta(
    s: DeltaShape,
    [q, k, v]: [Vec<f64>; 3],
    g: &[f64],
    beta: &[f64],
    mut state: Vec<f64>,
) -> Vec<f64> {
    let mut out = vec![];
    for t in 0..s.tokens {
        for h in 0..s.value_heads {
            let at = (t * s.key_heads + h / (s.value_heads / s.key_heads)) * s.key_dim;
            let (q, k) = (&q[at..][..s.key_dim], &k[at..][..s.key_dim]);
            let head = t * s.value_heads + h;
            let decay = |j: usize| if g.len() == beta.len() { g[head] } else { g[head * s.key_dim + j] };
            for i in 0..s.value_dim {
                let row = &mut state[(h * s.value_dim + i) * s.key_dim..][..s.key_dim];
                row.iter_mut().enumerate().for_each(|(j, x)| *x *= decay(j));
                let read: f64 = row.iter().zip(k).map(|(s, k)| s * k).sum();
                let delta = (v[head * s.value_dim + i] - read) * beta[head];
                row.iter_mut().zip(k).for_each(|(s, k)| *s += delta * k);
                out.push(row.iter().zip(q).map(|(s, q)| s * q).sum());
            }
        }
    }
    out
}

fn check_conv<T: Float>(channels: usize, tokens: usize, width: usize, activation: ConvActivation, seed: u64) {
    let (x, weight) = (noise::<T>(seed, tokens * channels), noise::<T>(seed + 1, channels * width));
    let state = noise::<T>(seed + 2, (width - 1) * channels);
    let taps = conv_taps(&weight, channels);
    let (mut out, mut end) = (unwritten::<T>(x.len()), unwritten::<T>(state.len()));
    causal_conv(&x, &taps, &state, &mut out, &mut end, channels, activation);
    let (mut carried, mut joined) = (state.clone(), vec![]);
    for token in x.chunks(channels) {
        let (mut one, mut next) = (unwritten::<T>(channels), unwritten::<T>(state.len()));
        causal_conv(token, &taps, &carried, &mut one, &mut next, channels, activation);
        joined.extend(one);
        carried = next;
    }
    assert_eq!((bits(&out), bits(&end)), (bits(&joined), bits(&carried)));
    let (input, weight) = (wide(&[state, x].concat()), wide(&weight));
    let exact: Vec<f64> = (0..tokens * channels)
        .map(|i| {
            let tap = |j: usize| input[i + j * channels] * weight[i % channels * width + j];
            let sum: f64 = (0..width).map(tap).sum();
            if activation == ConvActivation::Silu { sum / (1.0 + (-sum).exp()) } else { sum }
        })
        .collect();
    close(&out, &exact, 1e-6);
}

//! Every kernel against a plain float64 computation, and against itself one row at a time, bit for bit.

use half::bf16;
use kernels::*;
use proptest::prelude::*;

/// Numbers in about [-1, 1) from a counter, without a random generator to depend on.
fn noise(seed: u64, n: usize) -> Vec<f32> {
    let mix = |i: u64| {
        let mut z = (seed << 32).wrapping_add(i).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n as u64).map(mix).collect()
}

fn close(got: &[f32], exact: &[f64], bound: f64) {
    for (i, (got, exact)) in got.iter().zip(exact).enumerate() {
        assert!((*got as f64 - exact).abs() <= bound, "element {i}: {got} for {exact}");
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn gated_delta_in_pieces_is_gated_delta_at_once(
        tokens in 1usize..12, split in 0usize..12, key_dim in 1usize..40, value_dim in 1usize..20, seed in 0u64..1000,
    ) {
        let (key_heads, value_heads) = (2, 4);
        let split = split.min(tokens);
        let shape = DeltaShape { tokens, key_heads, value_heads, key_dim, value_dim };
        let (q, k) = (noise(seed, tokens * 2 * key_dim), noise(seed + 1, tokens * 2 * key_dim));
        let (v, start) = (noise(seed + 2, tokens * 4 * value_dim), noise(seed + 3, 4 * value_dim * key_dim));
        let g: Vec<f32> = noise(seed + 4, tokens * 4).iter().map(|x| x * 0.5 + 0.5).collect();
        let beta: Vec<f32> = noise(seed + 5, tokens * 4).iter().map(|x| x * 0.5 + 0.5).collect();
        let mut state = start.clone();
        let mut out = vec![f32::NAN; v.len()];
        gated_delta(shape, [&q, &k, &v], &g, &beta, &mut state, &mut out);

        let mut pieces = start.clone();
        let mut joined = vec![f32::NAN; v.len()];
        for (from, to) in [(0, split), (split, tokens)] {
            let part = DeltaShape { tokens: to - from, ..shape };
            let span = |x: &[f32], width: usize| x[from * width..to * width].to_vec();
            gated_delta(
                part,
                [&span(&q, 2 * key_dim), &span(&k, 2 * key_dim), &span(&v, 4 * value_dim)],
                &span(&g, 4), &span(&beta, 4), &mut pieces, &mut joined[from * 4 * value_dim..to * 4 * value_dim],
            );
        }
        prop_assert_eq!((bits(&out), bits(&state)), (bits(&joined), bits(&pieces)));
        close(&out, &exact_delta(shape, &q, &k, &v, &g, &beta, &start), 1e-3);
    }
}

fn exact_delta(
    s: DeltaShape,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    g: &[f32],
    beta: &[f32],
    start: &[f32],
) -> Vec<f64> {
    let mut state: Vec<f64> = start.iter().map(|&x| x as f64).collect();
    let mut out = vec![];
    for t in 0..s.tokens {
        for h in 0..s.value_heads {
            let at = (t * s.key_heads + h / (s.value_heads / s.key_heads)) * s.key_dim;
            let (q, k) = (&q[at..][..s.key_dim], &k[at..][..s.key_dim]);
            let (g, beta) = (g[t * s.value_heads + h] as f64, beta[t * s.value_heads + h] as f64);
            for i in 0..s.value_dim {
                let row = &mut state[(h * s.value_dim + i) * s.key_dim..][..s.key_dim];
                row.iter_mut().for_each(|x| *x *= g);
                let read: f64 = row.iter().zip(k).map(|(s, k)| s * *k as f64).sum();
                let delta = (v[(t * s.value_heads + h) * s.value_dim + i] as f64 - read) * beta;
                row.iter_mut().zip(k).for_each(|(s, k)| *s += delta * *k as f64);
                out.push(row.iter().zip(q).map(|(s, q)| s * *q as f64).sum());
            }
        }
    }
    out
}

#[test]
fn conv_in_pieces_is_conv_at_once() {
    let (channels, tokens, width) = (5, 7, 4);
    let (x, weight, state) =
        (noise(1, tokens * channels), noise(2, channels * width), noise(3, 3 * channels));
    let (mut out, mut end) = (vec![0.0f32; x.len()], vec![0.0; state.len()]);
    causal_conv_silu(&x, &weight, &state, &mut out, &mut end, channels);
    let (mut carried, mut joined) = (state.clone(), vec![]);
    for token in x.chunks(channels) {
        let (mut one, mut next) = (vec![0.0; channels], vec![0.0; state.len()]);
        causal_conv_silu(token, &weight, &carried, &mut one, &mut next, channels);
        joined.extend(one);
        carried = next;
    }
    assert_eq!((bits(&out), bits(&end)), (bits(&joined), bits(&carried)));
    let input = [state, x].concat();
    let exact: Vec<f64> = (0..tokens * channels)
        .map(|i| {
            let sum: f64 = (0..width)
                .map(|j| input[i + j * channels] as f64 * weight[i % channels * width + j] as f64)
                .sum();
            sum / (1.0 + (-sum).exp())
        })
        .collect();
    close(&out, &exact, 1e-6);
}

#[test]
fn rms_norm_in_half_precision_rounds_once() {
    let x: Vec<bf16> = noise(4, 3 * 50).into_iter().map(bf16::from_f32).collect();
    let weight = noise(5, 50);
    let mut out = vec![bf16::ZERO; x.len()];
    rms_norm(&x, &weight, &mut out, 1e-6);
    for (x, out) in x.chunks(50).zip(out.chunks(50)) {
        let mean = x.iter().map(|v| v.to_f64() * v.to_f64()).sum::<f64>() / 50.0;
        for ((x, w), out) in x.iter().zip(&weight).zip(out) {
            let exact = x.to_f64() / (mean + 1e-6).sqrt() * *w as f64;
            assert!((out.to_f64() - exact).abs() <= exact.abs() * 0.0040, "{out} for {exact}");
        }
    }
}

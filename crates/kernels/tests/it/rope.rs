//! Rotary embedding, against float64.

use crate::support::*;
use half::{bf16, f16};
use lanner_kernels::*;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn rope_rotates_pairs_and_copies_other_values(
        tokens in 1usize..5, heads in 1usize..4, half in 0usize..20, rest in 1usize..9, seed in 0u64..1000,
        pairs in prop::sample::select(vec![RopePairs::Halves, RopePairs::Adjacent]),
        scale in prop::sample::select(vec![1.0f32, 1.346]),
    ) {
        for axes in [1, 3] {
            check::<f32>([tokens, heads, half, rest], axes, pairs, scale, seed);
            check::<f16>([tokens, heads, half, rest], axes, pairs, scale, seed);
            check::<bf16>([tokens, heads, half, rest], axes, pairs, scale, seed);
        }
    }
}

fn check<T: Float>(
    [tokens, heads, half, rest]: [usize; 4],
    axes: usize,
    pairs: RopePairs,
    scale: f32,
    seed: u64,
) {
    let head_dim = 2 * half + rest;
    let x = noise::<T>(seed, tokens * heads * head_dim);
    let position = |i: usize| 3 + (17 << (8 * (i / axes))) + 100 * (i % axes) as i32;
    let positions: Vec<i32> = (0..tokens * axes).map(position).collect();
    let of_pairs: Vec<u8> = (0..half).map(|f| (f % axes) as u8).collect();
    let frequencies: Vec<f32> = (0..half).map(|i| 100f32.powf(-(i as f32) / half as f32)).collect();
    let mut out = unwritten::<T>(x.len());
    let places = RopePositions { values: &positions, axes: &of_pairs };
    rope(&x, places, &frequencies, pairs, scale, &mut out, heads, head_dim);
    if axes == 1 {
        // The same position on every axis is that of text.
        let all: Vec<i32> = positions.iter().flat_map(|position| [*position; 3]).collect();
        let of_pairs: Vec<u8> = (0..half).map(|f| (f % 3) as u8).collect();
        let mut text = unwritten::<T>(x.len());
        let places = RopePositions { values: &all, axes: &of_pairs };
        rope(&x, places, &frequencies, pairs, scale, &mut text, heads, head_dim);
        assert_eq!(bits(&text), bits(&out));
    }
    let mut exact = wide(&x);
    for (i, head) in exact.chunks_mut(head_dim).enumerate() {
        for (f, frequency) in frequencies.iter().enumerate() {
            // The angle is rounded to float32 as documented; everything after it is exact here.
            let (sin, cos) = ((positions[i / heads * axes + f % axes] as f32 * frequency) as f64).sin_cos();
            let (a, b) = match pairs {
                RopePairs::Halves => (f, f + half),
                RopePairs::Adjacent => (2 * f, 2 * f + 1),
            };
            (head[a], head[b]) = (
                (head[a] * cos - head[b] * sin) * scale as f64,
                (head[b] * cos + head[a] * sin) * scale as f64,
            );
        }
    }
    close(&out, &exact, 1e-6);
}

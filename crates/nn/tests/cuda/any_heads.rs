//! Attention with heads of any size, latent, with capped scores or positions on several axes.

use lanner_nn::{
    CoreAttention, KvBuffer, KvRow, Rope, RopePairs, Softmax, attend, attend_cached, attend_latent, rope,
};
use mlx::Array;

use super::support::{array, bits, check, has_device, is_gpu, norm};

fn rotation(half: usize, axes: Vec<u8>, pairs: RopePairs) -> Rope {
    let frequencies = (0..half).map(|i| 1e4f32.powf(-(i as f32) / half as f32)).collect();
    Rope { frequencies, axes, pairs, scale: 1.25 }
}

fn softmax(dim: i32, softcap: Option<f32>, sinks: Option<i32>) -> Softmax {
    Softmax {
        softcap,
        sinks: sinks.map(|heads| array(3, &[heads])),
        ..Softmax::scaled((dim as f32).powf(-0.5))
    }
}

/// What a test varies.
#[derive(Clone, Copy)]
struct Kind {
    heads: i32,
    kv_heads: i32,
    dim: i32,
    gated: bool,
    softcap: Option<f32>,
    window: Option<i32>,
    axes: bool,
}

/// Steps of two sequences.
fn steps(kind: Kind, steps: &[[i32; 2]]) -> Vec<Vec<u32>> {
    let Kind { heads, kv_heads, dim, gated, softcap, window, axes } = kind;
    let half = dim as usize / 4;
    let axes_of = if axes { (0..half).map(|i| (i % 3) as u8).collect() } else { vec![] };
    let mut attention = CoreAttention::new(heads, kv_heads, dim, rotation(half, axes_of, RopePairs::Halves))
        .with_qk_norm(norm(1, dim), norm(2, dim))
        .with_softmax(softmax(dim, softcap, gated.then_some(heads)));
    if gated {
        attention = attention.with_output_gate();
    }
    let mut buffers: [[KvBuffer; 2]; 2] = Default::default();
    let (mut past, mut outs) = ([0; 2], vec![]);
    for (i, tokens) in steps.iter().enumerate() {
        let all: i32 = tokens.iter().sum();
        let one: Vec<i32> = past.iter().zip(tokens).flat_map(|(past, tokens)| *past..past + tokens).collect();
        let positions = match axes {
            true => {
                let all_axes: Vec<i32> = one.iter().flat_map(|&p| [p, p / 2, p % 7]).collect();
                Array::from_slice(&all_axes, &[all, 3])
            }
            false => Array::from_slice(&one, &[all]),
        };
        let seed = 10 * i as u64;
        let q = array(seed, &[all, heads * dim * if gated { 2 } else { 1 }]);
        let [k, v] = [seed + 1, seed + 2].map(|seed| array(seed, &[all, kv_heads * dim]));
        let active = past.iter().zip(tokens).zip(&mut buffers).filter(|((_, tokens), _)| **tokens > 0);
        let mut rows: Vec<KvRow> = active
            .map(|((past, tokens), [keys, values])| KvRow {
                tokens: *tokens,
                past: *past,
                window,
                images: &[],
                keys,
                values,
            })
            .collect();
        outs.push(bits(&attention.forward([&q, &k, &v], &positions, &mut rows)));
        past.iter_mut().zip(tokens).for_each(|(past, tokens)| *past += tokens);
    }
    outs
}

#[test]
fn attention_with_heads_of_any_size_matches_the_cpu() {
    if !has_device() {
        return;
    }
    let plain =
        Kind { heads: 4, kv_heads: 2, dim: 80, gated: false, softcap: None, window: None, axes: false };
    let kinds = [
        ("heads of 80", plain),
        ("heads of 36 with gates and sinks", Kind { dim: 36, gated: true, ..plain }),
        ("heads of 512 with a window", Kind { heads: 2, kv_heads: 1, dim: 512, window: Some(260), ..plain }),
        ("capped scores", Kind { dim: 64, softcap: Some(2.5), window: Some(90), ..plain }),
        ("positions on axes", Kind { heads: 20, kv_heads: 1, dim: 64, axes: true, ..plain }),
    ];
    for (name, kind) in kinds {
        check(name, || steps(kind, &[[300, 9], [1, 1], [240, 0], [17, 2], [3, 290], [1, 1]]));
    }
    if is_gpu() {
        let large = Kind { heads: 16, kv_heads: 4, dim: 512, ..plain };
        check("a long prompt of heads of 512", || steps(large, &[[2000, 900], [1, 1], [1, 500], [0, 1]]));
    }
}

#[test]
fn latent_attention_matches_the_cpu() {
    if !has_device() {
        return;
    }
    let sizes = [(5, 72, 64, None), (40, 576, 512, None), (3, 48, 40, Some(300))];
    for (heads, dim, value_dim, window) in sizes {
        check(&format!("latents of {dim}, {heads} heads"), || {
            let (mut buffer, mut past, mut outs) = (KvBuffer::default(), 0, vec![]);
            for (i, tokens) in [270, 1, 7, 300, 1].into_iter().enumerate() {
                let seed = 5 * i as u64;
                let (q, latent) = (array(seed, &[tokens, heads, dim]), array(seed + 1, &[tokens, 1, dim]));
                let softmax = softmax(dim, None, None);
                outs.push(bits(&attend_latent(&q, &latent, &mut buffer, value_dim, past, window, &softmax)));
                past += tokens;
            }
            outs
        });
    }
}

/// Layers that attend to another layer's keys and values.
#[test]
fn attention_over_cached_keys_matches_the_cpu() {
    if !has_device() {
        return;
    }
    check("keys of 96 and values of 64", || {
        let (mut keys, mut values) = (KvBuffer::default(), KvBuffer::default());
        let softmax = softmax(96, None, Some(6));
        let (mut past, mut outs) = (0, vec![]);
        for tokens in [20, 1, 300, 2] {
            let seed = past as u64;
            let q = array(seed, &[tokens, 6, 96]);
            let (k, v) = (array(seed + 1, &[tokens, 3, 96]), array(seed + 2, &[tokens, 3, 64]));
            outs.push(bits(&attend(&q, [&k, &v], &mut keys, &mut values, past, None, &softmax)));
            past += tokens;
            outs.push(bits(&attend_cached(
                &array(7, &[3, 6, 96]),
                &keys,
                &values,
                past,
                Some(100),
                &softmax,
            )));
        }
        outs
    });
}

#[test]
fn rotations_match_the_cpu() {
    if !has_device() {
        return;
    }
    for (dim, half, axes, pairs) in
        [(80, 20, 1, RopePairs::Halves), (24, 12, 3, RopePairs::Adjacent), (6, 1, 2, RopePairs::Halves)]
    {
        check(&format!("rotations of {half} pairs of {dim}, {axes} axes"), || {
            let tokens = 9;
            let positions: Vec<i32> = (0..tokens * axes).map(|i| i * 37 % 1000).collect();
            let shape = if axes == 1 { vec![tokens] } else { vec![tokens, axes] };
            let own = if axes == 1 { vec![] } else { (0..half).map(|i| (i as i32 % axes) as u8).collect() };
            let x = array(2, &[tokens, 5, dim]);
            bits(&rope(&x, &Array::from_slice(&positions, &shape), &rotation(half, own, pairs)))
        });
    }
}

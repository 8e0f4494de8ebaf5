//! Attention, and sampling.

use kernels::{Sampling, sample};
use lanner_nn::{
    AllowedTokens, CoreAttention, KvBuffer, KvRow, Rope, RopePairs, Softmax, TokenDraw, TokenList,
    sample_tokens,
};
use mlx::Array;

use super::support::{array, bits, check, has_device, is_gpu, norm, numbers};

/// Heads, key heads, head size, rotated pairs, gates and norms.
type Shape = (i32, i32, i32, usize, bool, bool);

/// Steps of several sequences: the tokens of each in each step.
fn attend(shape: Shape, pairs: RopePairs, steps: &[&[i32]]) -> Vec<Vec<u32>> {
    attend_within(None, false, shape, pairs, steps)
}

/// The same with a window, and with sinks.
fn attend_within(
    window: Option<i32>,
    sinks: bool,
    shape: Shape,
    pairs: RopePairs,
    steps: &[&[i32]],
) -> Vec<Vec<u32>> {
    let (heads, kv_heads, dim, half, gated, normed) = shape;
    let frequencies = (0..half).map(|i| 1e4f32.powf(-(i as f32) / half as f32)).collect();
    let mut attention =
        CoreAttention::new(heads, kv_heads, dim, Rope { frequencies, axes: vec![], pairs, scale: 1.25 });
    if normed {
        attention = attention.with_qk_norm(norm(1, dim), norm(2, dim));
    }
    if gated {
        attention = attention.with_output_gate();
    }
    if sinks {
        let scaled = Softmax::scaled((dim as f32).powf(-0.5));
        attention = attention.with_softmax(Softmax { sinks: Some(array(3, &[heads])), ..scaled });
    }
    let sequences = steps[0].len();
    let mut buffers: Vec<[KvBuffer; 2]> = (0..sequences).map(|_| Default::default()).collect();
    let (mut past, mut outs) = (vec![0; sequences], vec![]);
    for (i, tokens) in steps.iter().enumerate() {
        let all: i32 = tokens.iter().sum();
        let positions: Vec<i32> =
            past.iter().zip(*tokens).flat_map(|(past, tokens)| *past..past + tokens).collect();
        let positions = Array::from_slice(&positions, &[all]);
        let seed = 10 * i as u64;
        let q = array(seed, &[all, heads * dim * if gated { 2 } else { 1 }]);
        let [k, v] = [seed + 1, seed + 2].map(|seed| array(seed, &[all, kv_heads * dim]));
        let active = past.iter().zip(*tokens).zip(&mut buffers).filter(|((_, tokens), _)| **tokens > 0);
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
        past.iter_mut().zip(*tokens).for_each(|(past, tokens)| *past += tokens);
    }
    for ([keys, values], past) in buffers.iter().zip(&past) {
        outs.extend([keys, values].map(|buffer| bits(&buffer.copy(0, *past).unwrap())));
    }
    outs
}

#[test]
fn attention_of_steps_of_every_kind_matches_the_cpu() {
    if !has_device() {
        return;
    }
    let shapes: [Shape; 4] = [
        (8, 2, 64, 16, true, true),
        (4, 4, 128, 64, false, false),
        (4, 1, 256, 32, true, true),
        (16, 1, 64, 32, false, true),
    ];
    for (i, shape) in shapes.into_iter().enumerate() {
        let pairs = if i % 2 == 0 { RopePairs::Halves } else { RopePairs::Adjacent };
        check(&format!("{shape:?}"), || {
            let steps: [&[i32]; 5] = [&[70, 3], &[1, 1], &[0, 33], &[4, 2], &[1, 0]];
            attend(shape, pairs, &steps)
        });
    }
    // Chunks of prompts, then so few queries that smaller ones are taken.
    for (heads, kv_heads, dim) in [(4, 2, 64), (2, 1, 128), (2, 1, 256)] {
        check(&format!("heads of {dim} over several blocks of keys"), || {
            let steps: [&[i32]; 6] = [&[300], &[1], &[240], &[17], &[3], &[1]];
            attend((heads, kv_heads, dim, 32, false, false), RopePairs::Halves, &steps)
        });
    }
    // First and last tokens of a block of keys, and of those whose values are summed up by columns.
    for (heads, kv_heads, dim) in [(5, 1, 64), (2, 2, 128)] {
        check(&format!("tokens of {heads} heads of {dim} where blocks of keys end"), || {
            let steps: [&[i32]; 7] = [&[255], &[1], &[1], &[1278], &[1], &[1], &[1]];
            attend((heads, kv_heads, dim, 32, false, true), RopePairs::Halves, &steps)
        });
    }
    // More blocks of keys than one load brings, and on a GPU than are merged at once.
    check("a token after many blocks of keys", || {
        let first = if is_gpu() { 9000 } else { 2200 };
        attend((2, 1, 64, 32, false, false), RopePairs::Halves, &[&[first], &[1]])
    });
    if is_gpu() {
        check("a long prompt", || {
            attend((16, 4, 256, 32, true, true), RopePairs::Halves, &[&[3000, 1500], &[1, 1], &[1, 600]])
        });
        for (heads, kv_heads, dim) in [(16, 4, 256), (32, 8, 128), (40, 8, 128)] {
            check(&format!("tokens of {heads} heads of {dim} after a long prompt"), || {
                let steps: [&[i32]; 6] = [&[600], &[1], &[8100], &[1], &[1], &[1]];
                attend((heads, kv_heads, dim, 32, false, true), RopePairs::Halves, &steps)
            });
        }
    }
}

#[test]
fn attention_with_windows_and_sinks_matches_the_cpu() {
    if !has_device() {
        return;
    }
    // Windows that end in the block where they start, that span several, and that see all keys.
    for (heads, kv_heads, dim, window) in
        [(4, 2, 64, 40), (16, 1, 64, 300), (2, 1, 128, 257), (2, 1, 256, 100), (4, 2, 64, 5000)]
    {
        check(&format!("{heads} heads of {dim} with a window of {window}"), || {
            let shape = (heads, kv_heads, dim, 32, dim == 256, false);
            let steps: [&[i32]; 7] = [&[300, 9], &[1, 1], &[240, 0], &[17, 2], &[3, 290], &[1, 1], &[0, 1]];
            attend_within(Some(window), window != 100, shape, RopePairs::Halves, &steps)
        });
    }
    check("sinks without a window", || {
        let steps: [&[i32]; 6] = [&[300], &[1], &[240], &[17], &[3], &[1]];
        attend_within(None, true, (8, 1, 64, 32, false, false), RopePairs::Halves, &steps)
    });
    // Values that are summed up by columns, and blocks that a kernel of its own merges.
    for (dim, window) in [(64, 1000), (64, 1900), (128, 1800), (256, 1600)] {
        check(&format!("tokens of {dim} after a window of {window}"), || {
            let steps: [&[i32]; 5] = [&[1900], &[1], &[1], &[146], &[1]];
            attend_within(Some(window), dim != 128, (5, 1, dim, 16, true, true), RopePairs::Halves, &steps)
        });
    }
    if is_gpu() {
        for (heads, kv_heads, dim, window) in [(64, 8, 64, 128), (32, 16, 128, 1024), (16, 8, 256, 1024)] {
            check(&format!("a long prompt of {heads} heads of {dim} with a window of {window}"), || {
                let steps: [&[i32]; 5] = [&[3000, 1500], &[1, 1], &[1, 600], &[1, 0], &[0, 1]];
                let shape = (heads, kv_heads, dim, 32, false, true);
                attend_within(Some(window), dim == 64, shape, RopePairs::Halves, &steps)
            });
        }
    }
}

#[test]
fn sampling_matches_the_cpu() {
    if !has_device() {
        return;
    }
    for size in [5usize, 1000, 8192, if is_gpu() { 248_320 } else { 10_001 }] {
        let rows = 7;
        let mut logits = numbers(size as u64, rows * size);
        // Equal logits, of which the first counts.
        let largest = logits[..size].iter().copied().fold(0.0f32, f32::max);
        logits[size / 2] = largest;
        logits[size - 1] = largest;
        // The likeliest token of the fourth row is not allowed, nor is that of the sixth.
        let likeliest = |row: usize| {
            let logits = &logits[row * size..][..size];
            (0..size).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap() as u32
        };
        let list = |ids: &[u32]| TokenList::new(ids).unwrap();
        let last = size as u32 - 1;
        let draws = [
            (0.0, 1, 5, AllowedTokens::All),
            (0.8, 7 | 1 << 60, 1 << 33, AllowedTokens::All),
            (2.5, 3, 0, AllowedTokens::All),
            (0.0, 1, 5, AllowedTokens::AllBut(list(&[likeliest(3), 0]))),
            (0.9, 4, 8, AllowedTokens::AllBut(list(&[likeliest(4), last, 1]))),
            (0.0, 1, 5, AllowedTokens::Only(list(&[last, 2]))),
            (1.5, 6, 2, AllowedTokens::Only(list(&[1]))),
        ];
        let draws = draws.map(|(temperature, seed, position, allowed)| TokenDraw {
            temperature,
            seed,
            position,
            allowed,
            ..TokenDraw::GREEDY
        });
        check_draws(&format!("{size} tokens"), &logits, &draws);
        for (top_k, top_p, min_p) in [(1, 1.0, 0.0), (20, 0.95, 0.0), (64, 0.5, 0.05), (0, 1.0, 0.2)] {
            let draws = draws.map(|draw| TokenDraw { top_k, top_p, min_p, ..draw });
            let what = format!("{size} tokens, top_k {top_k}, top_p {top_p}, min_p {min_p}");
            check_draws(&what, &logits, &draws);
            // A row alone is an operation of the persistent kernel.
            check_draws(&format!("{what}, a row"), &logits[size..2 * size], &draws[1..2]);
        }
        // More rows than one launch takes.
        if size < 2000 {
            let draws: Vec<TokenDraw> =
                draws.map(|draw| TokenDraw { top_k: 9, top_p: 0.8, ..draw }).repeat(8);
            check_draws(&format!("{size} tokens, 56 rows"), &logits.repeat(8), &draws);
        }
        // The first ones of equal tokens are kept.
        let draws = draws.map(|draw| TokenDraw { top_k: 5, top_p: 0.7, temperature: 1.0, ..draw });
        check_draws(&format!("{size} equal tokens"), &vec![1.5; rows * size], &draws);
    }
}

/// Compares draws, each from a row of logits.
#[track_caller]
fn check_draws(what: &str, logits: &[f32], draws: &[TokenDraw]) {
    let (rows, size) = (draws.len(), logits.len() / draws.len());
    check(what, || {
        let array = Array::from_slice(logits, &[rows as i32, size as i32]);
        // On the device only after an operation there.
        let on_device = mlx::cuda::device().filter(|_| mlx::cuda::in_use());
        let placed = on_device.map(|device| device.resident(&array).unwrap());
        match sample_tokens(placed.as_deref().unwrap_or(&array), draws) {
            Some([tokens, faults]) => {
                assert!(faults.to_vec::<f32>().unwrap().iter().all(|fault| *fault == 0.0));
                tokens.to_vec::<u32>().unwrap()
            }
            None => {
                draws.iter().zip(logits.chunks(size)).map(|(draw, logits)| on_the_cpu(draw, logits)).collect()
            }
        }
    });
}

fn on_the_cpu(draw: &TokenDraw, logits: &[f32]) -> u32 {
    let mask = mask(draw.allowed, logits.len() as u32);
    let sampling = Sampling {
        temperature: draw.temperature,
        seed: draw.seed,
        allowed: mask.as_deref(),
        top_k: draw.top_k,
        top_p: draw.top_p,
        min_p: draw.min_p,
        ..Sampling::GREEDY
    };
    sample(logits, &sampling, draw.position).unwrap()
}

/// The bits of the allowed tokens.
fn mask(allowed: AllowedTokens, size: u32) -> Option<Vec<u32>> {
    let allows = |id: u32| match allowed {
        AllowedTokens::All => true,
        AllowedTokens::Only(list) => list.contains(id),
        AllowedTokens::AllBut(list) => !list.contains(id),
    };
    let mut words = vec![0; size.div_ceil(32) as usize];
    (0..size).filter(|id| allows(*id)).for_each(|id| words[id as usize / 32] |= 1 << (id % 32));
    (allowed != AllowedTokens::All).then_some(words)
}

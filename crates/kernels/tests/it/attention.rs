//! Attention against a plain float64 computation, and against itself one query at a time, bit for
//! bit.

use crate::support::*;
use half::{bf16, f16};
use lanner_kernels::*;
use proptest::prelude::*;

fn shapes() -> impl Strategy<Value = AttentionShape> {
    let past = prop_oneof![0usize..40, 200usize..600];
    let sizes = (1usize..9, past, 0usize..20, 1usize..4, 1usize..11);
    // Multiples of 16 take another path for few queries.
    let dims =
        prop_oneof![(1usize..100, 1usize..100), (1usize..8, 1usize..8).prop_map(|(k, v)| (16 * k, 16 * v))];
    let window = prop::sample::select(vec![1, 2, 7, 16, 300, usize::MAX]);
    (sizes, dims, window, masks()).prop_map(
        |((tokens, past, room, kv_heads, group), (head_dim, value_dim), window, mask)| {
            let (heads, length) = (kv_heads * group, past + tokens);
            let capacity = length + room;
            AttentionShape { tokens, heads, kv_heads, head_dim, value_dim, length, capacity, window, mask }
        },
    )
}

fn masks() -> impl Strategy<Value = AttentionMask> {
    prop::sample::select(vec![AttentionMask::Causal, AttentionMask::BothWays, AttentionMask::Together])
}

/// `(softcap, whether there are sinks)`
fn extras() -> impl Strategy<Value = (Option<f32>, bool)> {
    (prop::option::of(prop::sample::select(vec![0.5f32, 3.0, 50.0])), any::<bool>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn attention_matches_float64_and_is_row_invariant(shape in shapes(), extras in extras(), seed in 0u64..1000) {
        check::<f32, f32>(shape, extras, seed, false);
        check::<f16, f16>(shape, extras, seed, false);
        check::<bf16, bf16>(shape, extras, seed, false);
        check::<f32, bf16>(shape, extras, seed, false);
    }

    #[test]
    fn latent_attention_matches_float64_and_is_row_invariant(shape in shapes(), extras in extras(), seed in 0u64..1000) {
        let shape = AttentionShape { value_dim: shape.value_dim.min(shape.head_dim), ..shape };
        check::<f32, f32>(shape, extras, seed, true);
        check::<bf16, bf16>(shape, extras, seed, true);
        check::<f32, bf16>(shape, extras, seed, true);
    }
}

/// Queries and outputs of type `T`, keys and values of type `S`.
fn check<T: Float, S: Float>(
    shape: AttentionShape,
    (softcap, sinks): (Option<f32>, bool),
    seed: u64,
    latent: bool,
) {
    let s = shape;
    let sinks = sinks.then(|| noise::<f32>(seed + 3, s.heads));
    let softmax = Softmax { scale: 0.8, softcap, sinks: sinks.as_deref() };
    let q = noise::<T>(seed, s.tokens * s.heads * s.head_dim);
    let k = cached::<S>(s, seed + 1, s.head_dim);
    let v = match latent {
        true => k.chunks(s.head_dim).flat_map(|key| key[..s.value_dim].to_vec()).collect(),
        false => cached(s, seed + 2, s.value_dim),
    };
    let run = |shape: AttentionShape, q: &[T], k: &[S], v: &[S]| {
        let mut out = unwritten(q.len() / s.head_dim * s.value_dim);
        match latent {
            true => latent_attention(shape, q, k, softmax, &mut out),
            false => attention(shape, q, k, v, softmax, &mut out),
        }
        out
    };
    let out = run(s, &q, &k, &v);
    close(&out, &exact(s, &wide(&q), &wide(&k), &wide(&v), softmax), 2e-5);
    for t in 0..s.tokens {
        let (queries, row) = (s.heads * s.head_dim, s.heads * s.value_dim);
        if s.mask == AttentionMask::Together {
            // All depend on all.
            continue;
        }
        if s.mask == AttentionMask::BothWays {
            // Each run computes all later queries. Without vector instructions, where that takes
            // minutes, the long ones begin at one of 37: a number that no tile's length divides.
            let is_long = s.tokens - t > 16;
            if simd_level() == SimdLevel::Portable && is_long && !t.is_multiple_of(37) {
                continue;
            }
            // Without the queries before it, whose keys remain.
            let fewer = run(AttentionShape { tokens: s.tokens - t, ..s }, &q[t * queries..], &k, &v);
            assert_eq!(bits(&fewer), bits(&out[t * row..]), "from query {t} of {s:?}");
            continue;
        }
        // Alone, in a buffer without the blocks that this query does not attend to.
        let end = s.length - s.tokens + t + 1;
        let start = end.saturating_sub(s.window) / KEY_BLOCK * KEY_BLOCK;
        let slide = |buffer: &[S], dim: usize| -> Vec<S> {
            buffer.chunks(s.capacity * dim).flat_map(|head| head[start * dim..].to_vec()).collect()
        };
        let one = AttentionShape { tokens: 1, length: end - start, capacity: s.capacity - start, ..s };
        let q = &q[t * queries..][..queries];
        let alone = run(one, q, &slide(&k, s.head_dim), &slide(&v, s.value_dim));
        assert_eq!(bits(&alone), bits(&out[t * row..][..row]), "query {t} of {s:?}");
    }
}

/// Keys or values. Those that no query attends to must not matter, not even times zero.
fn cached<S: Float>(s: AttentionShape, seed: u64, dim: usize) -> Vec<S> {
    let visible = (s.length - s.tokens + 1).saturating_sub(s.window)..s.length;
    let mut buffer = noise::<S>(seed, s.kv_heads * s.capacity * dim);
    for (row, values) in buffer.chunks_mut(dim).enumerate() {
        if !visible.contains(&(row % s.capacity)) {
            values.fill(S::from_f32(f32::NAN));
        }
    }
    buffer
}

fn exact(s: AttentionShape, q: &[f64], k: &[f64], v: &[f64], softmax: Softmax) -> Vec<f64> {
    let mut out = vec![];
    for (i, q) in q.chunks(s.head_dim).enumerate() {
        let (t, h) = (i / s.heads, i % s.heads);
        let row = |j: usize| h / (s.heads / s.kv_heads) * s.capacity + j;
        let position = s.length - s.tokens + t;
        let sees = |j: &usize| match s.mask {
            AttentionMask::Causal => *j <= position && position - j < s.window,
            AttentionMask::BothWays => position.abs_diff(*j) < s.window,
            AttentionMask::Together => *j >= position || position - j < s.window,
        };
        let visible: Vec<usize> = (0..s.length).filter(sees).map(row).collect();
        let weight = |row: &usize| {
            let key = &k[row * s.head_dim..][..s.head_dim];
            let score = q.iter().zip(key).map(|(q, k)| q * k).sum::<f64>() * softmax.scale as f64;
            softmax.softcap.map_or(score, |cap| cap as f64 * (score / cap as f64).tanh()).exp()
        };
        let weights: Vec<f64> = visible.iter().map(weight).collect();
        let total = weights.iter().sum::<f64>() + softmax.sinks.map_or(0.0, |sinks| (sinks[h] as f64).exp());
        let value =
            |d: usize| visible.iter().zip(&weights).map(|(row, w)| w * v[row * s.value_dim + d]).sum();
        out.extend((0..s.value_dim).map(|d| -> f64 { value(d) }).map(|sum| sum / total));
    }
    out
}

/// Large enough to be spread over threads: 42 heads of one key head in tiles, the last query alone.
#[test]
fn attention_of_many_heads_per_key_head_is_row_invariant() {
    let shape = AttentionShape {
        tokens: 2,
        heads: 42,
        kv_heads: 1,
        head_dim: 72,
        value_dim: 64,
        length: 300,
        capacity: 320,
        window: usize::MAX,
        mask: AttentionMask::Causal,
    };
    check::<f32, f32>(shape, (None, false), 5, true);
    check::<f32, f32>(shape, (Some(20.0), true), 6, false);
}

/// Enough tiles for each to process all its blocks, while those of a single query are spread over
/// threads. With multiples of 16, 389 tokens end in a tile of few queries.
#[test]
fn attention_of_many_tiles_is_row_invariant() {
    for (window, tokens, head_dim) in
        [(300, 401, 20), (usize::MAX, 401, 20), (300, 389, 32), (usize::MAX, 389, 32)]
    {
        let length = 700;
        let shape = AttentionShape {
            tokens,
            heads: 10,
            kv_heads: 5,
            head_dim,
            value_dim: 80,
            length,
            capacity: length,
            window,
            mask: AttentionMask::Causal,
        };
        check::<f32, f32>(shape, (None, true), 8, false);
        check::<f32, f32>(AttentionShape { mask: AttentionMask::BothWays, ..shape }, (None, true), 8, false);
    }
}

/// Partial results of 5 tiles with 10 blocks each need more memory than is used at a time, which
/// ends inside a tile.
#[test]
fn attention_of_few_tiles_over_many_blocks_is_row_invariant() {
    let shape = AttentionShape {
        tokens: 64,
        heads: 10,
        kv_heads: 5,
        head_dim: 16,
        value_dim: 256,
        length: 10 * KEY_BLOCK,
        capacity: 10 * KEY_BLOCK,
        window: usize::MAX,
        mask: AttentionMask::Causal,
    };
    check::<f32, f32>(shape, (None, true), 5, false);
    check::<f32, bf16>(shape, (Some(3.0), false), 6, false);
}

#[test]
fn append_kv_writes_after_previous_keys() {
    let (kv_heads, head_dim, capacity) = (2, 3, 5);
    let mut buffer = vec![0.0f32; kv_heads * capacity * head_dim];
    let tokens = noise::<f32>(7, 3 * kv_heads * head_dim);
    let mut rounded = vec![bf16::default(); buffer.len()];
    append_kv(&mut rounded, &tokens, 0, kv_heads, head_dim);
    append_kv(&mut buffer, &tokens[..6], 0, kv_heads, head_dim);
    append_kv(&mut buffer, &tokens[6..], 1, kv_heads, head_dim);
    for t in 0..3 {
        for h in 0..kv_heads {
            let stored = &buffer[(h * capacity + t) * head_dim..][..head_dim];
            assert_eq!(stored, &tokens[(t * kv_heads + h) * head_dim..][..head_dim]);
            let rounded = &rounded[(h * capacity + t) * head_dim..][..head_dim];
            assert!(rounded.iter().zip(stored).all(|(&rounded, &exact)| rounded == bf16::from_f32(exact)));
        }
    }
}

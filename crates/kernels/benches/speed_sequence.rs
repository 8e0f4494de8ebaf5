//! Speed of attention, delta rules, element-wise kernels and sampling:
//! `cargo bench -p lanner-kernels --bench speed_sequence -- [NAME]`.
//!
//! Prints each with its share of the machine's limits, measured first: multiply-adds from
//! registers, and memory reads.

use std::{env, hint::black_box, thread, time::Instant};

use half::{bf16, f16};
use lanner_kernels::*;

fn main() {
    // Cargo adds an argument of its own.
    let only = env::args().skip(1).find(|argument| argument != "--bench").unwrap_or_default();
    let limits = Limits::measure();
    println!("limits: {:.0} GFLOP/s, {:.1} GB/s read", limits.flops / 1e9, limits.bytes / 1e9);
    let parts: [(&str, Part); 5] = [
        ("attention", attention_speed),
        ("delta", delta_speed),
        ("speculative", speculative_speed),
        ("elementwise", elementwise_speed),
        ("sample", sample_speed),
    ];
    for (name, part) in parts {
        if name.contains(&only) {
            part(&limits);
        }
    }
}

type Part = fn(&Limits);

/// The limits of all threads together.
struct Limits {
    flops: f64,
    bytes: f64,
}

impl Limits {
    fn measure() -> Limits {
        let threads = thread::available_parallelism().map_or(1, |n| n.get());
        let memory = vec![1u64; threads << 23];
        let slowest = |work: &(dyn Fn(usize) + Sync)| {
            let time = || {
                let start = Instant::now();
                thread::scope(|scope| {
                    for t in 0..threads {
                        scope.spawn(move || work(t));
                    }
                });
                start.elapsed().as_secs_f64()
            };
            (0..50).map(|_| time()).fold(f64::MAX, f64::min)
        };
        const STEPS: usize = 100_000;
        let time = slowest(&|_| multiply_adds(STEPS));
        let flops = (threads * STEPS * CHAINS * 16 * 2) as f64 / time;
        let time = slowest(&|t| {
            black_box(memory[t << 23..][..1 << 23].chunks_exact(64).fold([0; 64], |mut sums, chunk| {
                sums.iter_mut().zip(chunk).for_each(|(sum, x)| *sum |= x);
                sums
            }));
        });
        Limits { flops, bytes: (memory.len() * 8) as f64 / time }
    }

    fn report(&self, name: &str, flops: usize, bytes: usize, mut work: impl FnMut()) {
        work();
        let mut best = f64::MAX;
        let started = Instant::now();
        let mut runs = 0;
        while runs < 5 || (started.elapsed().as_secs_f64() < 0.5 && runs < 1000) {
            let start = Instant::now();
            work();
            best = best.min(start.elapsed().as_secs_f64());
            runs += 1;
        }
        let (flops, bytes) = (flops as f64 / best, bytes as f64 / best);
        println!(
            "{name:48} {:9.4} ms  {:6.1} GFLOP/s ({:3.0} %)  {:6.1} GB/s ({:3.0} %)",
            best * 1e3,
            flops / 1e9,
            100.0 * flops / self.flops,
            bytes / 1e9,
            100.0 * bytes / self.bytes,
        );
    }
}

/// Independent accumulators.
const CHAINS: usize = 16;

/// `steps` times 16 multiply-adds of 16 lanes each, at the processor's peak.
fn multiply_adds(steps: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        #[target_feature(enable = "avx512f")]
        fn avx512(steps: usize) {
            let mut sums = black_box([_mm512_set1_ps(1.0); CHAINS]);
            let (a, b) = (black_box(_mm512_set1_ps(0.999)), black_box(_mm512_set1_ps(0.001)));
            for _ in 0..steps {
                for sum in &mut sums {
                    *sum = _mm512_fmadd_ps(*sum, a, b);
                }
            }
            black_box(sums);
        }
        #[target_feature(enable = "avx2,fma")]
        fn avx2(steps: usize) {
            let mut sums = black_box([_mm256_set1_ps(1.0); CHAINS / 2]);
            let (a, b) = (black_box(_mm256_set1_ps(0.999)), black_box(_mm256_set1_ps(0.001)));
            for _ in 0..4 * steps {
                for sum in &mut sums {
                    *sum = _mm256_fmadd_ps(*sum, a, b);
                }
            }
            black_box(sums);
        }
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has the feature.
            return unsafe { avx512(steps) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has the features.
            return unsafe { avx2(steps) };
        }
    }
    let mut sums = black_box([1.0f32; 16 * CHAINS]);
    let (a, b) = black_box((0.999f32, 0.001f32));
    for _ in 0..steps {
        for sum in &mut sums {
            *sum = sum.mul_add(a, b);
        }
    }
    black_box(sums);
}

fn attention_speed(limits: &Limits) {
    for (heads, kv_heads, dim) in [(8, 2, 256), (32, 8, 128)] {
        for (tokens, length) in [(256, 256), (1024, 1024), (256, 4096), (1, 256), (1, 4096), (1, 32768)] {
            attention_of::<f32>(limits, [tokens, length, heads, kv_heads, dim, dim], usize::MAX);
        }
        attention_of::<bf16>(limits, [256, 4096, heads, kv_heads, dim, dim], usize::MAX);
        attention_of::<f16>(limits, [256, 4096, heads, kv_heads, dim, dim], usize::MAX);
        attention_of::<bf16>(limits, [1, 32768, heads, kv_heads, dim, dim], usize::MAX);
        attention_of::<f32>(limits, [256, 4096, heads, kv_heads, dim, dim], 512);
    }
    // A vision tower.
    attention_of::<f32>(limits, [1024, 4096, 12, 12, 64, 64], usize::MAX);
    for heads in [16, 128] {
        attention_of::<f32>(limits, [64, 2048, heads, 1, 576, 512], usize::MAX);
        attention_of::<f32>(limits, [1, 8192, heads, 1, 576, 512], usize::MAX);
    }
}

fn attention_of<T: Scalar>(limits: &Limits, sizes: [usize; 6], window: usize) {
    let [tokens, length, heads, kv_heads, head_dim, value_dim] = sizes;
    let shape = AttentionShape {
        tokens,
        heads,
        kv_heads,
        head_dim,
        value_dim,
        length,
        capacity: length,
        window,
        mask: AttentionMask::Causal,
    };
    let q: Vec<T> = numbers(tokens * heads * head_dim);
    let (k, v) = (numbers::<T>(kv_heads * length * head_dim), numbers::<T>(kv_heads * length * value_dim));
    let softmax = Softmax { scale: 0.1, softcap: None, sinks: None };
    let mut out = vec![T::default(); tokens * heads * value_dim];
    let keys: usize = (0..tokens).map(|t| (length - tokens + t + 1).min(window)).sum();
    let flops = 2 * heads * (head_dim + value_dim) * keys;
    let seen = length.min(window.saturating_add(tokens - 1));
    let latent = head_dim != value_dim;
    let dims = if latent { head_dim } else { head_dim + value_dim };
    let name = format!("attention {}b {tokens}/{length} {heads}/{kv_heads}x{head_dim}", 8 * size_of::<T>());
    limits.report(&name, flops, kv_heads * seen * dims * size_of::<T>(), || match latent {
        true => latent_attention(shape, &q, &k, softmax, &mut out),
        false => attention(shape, &q, &k, &v, softmax, &mut out),
    });
}

/// The sizes of Qwen3.5's layers: 16 heads of 128 by 128.
fn delta_speed(limits: &Limits) {
    for tokens in [1, 16, 256] {
        for by_channel in [false, true] {
            delta_of::<f32>(limits, tokens, by_channel);
            delta_of::<bf16>(limits, tokens, by_channel);
        }
    }
}

/// Five tokens, four of them drafts: the cost of a state that can be rolled back.
fn speculative_speed(limits: &Limits) {
    const TOKENS: usize = 5;
    for (key_heads, value_heads, dim) in [(4, 8, 64), (16, 16, 128)] {
        let shape = DeltaShape { tokens: TOKENS, key_heads, value_heads, key_dim: dim, value_dim: dim };
        let (keys, values) = (key_heads * dim, value_heads * dim);
        let width = 2 * keys + values;
        let (x, beta) = (vec![0.01f32; TOKENS * width], vec![0.5f32; TOKENS * value_heads]);
        let g = vec![0.9f32; TOKENS * value_heads];
        let first = |tokens: usize| DeltaTokens {
            qkv: &x[..tokens * width],
            g: &g[..tokens * value_heads],
            beta: &beta[..tokens * value_heads],
        };
        let parts = |tokens: usize| [&x[..tokens * keys], &x[..tokens * keys], &x[..tokens * values]];
        // One state per layer, so that none is still in the cache.
        let mut states = vec![vec![0.01f32; value_heads * dim * dim]; 18];
        let mut copies = vec![vec![0.0f32; TOKENS * value_heads * dim * dim]; 18];
        let mut out = vec![0.0f32; TOKENS * values];
        let flops = |tokens: usize| 18 * tokens * value_heads * dim * dim * 6;
        let bytes = 18 * value_heads * dim * dim * 4;
        let name = |what: &str| format!("18 layers, {value_heads} heads of {dim}, {what}");
        limits.report(&name("5 committed tokens"), flops(5), 2 * bytes, || {
            for state in &mut states {
                gated_delta(shape, parts(TOKENS), &g, &beta, state, &mut out);
            }
        });
        for before in [0, 2, 4] {
            limits.report(
                &name(&format!("4 drafts, {before} uncommitted")),
                flops(5 + before),
                2 * bytes,
                || {
                    for state in &mut states {
                        gated_delta_speculative(
                            shape,
                            1,
                            [first(before), first(TOKENS)],
                            state,
                            None,
                            &mut out,
                        );
                    }
                },
            );
        }
        limits.report(&name("each state written"), flops(5), 6 * bytes, || {
            let one = DeltaShape { tokens: 1, ..shape };
            for (state, copies) in states.iter_mut().zip(&mut copies) {
                for (t, copy) in copies.chunks_exact_mut(state.len()).enumerate() {
                    let out = &mut out[t * values..][..values];
                    gated_delta(one, parts(1), &g[..value_heads], &beta[..value_heads], state, out);
                    copy.copy_from_slice(state);
                }
            }
        });
    }
}

fn delta_of<T: Scalar>(limits: &Limits, tokens: usize, by_channel: bool) {
    let (heads, dim) = (16, 128);
    let shape = DeltaShape { tokens, key_heads: heads, value_heads: heads, key_dim: dim, value_dim: dim };
    let x: Vec<T> = numbers(tokens * heads * dim);
    let g = vec![0.9f32; tokens * heads * if by_channel { dim } else { 1 }];
    let beta = vec![0.01f32; tokens * heads];
    let (mut state, mut out) = (vec![0.0f32; heads * dim * dim], x.clone());
    let kind = if by_channel { "channels" } else { "heads" };
    let name = format!("delta {}b {kind} {tokens}", 8 * size_of::<T>());
    // Read, decayed, written and read again.
    let flops = 7 * tokens * heads * dim * dim;
    limits.report(&name, flops, 8 * state.len() + 4 * x.len() * size_of::<T>(), || {
        gated_delta(shape, [&x, &x, &x], &g, &beta, &mut state, &mut out)
    });
}

fn elementwise_speed(limits: &Limits) {
    for tokens in [1, 256] {
        elementwise_of::<f32>(limits, tokens);
        elementwise_of::<bf16>(limits, tokens);
    }
}

/// Counts memory accesses, no operations.
fn elementwise_of<T: Scalar>(limits: &Limits, tokens: usize) {
    let size = size_of::<T>();
    let name = |what: &str| format!("{what} {}b {tokens}", 8 * size);
    let channels = 6144;
    let (x, taps, past) =
        (numbers::<T>(tokens * channels), numbers::<f32>(4 * channels), numbers::<T>(3 * channels));
    let (mut out, mut next) = (x.clone(), past.clone());
    limits.report(&name("conv 6144"), 0, (2 * x.len() + 10 * channels) * size, || {
        causal_conv(&x, &taps, &past, &mut out, &mut next, channels, ConvActivation::Silu)
    });
    let x = &x[..tokens * 2048];
    let (weight, mut sum) = (vec![1.0f32; 2048], vec![0.0f32; x.len()]);
    let out = &mut out[..x.len()];
    limits.report(&name("rms_norm 2048"), 0, 2 * x.len() * size, || rms_norm(x, &weight, out, 1e-6));
    limits.report(&name("add 2048"), 0, x.len() * (size + 8), || add(&mut sum, x));
    limits.report(&name("rms_norm_columns 2048"), 0, 8 * x.len(), || {
        rms_norm_columns(&mut sum, 2048, 0..2048, &weight[..128], 1e-6)
    });
    limits.report(&name("gated_rms_norm 16x128"), 0, 3 * x.len() * size, || {
        gated_rms_norm(x, x, &weight[..128], out, 1e-6)
    });
    limits.report(&name("gated silu 2048"), 0, 3 * x.len() * size, || gated(x, x, out, Activation::Silu));
    limits.report(&name("sigmoid_gated 2048"), 0, 3 * x.len() * size, || sigmoid_gated(out, x, 256, 256));
    let positions: Vec<i32> = (0..tokens as i32).map(|t| 1000 + t).collect();
    let frequencies: Vec<f32> = (0..32).map(|i| 1e7f32.powf(-(i as f32) / 32.0)).collect();
    for pairs in [RopePairs::Halves, RopePairs::Adjacent] {
        limits.report(&name(&format!("rope {pairs:?} 8x256")), 0, 2 * x.len() * size, || {
            rope(x, RopePositions { values: &positions, axes: &[] }, &frequencies, pairs, 1.0, out, 8, 256)
        });
    }
    let (a, rate) = (&x[..16 * tokens], [-1.0f32; 16]);
    let (mut decay, mut beta) = (vec![0.0f32; a.len()], vec![0.0f32; a.len()]);
    limits.report(&name("delta_gates 16"), 0, 2 * a.len() * (size + 4), || {
        delta_gates([a, a], &rate, &rate, &mut decay, &mut beta)
    });
}

fn sample_speed(limits: &Limits) {
    let vocabulary = 248_320;
    // Approximately normal, like logits.
    let word = |i: u32| (i.wrapping_mul(0x9E37_79B9) ^ 0x5bd1_e995).wrapping_mul(0x85EB_CA6B) >> 8;
    let unit = |i: u32| word(i) as f32 / (1 << 24) as f32 - 0.5;
    let logits: Vec<f32> =
        (0..vocabulary).map(|i| 4.0 * (0..6).map(|j| unit(6 * i + j)).sum::<f32>()).collect();
    let past: Vec<PastToken> = (0..2000).map(|i| PastToken { id: 100 * i, generated: i % 3 }).collect();
    let plain = Sampling { temperature: 1.0, seed: 1, ..Sampling::GREEDY };
    let usual = Sampling { top_k: 20, top_p: 0.95, ..plain };
    for (name, sampling) in [
        ("greedy", Sampling { temperature: 0.0, ..plain }),
        ("all", plain),
        ("top_k 20, top_p 0.95", usual),
        ("the same, penalties", Sampling { presence_penalty: 1.5, past: &past, ..usual }),
        ("top_k 1000", Sampling { top_k: 1000, ..plain }),
        ("min_p 0.05", Sampling { min_p: 0.05, ..plain }),
        ("top_p 0.95", Sampling { top_p: 0.95, ..plain }),
        ("top_p 0.95 at 0.3", Sampling { top_p: 0.95, temperature: 0.3, ..plain }),
    ] {
        limits.report(&format!("sample {name}"), 0, 4 * logits.len(), || {
            black_box(sample(&logits, &sampling, 5)).expect("a token");
        });
    }
}

fn numbers<T: Scalar>(n: usize) -> Vec<T> {
    (0..n).map(|i| T::from_f32((i % 61) as f32 / 64.0 - 0.5)).collect()
}

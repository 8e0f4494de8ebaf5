//! Speed of what looks along the sequence: `cargo run --release -p kernels --example speed_sequence [NAME]`.
//!
//! Prints each beside what this machine can do at most, measured first: multiply-adds from registers, and reading memory.

use std::{env, hint::black_box, thread, time::Instant};

use half::{bf16, f16};
use kernels::*;

fn main() {
    let only = env::args().nth(1).unwrap_or_default();
    let limits = Limits::measure();
    println!("limits: {:.0} GFLOP/s, {:.1} GB/s read", limits.flops / 1e9, limits.bytes / 1e9);
    let parts: [(&str, fn(&Limits)); 1] = [("attention", attention_speed)];
    for (name, part) in parts {
        if name.contains(&only) {
            part(&limits);
        }
    }
}

/// What all threads together can do at most.
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
            (0..5).map(|_| time()).fold(f64::MAX, f64::min)
        };
        const STEPS: usize = 2_000_000;
        let time = slowest(&|_| vectorized_multiply_adds(STEPS));
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
            "{name:34} {:9.4} ms  {:6.1} GFLOP/s ({:3.0} %)  {:6.1} GB/s ({:3.0} %)",
            best * 1e3,
            flops / 1e9,
            100.0 * flops / self.flops,
            bytes / 1e9,
            100.0 * bytes / self.bytes,
        );
    }
}

const CHAINS: usize = 16;

#[allow(unsafe_code, reason = "entering functions compiled for features that were just detected")]
fn vectorized_multiply_adds(steps: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f")]
        fn avx512(steps: usize) {
            multiply_adds(steps)
        }
        #[target_feature(enable = "avx2,fma")]
        fn avx2(steps: usize) {
            multiply_adds(steps)
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
    multiply_adds(steps);
}

#[inline(always)]
fn multiply_adds(steps: usize) {
    let mut sums = black_box([[1.0f32; 16]; CHAINS]);
    let (a, b) = (black_box([0.999f32; 16]), black_box([0.001f32; 16]));
    for _ in 0..steps {
        for sum in &mut sums {
            for i in 0..16 {
                sum[i] = sum[i].mul_add(a[i], b[i]);
            }
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
    for heads in [16, 128] {
        attention_of::<f32>(limits, [64, 2048, heads, 1, 576, 512], usize::MAX);
        attention_of::<f32>(limits, [1, 8192, heads, 1, 576, 512], usize::MAX);
    }
}

fn attention_of<T: Scalar>(limits: &Limits, sizes: [usize; 6], window: usize) {
    let [tokens, length, heads, kv_heads, head_dim, value_dim] = sizes;
    let shape =
        AttentionShape { tokens, heads, kv_heads, head_dim, value_dim, length, capacity: length, window };
    let fill = |n: usize| -> Vec<T> { (0..n).map(|i| T::from_f32((i % 61) as f32 / 64.0 - 0.5)).collect() };
    let q = fill(tokens * heads * head_dim);
    let (k, v) = (fill(kv_heads * length * head_dim), fill(kv_heads * length * value_dim));
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

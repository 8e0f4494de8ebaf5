//! Speed of matrix products, relative to the memory bandwidth:
//! `cargo bench -p lanner-kernels --bench speed -- [THREADS] [NAME]`, which prints
//! the lines whose names contain NAME; `NAME$` must be the whole name.

use std::time::Instant;

use half::bf16;
use lanner_kernels::{Precision::*, *};

fn main() {
    // Cargo adds an argument of its own.
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let threads = arguments.next().and_then(|n| n.parse().ok()).unwrap_or_else(threads);
    set_threads(threads);
    let only = arguments.next().unwrap_or_default();
    let read = read_bandwidth(512 << 20, threads);
    println!("{} vectors, {threads} threads, reads {:.1} GB/s", simd_level().name(), read / 1e9);
    let report = Report { read, only };
    for (k, n) in [(1024, 3584), (3584, 1024), (1024, 248_320)] {
        for m in [1, 2, 4, 8, 16, 32, 64, 256, 1024] {
            if n < 10_000 || m <= 8 {
                products(&report, m, k, n);
            }
        }
    }
    for tokens in [1, 4, 64, 1024] {
        experts(&report, tokens, 1024, 512);
    }
    heads(&report);
    model(&report, &QWEN);
    model(&report, &MERLIN);
    for (k, n) in [(1024, 512), (1024, 3584), (2048, 1024), (3584, 1024), (1024, 248_320)] {
        token(&report, k, n);
    }
}

/// One row and many matrices in turn, more than fit in caches, as in decoding.
fn token(report: &Report, k: usize, n: usize) {
    let count = (150_000_000 / (n * k)).max(1);
    let (x, mut out) = (vec![0.5f32; k], vec![0.0f32; n]);
    let codes = vec![0x9a5c_3e71u32; count * n * k / 8];
    let scales = vec![bf16::from_f32(0.01); count * n * k / 64];
    let biases = scales.clone();
    let weight = |i: usize| {
        let (codes, groups) = (&codes[i * n * k / 8..][..n * k / 8], i * n * k / 64..(i + 1) * n * k / 64);
        let (scales, biases) = (Floats::Bf16(&scales[groups.clone()]), Floats::Bf16(&biases[groups]));
        Affine { codes, scales, biases, group_size: 64, bits: 4 }
    };
    report.line(&format!("token affine4 {count} x {n}x{k}"), count * k * n, count * n * k * 9 / 16, || {
        for i in 0..count {
            linear(&x, Weight::Affine(weight(i)), &mut out, k, n, Rounded)
        }
    });
    let packing = PackedLayout::for_weight(&weight(0), n).expect("whole blocks");
    let mut memory: Vec<Vec<u32>> = vec![];
    for i in 0..count {
        memory.push(vec![0; packing.words(n, k)]);
        packing.pack(weight(i), k, &mut memory[i]);
    }
    for m in [1, 2, 4, 6, 8] {
        let (x, mut out) = (vec![0.5f32; m * k], vec![0.0f32; m * n]);
        let name = format!("token packed4 {count} x {n}x{k} m={m}");
        report.line(&name, m * count * k * n, count * n * k * 9 / 16, || {
            for memory in &memory {
                let weight = Weight::Packed(Packed::new(packing, k, memory));
                linear(&x, weight, &mut out, k, n, Rounded)
            }
        });
    }
}

/// The sizes of a model's products. In each of `layers`, projections from `hidden` to each of
/// `inputs`, one from `mixed` back, and a feed-forward block of `inner`; then the output head,
/// whose codes may have more bits.
struct Shape {
    name: &'static str,
    layers: usize,
    hidden: usize,
    inputs: [usize; 4],
    mixed: usize,
    inner: usize,
    vocabulary: usize,
    head_bits: usize,
}

/// Its weights are read from memory.
const QWEN: Shape = Shape {
    name: "Qwen3.5-0.8B",
    layers: 18,
    hidden: 1024,
    inputs: [6144, 2048, 16, 16],
    mixed: 2048,
    inner: 3584,
    vocabulary: 248_320,
    head_bits: 4,
};

/// Its weights fit in a large cache; products are short.
const MERLIN: Shape = Shape {
    name: "merlin",
    layers: 12,
    hidden: 448,
    inputs: [1024, 512, 16, 16],
    mixed: 512,
    inner: 768,
    vocabulary: 8192,
    head_bits: 8,
};

/// The products of a token in a model's order; products of a layer that share their input are
/// computed together.
fn model(report: &Report, shape: &Shape) {
    let Shape { name, layers, hidden, inputs, mixed, inner, vocabulary, head_bits } = *shape;
    let packed = |n: usize, k: usize, bits: usize| {
        let scales = vec![bf16::from_f32(0.01); n * k / 64];
        let codes = vec![0x9a5c_3e71u32; n * k * bits / 32];
        let (scales, biases) = (Floats::Bf16(&scales), Floats::Bf16(&scales));
        let weight = Affine { codes: &codes, scales, biases, group_size: 64, bits };
        let packing = PackedLayout::for_weight(&weight, n).expect("whole blocks");
        let mut memory = vec![0; packing.words(n, k)];
        packing.pack(weight, k, &mut memory);
        (packing, k, n, memory)
    };
    let layer = |_| {
        let gated = [packed(inner, hidden, 4), packed(inner, hidden, 4)];
        (inputs.map(|n| packed(n, hidden, 4)), packed(hidden, mixed, 4), gated, packed(hidden, inner, 4))
    };
    let (stack, head) = ((0..layers).map(layer).collect::<Vec<_>>(), packed(vocabulary, hidden, head_bits));
    fn weight((packing, k, _, memory): &(PackedLayout, usize, usize, Vec<u32>)) -> Weight<'_> {
        Weight::Packed(Packed::new(*packing, *k, memory))
    }
    let body = layers * hidden * (inputs.iter().sum::<usize>() + mixed + 3 * inner);
    let bytes = body * 9 / 16 + vocabulary * hidden * (2 * head_bits + 1) / 16;
    for m in [1, 2, 4, 8, 9, 12, 16, 24, 32, 48, 64] {
        let x = vec![0.5f32; m * inner.max(mixed)];
        let mut out = vec![0.0f32; m * vocabulary];
        let mut outs = inputs.map(|n| vec![0.0f32; m * n]);
        report.line(&format!("{name} m={m}"), m * (body + vocabulary * hidden), bytes, || {
            for (inputs, output, [gate, up], down) in &stack {
                let pairs = inputs.iter().zip(&mut outs);
                let mut matmuls: Vec<Matmul> =
                    pairs.map(|(w, out)| Matmul { weight: weight(w), n: w.2, out }).collect();
                linears(&x[..m * hidden], hidden, &mut matmuls, Rounded);
                linear(&x[..m * mixed], weight(output), &mut out[..m * hidden], mixed, hidden, Rounded);
                let (rows, to) = (&x[..m * hidden], &mut out[..m * inner]);
                gated_linear(rows, weight(gate), weight(up), Activation::Silu, to, hidden, inner, Rounded);
                linear(&x[..m * inner], weight(down), &mut out[..m * hidden], inner, hidden, Rounded);
            }
            linear(&x[..m * hidden], weight(&head), &mut out, hidden, vocabulary, Rounded);
        });
    }
}

fn products(report: &Report, m: usize, k: usize, n: usize) {
    let x = vec![0.5f32; m * k];
    let mut out = vec![0.0f32; m * n];
    let name = |format: &str| format!("{format} {n}x{k} m={m}");
    let scales = vec![bf16::from_f32(0.01); n * k / 64];
    let scales = Floats::Bf16(&scales);
    for bits in [4, 8, 6] {
        let codes = vec![0x9a5c_3e71u32; n * k * bits / 32];
        let weight = Affine { codes: &codes, scales, biases: scales, group_size: 64, bits };
        let bytes = codes.len() * 4 + n * k / 16;
        report.line(&name(&format!("affine{bits}")), m * k * n, bytes, || {
            linear(&x, Weight::Affine(weight), &mut out, k, n, Rounded)
        });
        if bits == 4 && n < 10_000 {
            report.line(&name("affine4 in float32"), m * k * n, bytes, || {
                linear(&x, Weight::Affine(weight), &mut out, k, n, Float32)
            });
        }
    }
    if n > 10_000 {
        return;
    }
    for (format, bits, group) in
        [(FloatFormat::Mxfp4, 4, 32), (FloatFormat::Mxfp8, 8, 32), (FloatFormat::Nvfp4, 4, 16)]
    {
        let codes = vec![0x1a5c_3e71u32; n * k * bits / 32];
        let scales = vec![120u8; n * k / group];
        let weight = Weight::Microscaled(Microscaled { codes: &codes, scales: &scales, format });
        report.line(&name(&format!("{format:?}")), m * k * n, codes.len() * 4 + scales.len(), || {
            linear(&x, weight, &mut out, k, n, Rounded)
        });
    }
    let half = vec![bf16::from_f32(0.25); n * k];
    let weight = Weight::Dense(Floats::Bf16(&half));
    report.line(&name("bf16"), m * k * n, n * k * 2, || linear(&x, weight, &mut out, k, n, Rounded));
    let full = vec![0.25f32; n * k];
    let weight = Weight::Dense(Floats::F32(&full));
    report.line(&name("f32"), m * k * n, n * k * 4, || linear(&x, weight, &mut out, k, n, Float32));
}

/// 8 of 64 experts for every token, unevenly.
fn experts(report: &Report, tokens: usize, k: usize, n: usize) {
    let (count, per_row) = (64, 8);
    let rows = tokens * per_row;
    let chosen: Vec<u32> = (0..rows).map(|r| (r * r % 1009 % count) as u32).collect();
    let mut used = chosen.clone();
    used.sort_unstable();
    used.dedup();
    let (work, touched) = (rows * k * n, used.len() * k * n);
    let x = vec![0.5f32; tokens * k];
    let mut out = vec![0.0f32; rows * n];
    let codes = vec![0x9a5c_3e71u32; count * n * k / 8];
    let scales = vec![bf16::from_f32(0.01); count * n * k / 64];
    let scales = Floats::Bf16(&scales);
    let weight = Weight::Affine(Affine { codes: &codes, scales, biases: scales, group_size: 64, bits: 4 });
    report.line(&format!("experts affine4 tokens={tokens}"), work, touched * 9 / 16, || {
        grouped_linear(&x, weight, &chosen, per_row, &mut out, k, n, Rounded)
    });
}

/// A small matrix for each of 128 heads of one token.
fn heads(report: &Report) {
    let (heads, k, n) = (128, 128, 512);
    let chosen: Vec<u32> = (0..heads as u32).collect();
    let (x, weight) = (vec![0.5f32; heads * k], vec![bf16::from_f32(0.25); heads * n * k]);
    let mut out = vec![0.0f32; heads * n];
    let weight = Weight::Dense(Floats::Bf16(&weight));
    report.line("heads bf16", heads * k * n, heads * k * n * 2, || {
        grouped_linear(&x, weight, &chosen, 1, &mut out, k, n, Rounded)
    });
}

struct Report {
    /// Bytes per second.
    read: f64,
    only: String,
}

impl Report {
    /// Prints the best time of runs during 0.2 s.
    fn line(&self, name: &str, products: usize, weight_bytes: usize, mut work: impl FnMut()) {
        let wanted = match self.only.strip_suffix('$') {
            Some(whole) => name == whole,
            None => name.contains(&self.only),
        };
        if !wanted {
            return;
        }
        work();
        let (mut best, start) = (f64::MAX, Instant::now());
        while start.elapsed().as_secs_f64() < 0.2 {
            let start = Instant::now();
            work();
            best = best.min(start.elapsed().as_secs_f64());
        }
        let bytes = weight_bytes as f64 / best;
        println!(
            "{name:36} {:9.3} ms {:7.0} GFLOP/s {:6.1} GB/s of weights, {:3.0} % of reading",
            best * 1e3,
            2.0 * products as f64 / best / 1e9,
            bytes / 1e9,
            100.0 * bytes / self.read
        );
    }
}

//! Speed of the matrix products: `cargo run --release -p kernels --example speed`.

use std::time::Instant;

use half::bf16;
use kernels::{
    Affine, FloatFormat, Microscaled, grouped_affine_linear, grouped_linear, grouped_microscaled_linear,
    linear, microscaled_linear, quantized_linear,
};

fn main() {
    for m in [1, 4, 64, 256] {
        plain(m, 1024, 4096);
    }
    for tokens in [1, 4, 64, 1024] {
        experts(tokens, 1024, 512);
    }
    heads();
}

fn plain(m: usize, k: usize, n: usize) {
    let x = vec![0.5f32; m * k];
    let mut out = vec![0.0f32; m * n];
    let products = m * k * n;
    for bits in [4, 8, 2, 3] {
        let codes = vec![0x9a5c_3e71u32; n * k * bits / 32];
        let scales = vec![0.01f32; n * k / 64];
        let weight = Affine { codes: &codes, scales: &scales, biases: &scales, group_size: 64, bits };
        report(&format!("{bits}-bit m={m}"), products, codes.len() * 4, || {
            quantized_linear(&x, weight, &mut out, k, n)
        });
    }
    for (format, bits, group) in FORMATS {
        let codes = vec![0x1a5c_3e71u32; n * k * bits / 32];
        let scales = vec![120u8; n * k / group];
        let weight = Microscaled { codes: &codes, scales: &scales, format };
        report(&format!("{format:?} m={m}"), products, codes.len() * 4, || {
            microscaled_linear(&x, weight, &mut out, k, n)
        });
    }
    let dense = vec![0.25f32; n * k];
    report(&format!("f32 m={m}"), products, n * k * 4, || linear(&x, &dense, &mut out, k, n));
    let half = vec![bf16::from_f32(0.25); n * k];
    report(&format!("bf16 m={m}"), products, n * k * 2, || linear(&x, &half, &mut out, k, n));
}

const FORMATS: [(FloatFormat, usize, usize); 3] =
    [(FloatFormat::Mxfp4, 4, 32), (FloatFormat::Mxfp8, 8, 32), (FloatFormat::Nvfp4, 4, 16)];

/// 8 of 64 experts for every token, unevenly.
fn experts(tokens: usize, k: usize, n: usize) {
    let (count, per_row) = (64, 8);
    let rows = tokens * per_row;
    let chosen: Vec<u32> = (0..rows).map(|r| (r * r % 1009 % count) as u32).collect();
    let mut used = chosen.clone();
    used.sort_unstable();
    used.dedup();
    let (products, touched) = (rows * k * n, used.len() * k * n);
    let x = vec![0.5f32; tokens * k];
    let mut out = vec![0.0f32; rows * n];
    let codes = vec![0x9a5c_3e71u32; count * n * k / 8];
    let scales = vec![0.01f32; count * n * k / 64];
    let weight = Affine { codes: &codes, scales: &scales, biases: &scales, group_size: 64, bits: 4 };
    report(&format!("experts 4-bit {tokens}"), products, touched / 2, || {
        grouped_affine_linear(&x, weight, &chosen, per_row, &mut out, k, n)
    });
    let scales = vec![120u8; count * n * k / 32];
    let weight = Microscaled { codes: &codes, scales: &scales, format: FloatFormat::Mxfp4 };
    report(&format!("experts Mxfp4 {tokens}"), products, touched / 2, || {
        grouped_microscaled_linear(&x, weight, &chosen, per_row, &mut out, k, n)
    });
}

/// A small matrix for each of 128 heads of one token.
fn heads() {
    let (heads, k, n) = (128, 128, 512);
    let chosen: Vec<u32> = (0..heads as u32).collect();
    let (x, weight) = (vec![0.5f32; heads * k], vec![bf16::from_f32(0.25); heads * n * k]);
    let mut out = vec![0.0f32; heads * n];
    report("heads bf16 1", heads * k * n, heads * k * n * 2, || {
        grouped_linear(&x, &weight, &chosen, 1, &mut out, k, n)
    });
}

fn report(name: &str, products: usize, weight_bytes: usize, mut work: impl FnMut()) {
    work();
    let mut best = f64::MAX;
    for _ in 0..10 {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!(
        "{name:18} {:8.3} ms  {:6.1} GFLOP/s  {:5.1} GB/s of weights",
        best * 1e3,
        2.0 * products as f64 / best / 1e9,
        weight_bytes as f64 / best / 1e9
    );
}

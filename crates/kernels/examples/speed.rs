//! Speed of the matrix products: `cargo run --release -p kernels --example speed`.

use std::time::Instant;

use kernels::{Affine, linear, quantized_linear};

fn main() {
    let (k, n) = (1024, 4096);
    for m in [1, 4, 64, 256] {
        let x = vec![0.5f32; m * k];
        let mut out = vec![0.0f32; m * n];
        for bits in [4, 8, 2, 3] {
            let codes = vec![0x9a5c_3e71u32; n * k * bits / 32];
            let scales = vec![0.01f32; n * k / 64];
            let weight = Affine { codes: &codes, scales: &scales, biases: &scales, group_size: 64, bits };
            report(&format!("{bits}-bit m={m}"), m * k * n, codes.len() * 4, || {
                quantized_linear(&x, weight, &mut out, k, n)
            });
        }
        let dense = vec![0.25f32; n * k];
        report(&format!("f32 m={m}"), m * k * n, n * k * 4, || linear(&x, &dense, &mut out, k, n));
        let half = vec![half::bf16::from_f32(0.25); n * k];
        report(&format!("bf16 m={m}"), m * k * n, n * k * 2, || linear(&x, &half, &mut out, k, n));
    }
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
        "{name:12} {:8.3} ms  {:6.1} GFLOP/s  {:5.1} GB/s of weights",
        best * 1e3,
        2.0 * products as f64 / best / 1e9,
        weight_bytes as f64 / best / 1e9
    );
}

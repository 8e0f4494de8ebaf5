use half::bf16;
use kernels::{Precision::*, *};
use std::time::Instant;
fn main() {
    set_threads(1);
    let bits: usize = std::env::args().nth(1).map_or(4, |b| b.parse().unwrap());
    let (n, k) = (256, 1024);
    let scales = vec![bf16::from_f32(0.01); n * k / 64];
    let codes = vec![0x9a5c_3e71u32; n * k * bits / 32];
    let (scales, biases) = (Floats::Bf16(&scales), Floats::Bf16(&scales));
    let weight = Affine { codes: &codes, scales, biases, group_size: 64, bits };
    let packing = Packing::of(&weight, n).unwrap();
    let mut memory = vec![0; packing.words(n, k)];
    packing.pack(weight, k, &mut memory);
    let mut text = String::new();
    for m in [1usize, 2, 3, 4, 8, 16, 64, 128] {
        let x: Vec<f32> = (0..m * k).map(|i| (i % 97) as f32 * 0.01).collect();
        let mut out = vec![0.0f32; m * n];
        let mut best = f64::MAX;
        let reps = 20000 / m.max(8);
        for _ in 0..reps {
            let start = Instant::now();
            linear(&x, Weight::Packed(Packed::new(packing, k, &memory)), &mut out, k, n, Rounded);
            best = best.min(start.elapsed().as_secs_f64());
        }
        text += &format!("m={m}: {:.1}  ", 2e-9 * (m * n * k) as f64 / best);
    }
    println!("{text}");
}

//! Products of random sizes, rows and inputs against the CPU's, counted.

use mlx::Array;

use super::support::{Random, bits, check_unrecorded, has_device, is_gpu, linear_in_groups};

/// Outputs to compare of each format: LANNER_PRODUCTS, else a million on a GPU.
fn outputs() -> usize {
    let given = std::env::var("LANNER_PRODUCTS").ok().and_then(|n| n.parse().ok());
    given.unwrap_or(if is_gpu() { 1_000_000 } else { 2_000 })
}

#[test]
fn random_products_match_the_cpu() {
    if !has_device() {
        return;
    }
    for format in [[4, 64], [8, 64], [2, 64], [3, 64], [5, 64], [6, 64], [4, 128], [3, 128]] {
        let (mut random, mut compared, mut cases) = (Random::new(format[0] as u64), 0, 0);
        while compared < outputs() {
            let rows = match random.between(0, 3) {
                0 => 1,
                1 => random.between(2, 8),
                2 => random.between(9, 64),
                _ => random.between(65, if is_gpu() { 300 } else { 70 }),
            };
            let inputs = format[1] * random.between(1, if is_gpu() { 60 } else { 8 });
            let size = [random.between(1, if is_gpu() { 700 } else { 40 }), inputs];
            let (seed, spread, bias) = (random.next(), 6 * random.between(0, 4), random.between(0, 1) == 0);
            let what = format!("{rows} rows, {size:?}, {format:?}, spread {spread}, seed {seed}");
            check_unrecorded(&what, || {
                let layer = linear_in_groups(seed, size, format, bias);
                let x = spread_numbers(seed, (rows * inputs) as usize, spread);
                bits(&layer.forward(&Array::from_slice(&x, &[rows, inputs])))
            });
            compared += (rows * size[0]) as usize;
            cases += 1;
        }
        println!("{} bits, groups of {}: {compared} outputs of {cases} products", format[0], format[1]);
    }
}

/// Numbers whose exponents lie within 2^±`spread`, some of them zeros.
fn spread_numbers(seed: u64, n: usize, spread: i32) -> Vec<f32> {
    let mut random = Random::new(seed);
    let number = |_| {
        let (bits, exponent) = (random.next(), random.between(-spread, spread));
        let fraction = (bits & 0xFF_FFFF) as f32 / (1 << 23) as f32 - 1.0;
        if spread > 0 && bits >> 60 == 0 { 0.0 } else { fraction * 2f32.powi(exponent) }
    };
    (0..n).map(number).collect()
}

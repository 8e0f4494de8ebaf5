//! Products with 4-bit floats in MXFP4.

use lanner_nn::{Activation, Embedding, Linear, Residual};
use mlx::Array;

use super::support::{
    array, bits, block_outputs, check, gated_projection_outputs, has_device, is_gpu, linear, norm,
    quantized_floats,
};

fn floats(seed: u64, size: [i32; 2], bias: bool) -> Linear {
    let bias = bias.then(|| array(seed + 1, &size[..1]));
    Linear::prepacked(quantized_floats(seed, &size), bias).unwrap()
}

#[test]
fn products_of_4_bit_floats_match_the_cpu() {
    if !has_device() {
        return;
    }
    let small = vec![[80, 448], [24, 1088], [130, 64]];
    let large = vec![[4096, 4096], [2880, 4096], [1000, 12288]];
    let sizes = if is_gpu() { [small, large].concat() } else { small };
    for warpgroups in [true, false] {
        lanner_nn::allow_warpgroups(warpgroups);
        for (i, size) in sizes.iter().copied().enumerate() {
            check(&format!("{size:?}, warpgroups: {warpgroups}"), || {
                let layer = floats(i as u64, size, i % 2 == 0);
                // Few rows have one kernel.
                let rows: &[i32] = if warpgroups { &[1, 2, 9, 64, 65, 130] } else { &[65, 97] };
                let all: Vec<Vec<u32>> = rows
                    .iter()
                    .map(|&rows| bits(&layer.forward(&array(rows as u64, &[rows, size[1]]))))
                    .collect();
                all
            });
        }
    }
    lanner_nn::allow_warpgroups(true);
}

#[test]
fn layers_of_4_bit_floats_among_others_match_the_cpu() {
    if !has_device() {
        return;
    }
    for rows in [1, 7, 70] {
        check(&format!("{rows} rows after a norm"), || {
            let floats = [(96, 1), (8, 2), (40, 3)].map(|(n, seed)| floats(seed, [n, 448], n == 40));
            let affine = [(16, 4), (24, 8)].map(|(n, width)| linear(n as u64, [n, 448], width, false));
            let ([a, b, c], [d, e]) = (&floats, &affine);
            let (x, norm) = (array(1, &[rows, 448]), norm(2, 448));
            Residual::new(&x, &norm).project([a, d, b, e, c]).map(|out| bits(&out))
        });
        check(&format!("{rows} rows of a block"), || {
            block_outputs(rows, Activation::Silu, |seed, size| floats(seed, size, seed == 3))
        });
        check(&format!("{rows} rows after norms of heads"), || {
            gated_projection_outputs([64, rows], |seed, size| floats(seed, size, false))
        });
    }
}

#[test]
fn embeddings_of_4_bit_floats_match_the_cpu() {
    if !has_device() {
        return;
    }
    check("rows of 4-bit floats", || {
        let table = Embedding::new(floats(11, [100, 1088], false), 100, Some(mlx::Dtype::Float32));
        let ids: Vec<u32> = vec![0, 99, 17, 17, 50, 8, 15, 16];
        let one = table.forward(&Array::from_slice(&[7u32], &[1]));
        [bits(&table.forward(&Array::from_slice(&ids, &[8]))), bits(&one)]
    });
}

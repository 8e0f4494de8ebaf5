//! Layers whose weights are floats.

use lanner_nn::{Activation, Embedding, Linear, Matrix, Mlp, Precision, Residual, set_precision, simd_level};
use mlx::{Array, Dtype};

use super::support::{array, bits, check, has_device, is_gpu, norm};

/// Types of weights whose products on this CPU are those of a GPU.
fn dtypes() -> Vec<Dtype> {
    let tiles = simd_level().name().starts_with("amx");
    if tiles {
        eprintln!("without bfloat16: this CPU's tiles add it up in another order");
    }
    let all = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];
    all.into_iter().filter(|&dtype| !tiles || dtype != Dtype::Bfloat16).collect()
}

fn dense(seed: u64, size: [i32; 2], dtype: Dtype, bias: bool) -> Linear {
    let bias = bias.then(|| array(seed + 1, &[size[0]]));
    Linear::prepacked(Matrix::Dense(array(seed, &size).astype(dtype)), bias).unwrap()
}

#[test]
fn products_of_floats_match_the_cpu() {
    if !has_device() {
        return;
    }
    let mut sizes = vec![[80, 448], [3, 50], [130, 1088]];
    if is_gpu() {
        sizes.extend([[4096, 2560], [1000, 8192]]);
    }
    for dtype in dtypes() {
        for (i, &size) in sizes.iter().enumerate() {
            for rows in [1, 2, 15, 16, 19, 70] {
                check(&format!("{rows} rows, {size:?}, {}", dtype.name()), || {
                    let layer = dense(i as u64, size, dtype, i % 2 == 0);
                    bits(&layer.forward(&array(rows as u64, &[rows, size[1]])))
                });
            }
        }
    }
}

/// With integers of 8 bits for quantised weights, others are multiplied as ever.
#[test]
fn products_of_floats_in_other_precisions_match_the_cpu() {
    if !has_device() {
        return;
    }
    for precision in [Precision::Int8, Precision::Float32] {
        for dtype in dtypes() {
            check(&format!("{}, {precision:?}", dtype.name()), || {
                set_precision(precision);
                let out = bits(&dense(1, [80, 448], dtype, false).forward(&array(2, &[3, 448])));
                set_precision(Precision::Rounded);
                out
            });
        }
    }
}

#[test]
fn rows_of_floats_match_the_cpu() {
    if !has_device() {
        return;
    }
    for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
        check(&format!("rows of {}", dtype.name()), || {
            let table = Embedding::new(dense(11, [100, 320], dtype, false), 100, Some(Dtype::Float32));
            bits(&table.forward(&Array::from_slice(&[0u32, 99, 17, 17, 50], &[5])))
        });
    }
}

#[test]
fn blocks_of_floats_match_the_cpu() {
    if !has_device() {
        return;
    }
    for dtype in dtypes() {
        for rows in [1, 20] {
            check(&format!("{rows} rows, {}", dtype.name()), || {
                let (hidden, inner, width) = (72, 160, 384);
                let layer = |seed, size| dense(seed, size, dtype, false);
                let mlp = |activation| {
                    let layers =
                        [layer(1, [inner, hidden]), layer(2, [inner, hidden]), layer(3, [hidden, inner])];
                    Mlp::new(layers, activation)
                };
                let (stream, pre, post) = (array(9, &[rows, hidden]), norm(4, hidden), norm(5, hidden));
                let plain = mlp(Activation::Silu).add_to(&Residual::new(&stream, &pre));
                let sandwich = Residual::new(&stream, &pre).with_post_norm(&post);
                let sandwich = mlp(Activation::GeluTanh).add_to(&sandwich);
                let (x, gate) = (array(2, &[rows, width]), array(3, &[rows, width]));
                let (out, heads) = (layer(6, [hidden, width]), norm(7, 128));
                let residual = Residual::new(&stream, &pre);
                let gated = residual.add_gated(&out, &heads, &gate, &x);
                [plain, sandwich, gated, residual.add_projected(&out, &x)].map(|out| bits(&out))
            });
        }
    }
}

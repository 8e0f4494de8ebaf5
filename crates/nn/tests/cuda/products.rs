//! Products, and what is fused with them.

use lanner_nn::{Activation, Embedding, Residual, RmsNorm};
use mlx::Array;

use super::support::{
    array, bits, block_outputs, check, gated_projection_outputs, has_device, is_gpu, linear, norm,
};

/// Row counts at the edges of what a launch takes at once.
const ROWS: [i32; 12] = [1, 2, 4, 5, 8, 9, 32, 33, 64, 65, 128, 130];

fn sizes() -> Vec<[i32; 2]> {
    let small = vec![[80, 448], [16, 64], [130, 1024], [24, 1088]];
    let large = vec![[4096, 4096], [4096, 12288], [12352, 1024], [1000, 8192]];
    if is_gpu() { [small, large].concat() } else { small }
}

#[test]
fn linear_of_every_number_of_rows_matches_the_cpu() {
    if !has_device() {
        return;
    }
    for (i, size) in sizes().into_iter().enumerate() {
        for width in [4, 8] {
            let rows = if is_gpu() { &ROWS[..] } else { &ROWS[i % 2..] };
            check(&format!("{size:?}, {width} bits"), || {
                let layer = linear(i as u64, size, width, i % 2 == 0);
                let all: Vec<Vec<u32>> = rows
                    .iter()
                    .step_by(if is_gpu() { 1 } else { 2 })
                    .map(|&rows| bits(&layer.forward(&array(rows as u64, &[rows, size[1]]))))
                    .collect();
                all
            });
        }
    }
}

/// Products by warpgroups and by single warps: sums of several segments, tiles of rows and features
/// that are not full, matrices side by side.
#[test]
fn products_of_many_rows_match_the_cpu_with_and_without_warpgroups() {
    if !has_device() {
        return;
    }
    for warpgroups in [true, false] {
        lanner_nn::allow_warpgroups(warpgroups);
        for (rows, inputs) in [(65, 1088), (129, 448), (193, 64)] {
            for width in [4, 8] {
                check(&format!("{rows} rows of {inputs}, {width} bits, warpgroups: {warpgroups}"), || {
                    let layers = [300, 8, 130].map(|n| linear(n as u64, [n, inputs], width, n == 130));
                    let [a, b, c] = &layers;
                    let (x, norm) = (array(1, &[rows, inputs]), norm(2, inputs));
                    Residual::new(&x, &norm).project([a, b, c]).map(|out| bits(&out))
                });
            }
        }
    }
    lanner_nn::allow_warpgroups(true);
}

/// Products of 9 to 64 rows, at the edges of tiles of 32 and 64 rows and of what a warp computes:
/// sums of more segments than there are workers, features that fill no tile, matrices side by side,
/// tiles that all fit on the device at once and more.
#[test]
fn products_of_some_rows_match_the_cpu_with_and_without_warpgroups() {
    if !has_device() {
        return;
    }
    // The most segments with the fewest rows: an emulated device is slow.
    let of = |i: usize| if is_gpu() { 4096 } else { [2624, 64, 1088][i % 3] };
    let by_warpgroups = [9, 16, 17, 31, 32, 33, 48, 63, 64].into_iter().enumerate();
    let by_warps = [9, 32, 33].into_iter().enumerate();
    for (warpgroups, (i, rows)) in
        by_warpgroups.map(|own| (true, own)).chain(by_warps.map(|own| (false, own)))
    {
        lanner_nn::allow_warpgroups(warpgroups);
        for width in [4, 8] {
            let (inputs, wide) = (of(i), if is_gpu() { 4354 } else { 130 });
            check(&format!("{rows} rows of {inputs}, {width} bits, warpgroups: {warpgroups}"), || {
                let layers = [wide, 8, 71].map(|n| linear(n as u64, [n, inputs], width, n == wide));
                let [a, b, c] = &layers;
                let (x, norm) = (array(1, &[rows, inputs]), norm(2, inputs));
                let (stream, pre) = (array(3, &[rows, 71]), super::support::norm(4, 71));
                let added = Residual::new(&stream, &pre).add_projected(c, &x);
                [Residual::new(&x, &norm).project([a, b, c]).map(|out| bits(&out)).concat(), bits(&added)]
            });
        }
    }
    lanner_nn::allow_warpgroups(true);
}

/// Few rows of more inputs than fit into shared memory: in two passes, the second one shorter.
#[test]
fn products_of_few_long_rows_match_the_cpu() {
    if !has_device() {
        return;
    }
    for (rows, width) in [(8, 4), (5, 4), (6, 8)] {
        check(&format!("{rows} rows, {width} bits"), || {
            let layers = [75, 20].map(|n| linear(n as u64, [n, 12800], width, n == 75));
            let x = array(1, &[rows, 12800]);
            let (stream, pre) = (array(3, &[rows, 75]), super::support::norm(4, 75));
            let added = Residual::new(&stream, &pre).add_projected(&layers[0], &x);
            [bits(&added), bits(&layers[1].forward(&x))]
        });
    }
}

#[test]
fn linear_of_unusual_inputs_matches_the_cpu() {
    if !has_device() {
        return;
    }
    check("zeros, tiny numbers and infinities", || {
        let layer = linear(5, [32, 192], 4, false);
        let mut x = super::support::numbers(3, 4 * 192);
        x[..64].fill(0.0);
        x[64..128].fill(1e-33);
        x[192 + 3] = f32::INFINITY;
        x[2 * 192] = f32::MAX;
        let out = layer.forward(&Array::from_slice(&x, &[4, 192])).to_vec::<f32>().unwrap();
        out.into_iter().map(|v| if v.is_nan() { 1 } else { v.to_bits() }).collect::<Vec<u32>>()
    });
}

#[test]
fn projections_after_a_norm_match_the_cpu() {
    if !has_device() {
        return;
    }
    for rows in [1, 3, 20] {
        check(&format!("{rows} rows"), || {
            let layers = [(96, 4), (8, 4), (40, 8), (16, 4), (128, 4), (24, 4)];
            let layers = layers.map(|(n, width)| linear(n as u64, [n, 448], width, n == 40));
            let [a, b, c, d, e, f] = &layers;
            let (x, norm) = (array(1, &[rows, 448]), norm(2, 448));
            let residual = Residual::new(&x, &norm);
            residual.project([a, b, c, d, e, f]).map(|out| bits(&out))
        });
    }
}

#[test]
fn mlp_added_to_the_stream_matches_the_cpu() {
    if !has_device() {
        return;
    }
    for rows in [1, 6, 12, 33, 70] {
        for activation in [Activation::Silu, Activation::GeluTanh] {
            check(&format!("{rows} rows, {activation:?}"), || {
                block_outputs(rows, activation, |seed, size| linear(seed, size, 4, false))
            });
        }
    }
}

#[test]
fn gated_output_projection_matches_the_cpu() {
    if !has_device() {
        return;
    }
    for (dim, rows) in [(64, 1), (128, 5), (64, 12), (64, 40), (128, 70), (32, 3)] {
        check(&format!("heads of {dim}, {rows} rows"), || {
            gated_projection_outputs([dim, rows], |seed, size| linear(seed, size, 4, false))
        });
    }
}

#[test]
fn norm_and_embedding_match_the_cpu() {
    if !has_device() {
        return;
    }
    check("norms", || {
        [(1, 448), (7, 72), (3, 5), (40, 4096)]
            .map(|(rows, size)| bits(&norm(3, size).forward(&array(1, &[rows, size]))))
    });
    check("a norm without weight", || bits(&RmsNorm::plain(64, 1e-5).forward(&array(8, &[9, 64]))));
    for width in [4, 8] {
        check(&format!("rows of {width} bits"), || {
            let table = Embedding::new(linear(11, [100, 1088], width, false), 100, Some(mlx::Dtype::Float32));
            let ids: Vec<u32> = vec![0, 99, 17, 17, 50, 8, 15, 16];
            bits(&table.forward(&Array::from_slice(&ids, &[8])))
        });
    }
}

/// Groups of a segment too far apart to share a step in half precision, next to those that can:
/// sizes 2^-24 and 2^-25 of each other, zeros, what ends a row, and inputs near the limits of what
/// has integers.
#[test]
fn products_of_groups_with_steps_of_their_own_match_the_cpu() {
    if !has_device() {
        return;
    }
    let inputs = 1088;
    for rows in [20, 70, 130] {
        check(&format!("steps of their own, {rows} rows"), || {
            let layer = linear(7, [70, inputs], 4, true);
            let mut x = super::support::numbers(rows as u64, (rows * inputs) as usize);
            for (r, row) in x.chunks_mut(inputs as usize).enumerate() {
                let scale = match r % 13 {
                    1 => 2f32.powi(-24),
                    3 => 2f32.powi(-25),
                    5 => 0.0,
                    7 => 1e-36,
                    8 => 1e29,
                    9 => 1e-27,
                    11 => f32::INFINITY,
                    _ => 1.0,
                };
                row[64 * (r % 8)..][..64].iter_mut().for_each(|v| *v *= scale);
                if r % 3 == 0 {
                    row[512..576].iter_mut().for_each(|v| *v *= 2f32.powi(-26));
                }
            }
            let out = layer.forward(&Array::from_slice(&x, &[rows, inputs])).to_vec::<f32>().unwrap();
            out.into_iter().map(|v| if v.is_nan() { 1 } else { v.to_bits() }).collect::<Vec<u32>>()
        });
    }
}

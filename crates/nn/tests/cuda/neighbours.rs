//! A row's bits do not depend on the other rows of a launch: on how many there are, where it is
//! among them, nor on what they hold.

use lanner_nn::{
    Activation, CoreAttention, DeltaHeads, DeltaNet, DeltaRow, DeltaWeights, KvBuffer, KvRow, Mlp,
    Recurrence, Residual, RmsNorm, Rope, RopePairs,
};
use mlx::Array;

use super::support::{array, bits, check, has_device, is_gpu, linear, norm, numbers};

/// The number that fills a row's neighbours; `None` fills them with numbers of magnitude 1.
const NEIGHBOURS: [Option<f32>; 4] = [None, Some(f32::NAN), Some(3e38), Some(f32::INFINITY)];

fn row_counts() -> Vec<i32> {
    match is_gpu() {
        true => (2..=65).chain([127, 128, 129, 511, 2048]).collect(),
        false => vec![2, 9, 66],
    }
}

/// `make` makes an operation of rows of `inputs` numbers, here of up to `most` rows.
fn check_rows(what: &str, inputs: i32, most: i32, make: impl Fn() -> Box<dyn Fn(&Array) -> Array>) {
    check(what, || {
        let operation = make();
        let row_of = |rows: i32, place: i32, neighbour: Option<f32>| {
            let size = (rows * inputs) as usize;
            let mut x = neighbour.map_or_else(|| numbers(rows as u64, size), |fill| vec![fill; size]);
            let own = numbers(7, inputs as usize);
            x[(place * inputs) as usize..][..own.len()].copy_from_slice(&own);
            let out = operation(&Array::from_slice(&x, &[rows, inputs]));
            bits(&out.reshape(&[rows, -1]).slice(0, place, place + 1))
        };
        let alone = row_of(1, 0, None);
        for rows in row_counts().into_iter().filter(|rows| *rows <= most) {
            for (i, neighbour) in NEIGHBOURS.into_iter().enumerate() {
                let place = [0, rows - 1, rows / 2, 0][i];
                let among = row_of(rows, place, neighbour);
                assert!(among == alone, "{what}: row {place} of {rows} among {neighbour:?}");
            }
        }
        alone
    });
}

#[test]
fn rows_of_products_do_not_depend_on_their_neighbours() {
    if !has_device() {
        return;
    }
    for width in [4, 8] {
        check_rows(&format!("products of {width} bits"), 576, 2048, || {
            let layer = linear(1, [80, 576], width, true);
            Box::new(move |x| layer.forward(x))
        });
    }
    check_rows("products after a norm", 448, 2048, || {
        let (norm, layers) = (norm(2, 448), [96, 40].map(|outputs| linear(3, [outputs, 448], 4, false)));
        Box::new(move |x| {
            let outs = Residual::new(x, &norm).project([&layers[0], &layers[1]]);
            Array::concatenate(&outs, 1)
        })
    });
    check_rows("an MLP", 128, 2048, || {
        let layer = |seed, size| linear(seed, size, 4, false);
        let layers = [layer(1, [192, 128]), layer(2, [192, 128]), layer(3, [128, 192])];
        let (mlp, norm) = (Mlp::new(layers, Activation::Silu), norm(4, 128));
        Box::new(move |x| mlp.add_to(&Residual::new(x, &norm)))
    });
    check_rows("a gated projection after norms of heads", 384, 2048, || {
        let (layer, stream, heads) = (linear(6, [72, 384], 4, false), norm(4, 72), norm(5, 128));
        Box::new(move |x| {
            let residual = x.slice(1, 0, 72).contiguous();
            Residual::new(&residual, &stream).add_gated(&layer, &heads, x, x)
        })
    });
    check_rows("a norm", 448, 2048, || {
        let norm = norm(3, 448);
        Box::new(move |x| norm.forward(x))
    });
}

#[test]
fn sequences_do_not_depend_on_their_neighbours() {
    if !has_device() {
        return;
    }
    for dim in [64, 128] {
        // Queries, keys and values of a key head and two value heads, then both gates.
        check_rows(&format!("a delta rule of heads of {dim}"), 4 * dim + 4, 511, move || {
            let heads = DeltaHeads { key_heads: 1, value_heads: 2, key_dim: dim, value_dim: dim };
            let weights = DeltaWeights {
                conv1d: array(1, &[4 * dim, 4]),
                neg_exp_a: Array::from_slice(&[-0.5f32, -0.25], &[2]),
                dt_bias: array(2, &[2]),
                norms: [(dim as f32).powf(-0.5), 1.0].map(|scale| RmsNorm::l2(dim, 1e-6, scale)),
            };
            let net = DeltaNet::new(heads, weights);
            Box::new(move |x| {
                let part = |from: i32, to: i32| x.slice(1, from, to).contiguous();
                let (qkv, b, a) =
                    (part(0, 4 * dim), part(4 * dim, 4 * dim + 2), part(4 * dim + 2, 4 * dim + 4));
                let mut states = vec![Recurrence::default(); x.dim(0) as usize];
                let mut step = || {
                    let rows = states.iter_mut().map(|state| DeltaRow { tokens: 1, num_draft: 0, state });
                    net.forward(&qkv, &b, &a, &mut rows.collect::<Vec<_>>())
                };
                let outs = [step(), step()];
                Array::concatenate(&outs, 1)
            })
        });
        check_rows(&format!("attention with heads of {dim}"), 8 * dim, 511, move || {
            let frequencies = (0..16).map(|i| 1e4f32.powf(-(i as f32) / 16.0)).collect();
            let rope = Rope { frequencies, axes: vec![], pairs: RopePairs::Halves, scale: 1.0 };
            let attention = CoreAttention::new(4, 2, dim, rope).with_qk_norm(norm(1, dim), norm(2, dim));
            Box::new(move |x| {
                let part = |from: i32, to: i32| x.slice(1, from * dim, to * dim).contiguous();
                let [q, k, v] = [part(0, 4), part(4, 6), part(6, 8)];
                let sequences = x.dim(0);
                let mut buffers: Vec<[KvBuffer; 2]> = (0..sequences).map(|_| Default::default()).collect();
                let mut step = |past: i32| {
                    let positions = Array::from_slice(&vec![past; sequences as usize], &[sequences]);
                    let rows = buffers.iter_mut().map(|[keys, values]| KvRow {
                        tokens: 1,
                        past,
                        window: None,
                        images: &[],
                        keys,
                        values,
                    });
                    attention.forward([&q, &k, &v], &positions, &mut rows.collect::<Vec<_>>())
                };
                let outs = [0, 1, 2].map(&mut step);
                Array::concatenate(&outs, 1)
            })
        });
    }
}

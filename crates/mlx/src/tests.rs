//! Our kernels against the same operations made of MLX's own, which are what a GPU runs: both are tested at once.

mod layers;

use crate::{
    Array, Dtype, KvBuffer, OutputSpec, Precision, Softmax, apply, attend, attend_latent, attend_over, eval,
    fast::{self, Activation, Rope, RopePairs},
    portable,
    quant::{self, Mode, Quantization},
    set_precision,
};

/// Does not compile if arrays could cross threads: then it would not be clear which of the two is meant.
const _: fn() = || {
    trait Ambiguous<T> {
        fn none() {}
    }
    struct IfSend;
    impl<T: ?Sized> Ambiguous<()> for T {}
    impl<T: ?Sized + Send> Ambiguous<IfSend> for T {}
    <Array as Ambiguous<_>>::none();
};

fn noise(seed: u64, shape: &[i32]) -> Array {
    Array::gumbel(shape, seed)
}

fn values(array: &Array) -> Vec<f32> {
    array.to_f32().expect("evaluates")
}

fn close(got: &Array, expected: &Array, bound: f32) {
    assert_eq!(got.shape(), expected.shape());
    for (i, (a, b)) in values(got).into_iter().zip(values(expected)).enumerate() {
        assert!((a - b).abs() <= bound * b.abs().max(1.0), "element {i}: {a} for {b}");
    }
}

fn bits(array: &Array) -> Vec<u32> {
    values(array).iter().map(|v| v.to_bits()).collect()
}

#[test]
fn large_arrays_begin_on_a_line_of_the_cache() {
    let numbers = Array::zeros(&[3, 5000], Dtype::Float32);
    let output = OutputSpec { shape: vec![3, 5000], dtype: Dtype::Float32 };
    let [copy] = apply("copy", &[&numbers], [output], |inputs, outputs| {
        let places = [inputs[0].bytes().as_ptr(), outputs[0].bytes().as_ptr()];
        assert_eq!(places.map(|place| place.addr() % 64), [0, 0]);
        outputs[0].bytes().copy_from_slice(inputs[0].bytes());
    });
    assert_eq!(bits(&copy), bits(&numbers));
}

/// One head, as latents have: all rows lie one behind the other, the case in which MLX avoids copies.
#[test]
fn copied_keys_survive_what_becomes_of_their_buffer() {
    for (heads, dim) in [(1, 16), (1, 200), (3, 16)] {
        let [q, latent] = [noise(1, &[256, heads, dim]), noise(2, &[256, heads, dim])];
        let mut buffer = KvBuffer::default();
        let write = |buffer: &mut KvBuffer, latent: &Array| {
            eval([&attend_latent(&q, latent, buffer, dim, 0, None, &Softmax::scaled(0.3))])
                .expect("evaluates");
        };
        write(&mut buffer, &latent);
        for (from, to) in [(0, 256), (0, 1), (5, 250)] {
            let copy = buffer.copy(from, to).expect("filled");
            eval([&copy]).expect("evaluates");
            write(&mut buffer, &(&latent * 0.5));
            let expected = latent.transpose(&[1, 0, 2]).slice(1, from, to);
            assert_eq!(bits(&copy), bits(&expected), "{heads} {dim} {from}..{to}");
            // The kernel writes in place here too, into memory of the joined buffer's own.
            let mut joined = KvBuffer::joined(std::slice::from_ref(&copy), 300);
            eval(joined.array()).expect("evaluates");
            write(&mut joined, &(&latent * 0.25));
            assert_eq!(bits(&copy), bits(&expected), "{heads} {dim} {from}..{to} after joining");
            write(&mut buffer, &latent);
        }
    }
}

#[test]
fn linear_is_matmul() {
    let (x, w) = (noise(1, &[2, 7, 50]), noise(2, &[33, 50]));
    close(&fast::linear(&x, &w), &portable::linear(&x, &w), 1e-4);
    let half = fast::linear(&x.astype(Dtype::Bfloat16), &w.astype(Dtype::Bfloat16));
    assert_eq!(half.dtype(), Dtype::Bfloat16);
    close(&half, &portable::linear(&x, &w), 0.1);
}

fn formats() -> Vec<Quantization> {
    let affine = [2, 3, 4, 5, 6, 8].into_iter().flat_map(|bits| {
        [32, 64, 128].map(|group_size| Quantization { mode: Mode::Affine, group_size, bits })
    });
    affine.chain(Mode::ALL.into_iter().filter_map(Mode::fixed)).collect()
}

#[test]
fn quantized_products_agree_with_mlx_for_every_format() {
    // MLX multiplies what it is given, unrounded.
    set_precision(Precision::Float32);
    for quantization in formats() {
        let (x, dense) = (noise(3, &[5, 256]), noise(4, &[48, 256]));
        let matrix = quant::quantize(&dense, quantization);
        let dense = matrix.dequantize(Dtype::Float32);
        close(&matrix.matmul(&x), &portable::linear(&x, &dense), 2e-4);
        let indices = Array::from_slice(&[7u32, 0, 47], &[3]);
        assert_eq!(values(&matrix.rows(&indices, Dtype::Float32)), values(&dense.take(&indices, 0)));
    }
}

#[test]
fn grouped_products_agree_with_mlx_for_every_format() {
    // MLX multiplies what it is given, unrounded.
    set_precision(Precision::Float32);
    let experts = Array::from_slice(&[3u32, 0, 1, 1, 2, 3, 0, 3], &[4, 2]);
    for per in [1, 2] {
        let (x, dense) = (noise(5, &[4, per, 128]), noise(6, &[4, 40, 128]));
        close(
            &fast::grouped_linear(&x, &dense, &experts),
            &portable::grouped_linear(&x, &dense, &experts),
            2e-4,
        );
        for quantization in formats() {
            let stack = quant::quantize(&dense, quantization);
            let dense = stack.dequantize(Dtype::Float32);
            let expected = portable::grouped_linear(&x, &dense, &experts);
            close(&stack.grouped_matmul(&x, &experts), &expected, 2e-4);
            close(&stack.grouped_matmul_mlx(&x, &experts), &expected, 2e-4);
        }
    }
}

#[test]
fn rms_norm_is_its_definition_and_mlxs() {
    let (x, w) = (noise(5, &[4, 3, 24]), noise(6, &[24]));
    let mean = x.square().sum(-1, true) / 24.0;
    close(&fast::rms_norm(&x, &w, 1e-6), &(&x * (mean + 1e-6).rsqrt() * &w), 1e-5);
    close(&fast::rms_norm(&x, &w, 1e-6), &portable::rms_norm(&x, &w, 1e-6), 1e-5);
}

#[test]
fn rotations_agree_with_mlxs() {
    let x = noise(7, &[5, 3, 20]);
    let positions = Array::from_slice(&[0i32, 7, 8, 900, 3], &[5]);
    for (pairs, pair_count) in [(RopePairs::Halves, 4), (RopePairs::Adjacent, 10), (RopePairs::Halves, 10)] {
        let frequencies = (0..pair_count).map(|i| 0.3f32.powi(i)).collect();
        let rope = Rope { frequencies, pairs, scale: 1.3 };
        close(&fast::rope(&x, &positions, &rope), &portable::rope(&x, &positions, &rope), 2e-4);
    }
}

#[test]
fn convolutions_gates_and_choices_agree_with_mlxs() {
    let (x, weight, state) = (noise(8, &[9, 6]), noise(9, &[6, 4]), noise(10, &[3, 6]));
    for silu in [true, false] {
        let (out, end) = fast::causal_conv(&x, &weight, &state, silu);
        let (expected, expected_end) = portable::causal_conv(&x, &weight, &state, silu);
        close(&out, &expected, 1e-5);
        assert_eq!(values(&end), values(&expected_end));
    }
    let up = noise(11, &[9, 6]);
    for activation in [Activation::Silu, Activation::GeluTanh] {
        close(&fast::gated(&x, &up, activation), &portable::gated(&x, &up, activation), 1e-5);
    }
    let ids = |array: Array| array.to_vec::<u32>().expect("uint32");
    assert_eq!(ids(fast::top_k(&up, 4)), ids(portable::top_k(&up, 4).contiguous()));
}

#[test]
fn gated_delta_agrees_with_mlxs_own() {
    let (q, k) = (noise(10, &[1, 9, 2, 32]) * 0.1, noise(11, &[1, 9, 2, 32]) * 0.1);
    let v = noise(12, &[1, 9, 4, 32]);
    let (beta, state) = (noise(14, &[1, 9, 4]).sigmoid(), noise(15, &[1, 4, 32, 32]));
    for g in [noise(13, &[1, 9, 4]).sigmoid(), noise(13, &[1, 9, 4, 32]).sigmoid()] {
        let (out, end) = fast::gated_delta([&q, &k, &v], &g, &beta, &state);
        let (expected, expected_end) = portable::gated_delta([&q, &k, &v], &g, &beta, &state);
        close(&out, &expected, 1e-4);
        close(&end, &expected_end, 1e-4);
    }
}

/// Queries, keys and values of one layer.
struct Inputs {
    q: Array,
    k: Array,
    v: Array,
}

const TOKENS: i32 = 300;

fn inputs(value_dim: i32) -> Inputs {
    Inputs {
        q: noise(7, &[TOKENS, 4, 20]),
        k: noise(8, &[TOKENS, 2, 20]),
        v: noise(9, &[TOKENS, 2, value_dim]),
    }
}

/// Every combination that some family has.
fn softmaxes() -> Vec<(Option<i32>, Softmax)> {
    let plain = Softmax::scaled(0.2);
    let sinks = Softmax { sinks: Some(noise(16, &[4])), ..plain.clone() };
    let capped = Softmax { softcap: Some(3.0), ..plain.clone() };
    [None, Some(33)]
        .into_iter()
        .flat_map(|window| [&plain, &sinks, &capped].map(|s| (window, s.clone())))
        .collect()
}

#[test]
fn attention_in_pieces_is_attention_at_once_and_mlxs() {
    for (window, softmax) in softmaxes() {
        for value_dim in [20, 12] {
            let Inputs { q, k, v } = inputs(value_dim);
            let run = |cuts: &[i32]| {
                let (mut keys, mut values) = (KvBuffer::default(), KvBuffer::default());
                let mut past = 0;
                let mut piece = |&n: &i32| {
                    let piece = |x: &Array| x.slice(0, past, past + n);
                    let kv = [&piece(&k), &piece(&v)];
                    let out = attend(&piece(&q), kv, &mut keys, &mut values, past, window, &softmax);
                    eval([&out]).expect("evaluates");
                    past += n;
                    let last = q.slice(0, past - n, past);
                    let again = attend_over(&last, &keys, &values, past, window, &softmax);
                    assert_eq!(bits(&again), bits(&out), "what is there already is attended to alike");
                    out
                };
                let pieces: Vec<Array> = cuts.iter().map(&mut piece).collect();
                Array::concatenate(&pieces, 0)
            };
            let whole = run(&[TOKENS]);
            assert_eq!(bits(&run(&[1, 255, 1, 40, 3])), bits(&whole));
            let batched = |x: &Array, dim| x.transpose(&[1, 0, 2]).reshape(&[1, -1, TOKENS, dim]);
            let expected = portable::attend(&q, &batched(&k, 20), &batched(&v, value_dim), window, &softmax);
            close(&whole, &expected, 1e-5);
            let last = portable::attend(
                &q.slice(0, TOKENS - 1, TOKENS),
                &batched(&k, 20),
                &batched(&v, value_dim),
                window,
                &softmax,
            );
            close(&whole.slice(0, TOKENS - 1, TOKENS), &last, 1e-5);
        }
    }
}

#[test]
fn latents_are_keys_whose_first_part_is_the_value() {
    let (q, latent) = (noise(7, &[TOKENS, 4, 20]), noise(8, &[TOKENS, 1, 20]));
    let (mut keys, mut values, mut buffer) = (KvBuffer::default(), KvBuffer::default(), KvBuffer::default());
    let softmax = Softmax::scaled(0.2);
    let out = attend_latent(&q, &latent, &mut buffer, 12, 0, None, &softmax);
    let kv = [&latent, &latent.slice(-1, 0, 12).contiguous()];
    close(&out, &attend(&q, kv, &mut keys, &mut values, 0, None, &softmax), 1e-6);
}

//! Operations of the CPU back end against the MLX back end, which GPUs run: this tests both.

mod layers;
pub(crate) mod metal;
mod row_calls;

use mlx::{
    Array, Dtype, eval,
    quant::{Mode, Quantization},
};

use crate::{
    Activation, CoreAttention, Gelu, KvBuffer, KvBufferCopy, KvRow, LayerNorm, Linear, Matrix, Precision,
    RmsNorm, Rope, RopePairs, Router, Softmax, StackedLinear, attend, attend_cached, attend_latent,
    backend::{cpu, mlx as reference},
    conv::causal_conv,
    delta_net::gated_delta,
    gated, gelu,
    moe::CombineWith,
    rope, set_kv_cache_dtype, set_precision,
    storage::WeightStorage,
    top_k,
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

/// With one head, as latents have, rows are contiguous and MLX avoids copies where it can.
#[test]
fn copied_keys_survive_later_writes_to_their_buffer() {
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
            // The kernel writes in place here too, into the joined buffer's own memory.
            let mut joined = KvBuffer::concatenate(std::slice::from_ref(&copy), 300);
            eval(joined.array()).expect("evaluates");
            write(&mut joined, &(&latent * 0.25));
            assert_eq!(bits(&copy), bits(&expected), "{heads} {dim} {from}..{to} after joining");
            write(&mut buffer, &latent);
        }
    }
}

#[test]
fn kv_buffer_copied_in_slices_equals_concatenated_parts() {
    for (dtype, heads) in [(Dtype::Float32, 3), (Dtype::Bfloat16, 2), (Dtype::Float16, 1)] {
        let parts = [1, 200, 70].map(|tokens| noise(tokens as u64, &[heads, tokens, 5]).astype(dtype));
        eval(&parts).expect("evaluates");
        // The last part is not copied whole.
        let cut = [parts[0].clone(), parts[1].clone(), parts[2].slice(1, 0, 33)];
        let expected = KvBuffer::concatenate(&cut, 40);
        for slice in [1, 7, 64, 201, i32::MAX] {
            let sources = parts.iter().cloned().zip([1, 200, 33]).collect();
            let mut copy = KvBufferCopy::new(sources, 40);
            let (mut slices, mut bytes) = (0, 0);
            while !copy.is_complete() {
                bytes += copy.advance(slice);
                slices += 1;
            }
            assert_eq!(copy.advance(slice), 0, "nothing is left");
            let buffer = copy.into_buffer();
            let (got, expected) = [&buffer, &expected].map(|b| b.array().expect("filled")).into();
            assert_eq!((got.shape(), got.dtype()), (expected.shape(), dtype));
            assert_eq!(bits(got), bits(expected), "{heads} heads in slices of {slice}");
            assert_eq!(bytes, got.nbytes());
            assert_eq!(slices, if slice == i32::MAX { 1 } else { (got.dim(1) + slice - 1) / slice });
        }
    }
}

#[test]
fn linear_equals_the_matrix_product() {
    let (x, w) = (noise(1, &[2, 7, 50]), noise(2, &[33, 50]));
    let matmul = |x: &Array, w: &Array| Linear::new(Matrix::Dense(w.clone()), None).forward(x);
    close(&matmul(&x, &w), &x.matmul(&w.transpose(&[1, 0])), 1e-4);
    let half = matmul(&x.astype(Dtype::Bfloat16), &w.astype(Dtype::Bfloat16));
    assert_eq!(half.dtype(), Dtype::Bfloat16);
    close(&half, &x.matmul(&w.transpose(&[1, 0])), 0.1);
}

fn formats() -> Vec<Quantization> {
    let affine = [2, 3, 4, 5, 6, 8].into_iter().flat_map(|bits| {
        [32, 64, 128].map(|group_size| Quantization { mode: Mode::Affine, group_size, bits })
    });
    affine.chain(Mode::ALL.into_iter().filter_map(Mode::fixed)).collect()
}

#[test]
fn quantized_products_agree_with_mlx_for_every_format() {
    // MLX does not round factors.
    set_precision(Precision::Float32);
    for quantization in formats() {
        let (x, dense) = (noise(3, &[5, 256]), noise(4, &[48, 256]));
        let matrix = crate::quantize(&dense, quantization);
        let dense = matrix.dequantize(Dtype::Float32);
        let linear = Linear::new(Matrix::Quantized(matrix.clone()), None);
        close(&linear.forward(&x), &x.matmul(&dense.transpose(&[1, 0])), 2e-4);
        let indices = Array::from_slice(&[7u32, 0, 47], &[3]);
        assert_eq!(values(&matrix.rows(&indices, Dtype::Float32)), values(&dense.take(&indices, 0)));
    }
}

#[test]
fn grouped_products_agree_with_mlx_for_every_format() {
    // MLX does not round factors.
    set_precision(Precision::Float32);
    let experts = Array::from_slice(&[3u32, 0, 1, 1, 2, 3, 0, 3], &[4, 2]);
    let plain = |stack| WeightStorage::Plain(Matrix::Dense(stack));
    for per in [1, 2] {
        let (x, dense) = (noise(5, &[4, per, 128]), noise(6, &[4, 40, 128]));
        close(
            &StackedLinear::new(Matrix::Dense(dense.clone())).forward(&x, &experts),
            &reference::grouped_linear(&x, &plain(dense.clone()), &experts),
            2e-4,
        );
        for quantization in formats() {
            let stack = crate::quantize(&dense, quantization);
            let dense = stack.dequantize(Dtype::Float32);
            let expected = reference::grouped_linear(&x, &plain(dense), &experts);
            let layers = StackedLinear::new(Matrix::Quantized(stack.clone()));
            close(&layers.forward(&x, &experts), &expected, 2e-4);
            close(&stack.gather_matmul(&x, &experts), &expected, 2e-4);
        }
    }
}

#[test]
fn routers_agree_with_mlx() {
    let logits = noise(1, &[5, 24]);
    let bias = || Some(noise(2, &[24]));
    let routers = [
        Router::softmax(4, true),
        Router::softmax(2, false),
        Router::sigmoid(3, true, 1e-20, 2.5).with_bias(bias()),
        Router::sigmoid(4, false, 0.0, 1.0).with_bias(bias()).with_groups(6, 2),
        Router::sigmoid(2, true, 0.0, 1.0).with_groups(24, 5),
    ];
    for router in routers {
        let (got, expected) = (router.route(&logits), reference::route(&logits, &router));
        assert_eq!(got.experts.to_vec::<u32>().unwrap(), expected.experts.to_vec::<u32>().unwrap());
        close(&got.weights, &expected.weights, 1e-6);
    }
}

#[test]
fn sums_of_experts_agree_with_mlx() {
    let (outputs, weights) = (noise(1, &[5, 3, 40]), noise(2, &[5, 3]));
    let (shared, gate, stream) = (noise(3, &[5, 40]), noise(4, &[5, 1]), noise(5, &[5, 40]));
    for parts in 0..8 {
        let part = |i: i32, array| (parts >> i & 1 == 1).then_some(array);
        // Without a shared expert there is no gate.
        let gate = part(1, &gate).filter(|_| parts & 1 == 1);
        let with = CombineWith { shared: part(0, &shared), gate, stream: part(2, &stream) };
        let got = cpu::combine_experts(&outputs, &weights, with);
        close(&got, &reference::combine_experts(&outputs, &weights, with), 1e-5);
    }
}

#[test]
fn rms_norm_agrees_with_its_definition_and_mlx() {
    let (x, w) = (noise(5, &[4, 3, 24]), noise(6, &[24]));
    let mean = x.square().sum(-1, true) / 24.0;
    let norm = RmsNorm::new(w.clone(), 1e-6);
    close(&norm.forward(&x), &(&x * (mean + 1e-6).rsqrt() * &w), 1e-5);
    close(&norm.forward(&x), &reference::rms_norm(&x, &RmsNorm::new(w, 1e-6)), 1e-5);
}

#[test]
fn rope_agrees_with_mlx() {
    let x = noise(7, &[5, 3, 20]);
    let positions = Array::from_slice(&[0i32, 7, 8, 900, 3], &[5]);
    for (pairs, pair_count) in [(RopePairs::Halves, 4), (RopePairs::Adjacent, 10), (RopePairs::Halves, 10)] {
        let frequencies = (0..pair_count).map(|i| 0.3f32.powi(i)).collect();
        let parameters = Rope { frequencies, axes: vec![], pairs, scale: 1.3 };
        close(&rope(&x, &positions, &parameters), &reference::rope(&x, &positions, &parameters), 2e-4);
        let axes: Vec<u8> = (0..pair_count).map(|pair| (pair % 3) as u8).collect();
        let parameters = Rope { axes, ..parameters };
        let placed: Vec<i32> = (0..15).map(|i| i * i % 37).collect();
        let placed = Array::from_slice(&placed, &[5, 3]);
        close(&rope(&x, &placed, &parameters), &reference::rope(&x, &placed, &parameters), 2e-4);
    }
}

#[test]
fn layer_norm_and_gelu_agree_with_mlx() {
    let (x, weight, bias) = (noise(5, &[4, 3, 24]) * 2.0, noise(6, &[24]), noise(7, &[24]));
    let norm = LayerNorm::new(weight.clone(), bias.clone(), 1e-6);
    close(&norm.forward(&x), &reference::layer_norm(&x, [&weight, &bias], 1e-6), 1e-5);
    for kind in [Gelu::Exact, Gelu::Tanh] {
        close(&gelu(&x, kind), &reference::gelu(&x, kind), 1e-5);
    }
}

#[test]
fn attention_in_both_directions_agrees_with_mlx() {
    let rope = Rope { frequencies: vec![1.0, 0.3], axes: vec![0, 1], pairs: RopePairs::Halves, scale: 1.0 };
    let attention = CoreAttention::new(4, 2, 16, rope.clone());
    let places: Vec<i32> = (0..600).map(|i| i % 11).collect();
    let positions = Array::from_slice(&places, &[300, 2]);
    let [q, k, v] = [(1, 64), (2, 32), (3, 32)].map(|(seed, width)| noise(seed, &[300, width]));
    for window in [None, Some(5)] {
        let heads = |x: &Array, heads| x.reshape(&[300, heads, 16]);
        let [turned_q, turned_k] =
            [heads(&q, 4), heads(&k, 2)].map(|x| reference::rope(&x, &positions, &rope));
        let expected = reference::attend_both_ways([&turned_q, &turned_k, &heads(&v, 2)], window, 0.25);
        let out = attention.forward_both_ways([&q, &k, &v], &positions, window);
        close(&out, &expected.reshape(&[300, 64]), 2e-4);
    }
}

#[test]
fn tokens_of_an_image_attend_to_all_of_it_as_in_mlx() {
    let rope = Rope { frequencies: vec![1.0, 0.3], axes: vec![], pairs: RopePairs::Halves, scale: 1.0 };
    let attention = CoreAttention::new(4, 2, 16, rope).with_images_together();
    let positions = Array::arange(0, 40, Dtype::Int32);
    let [q, k, v] = [(1, 64), (2, 32), (3, 32)].map(|(seed, width)| noise(seed, &[40, width]));
    // The first image is larger than the window.
    let images = [3..15, 15..20, 36..40];
    for window in [None, Some(7)] {
        let run = |cpu: bool| {
            let (mut keys, mut values) = (KvBuffer::default(), KvBuffer::default());
            let buffers = (&mut keys, &mut values);
            let row =
                KvRow { tokens: 40, past: 0, window, images: &images, keys: buffers.0, values: buffers.1 };
            match cpu {
                true => attention.forward([&q, &k, &v], &positions, &mut [row]),
                false => reference::core_attention(&attention, [&q, &k, &v], &positions, &mut [row]),
            }
        };
        close(&run(true), &run(false), 2e-4);
    }
}

#[test]
fn causal_conv_gated_and_top_k_agree_with_mlx() {
    let (x, weight, state) = (noise(8, &[9, 6]), noise(9, &[6, 4]), noise(10, &[3, 6]));
    for silu in [true, false] {
        let (out, end) = causal_conv(&x, &weight, &state, silu);
        let (expected, expected_end) = reference::causal_conv(&x, &weight, &state, silu);
        close(&out, &expected, 1e-5);
        assert_eq!(values(&end), values(&expected_end));
    }
    let up = noise(11, &[9, 6]);
    for activation in [Activation::Silu, Activation::GeluTanh] {
        close(&gated(&x, &up, activation), &reference::gated(&x, &up, activation), 1e-5);
    }
    let ids = |array: Array| array.to_vec::<u32>().expect("uint32");
    assert_eq!(ids(top_k(&up, 4)), ids(reference::top_k(&up, 4).contiguous()));
}

#[test]
fn gated_delta_agrees_with_mlx() {
    let (q, k) = (noise(10, &[1, 9, 2, 32]) * 0.1, noise(11, &[1, 9, 2, 32]) * 0.1);
    let v = noise(12, &[1, 9, 4, 32]);
    let (beta, state) = (noise(14, &[1, 9, 4]).sigmoid(), noise(15, &[1, 4, 32, 32]));
    for g in [noise(13, &[1, 9, 4]).sigmoid(), noise(13, &[1, 9, 4, 32]).sigmoid()] {
        let (out, end) = gated_delta([&q, &k, &v], &g, &beta, &state);
        let (expected, expected_end) = reference::gated_delta([&q, &k, &v], &g, &beta, &state);
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

/// Every combination that a model family uses.
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
fn attention_in_chunks_gives_the_bits_of_one_call_and_agrees_with_mlx() {
    for (window, softmax) in softmaxes() {
        for value_dim in [20, 12] {
            set_kv_cache_dtype(None);
            check_attention(inputs(value_dim), window, &softmax);
            // Keys and values that storing them in bfloat16 does not change.
            set_kv_cache_dtype(Some(Dtype::Bfloat16));
            let Inputs { q, k, v } = inputs(value_dim);
            let [k, v] = [k, v].map(|x| x.astype(Dtype::Bfloat16).astype(Dtype::Float32));
            check_attention(Inputs { q, k, v }, window, &softmax);
        }
    }
}

fn check_attention(Inputs { q, k, v }: Inputs, window: Option<i32>, softmax: &Softmax) {
    let run = |cuts: &[i32]| {
        let (mut keys, mut values) = (KvBuffer::default(), KvBuffer::default());
        let mut past = 0;
        let mut piece = |&n: &i32| {
            let piece = |x: &Array| x.slice(0, past, past + n);
            let kv = [&piece(&k), &piece(&v)];
            let out = attend(&piece(&q), kv, &mut keys, &mut values, past, window, softmax);
            eval([&out]).expect("evaluates");
            past += n;
            let last = q.slice(0, past - n, past);
            let again = attend_cached(&last, &keys, &values, past, window, softmax);
            assert_eq!(bits(&again), bits(&out), "cached keys give the same bits");
            out
        };
        let pieces: Vec<Array> = cuts.iter().map(&mut piece).collect();
        Array::concatenate(&pieces, 0)
    };
    let whole = run(&[TOKENS]);
    assert_eq!(bits(&run(&[1, 255, 1, 40, 3])), bits(&whole));
    let batched = |x: &Array| x.transpose(&[1, 0, 2]).reshape(&[1, -1, TOKENS, x.dim(2)]);
    let (keys, values) = (batched(&k), batched(&v));
    close(&whole, &reference::attention(&q, &keys, &values, window, softmax), 1e-5);
    let last = |x: &Array| x.slice(0, TOKENS - 1, TOKENS);
    close(&last(&whole), &reference::attention(&last(&q), &keys, &values, window, softmax), 1e-5);
}

#[test]
fn keys_and_values_are_stored_in_the_kv_cache_dtype() {
    let Inputs { q, k, v } = inputs(20);
    for (dtype, kv_cache, stored) in [
        (Dtype::Float32, None, Dtype::Float32),
        (Dtype::Float32, Some(Dtype::Bfloat16), Dtype::Bfloat16),
        (Dtype::Float16, None, Dtype::Float16),
    ] {
        set_kv_cache_dtype(kv_cache);
        let [q, k, v] = [&q, &k, &v].map(|x| x.astype(dtype));
        let [mut keys, mut values, mut latents] = [(); 3].map(|()| KvBuffer::default());
        let softmax = Softmax::scaled(0.2);
        let outs = [
            attend(&q, [&k, &v], &mut keys, &mut values, 0, None, &softmax),
            attend_latent(&q, &k.slice(1, 0, 1), &mut latents, 12, 0, None, &softmax),
        ];
        assert!(outs.iter().all(|out| out.dtype() == dtype), "{dtype:?}");
        for buffer in [&keys, &values, &latents] {
            assert_eq!(buffer.array().expect("filled").dtype(), stored, "{dtype:?}");
        }
    }
}

#[test]
fn attend_latent_takes_values_from_the_front_of_keys() {
    let (q, latent) = (noise(7, &[TOKENS, 4, 20]), noise(8, &[TOKENS, 1, 20]));
    let (mut keys, mut values, mut buffer) = (KvBuffer::default(), KvBuffer::default(), KvBuffer::default());
    let softmax = Softmax::scaled(0.2);
    let out = attend_latent(&q, &latent, &mut buffer, 12, 0, None, &softmax);
    let kv = [&latent, &latent.slice(-1, 0, 12).contiguous()];
    close(&out, &attend(&q, kv, &mut keys, &mut values, 0, None, &softmax), 1e-6);
}

#[test]
fn gated_keeps_the_type_of_its_inputs() {
    for dtype in [Dtype::Float16, Dtype::Bfloat16, Dtype::Float32] {
        let a = Array::full(&[3], 1.5, dtype);
        assert_eq!(gated(&a, &a, Activation::Silu).dtype(), dtype);
    }
}

#[test]
fn kv_buffers_are_written_in_place_while_older_steps_are_unread() {
    let (mut keys, mut vals) = (KvBuffer::default(), KvBuffer::default());
    let softmax = Softmax::scaled(1.0);
    let token = |seed| noise(seed, &[1, 1, 16]);
    let outs: Vec<Array> = (0..40)
        .map(|i| {
            let kv = [&token(i + 100), &token(i + 200)];
            let out = attend(&token(i), kv, &mut keys, &mut vals, i as i32, None, &softmax);
            mlx::async_eval([&out]).expect("starts");
            out
        })
        .collect();
    let (k, v) = (
        Array::concatenate(&(0..40).map(|i| token(i + 100)).collect::<Vec<_>>(), 0),
        Array::concatenate(&(0..40).map(|i| token(i + 200)).collect::<Vec<_>>(), 0),
    );
    let q = Array::concatenate(&(0..40).map(token).collect::<Vec<_>>(), 0);
    let (mut a, mut b) = (KvBuffer::default(), KvBuffer::default());
    let whole = attend(&q, [&k, &v], &mut a, &mut b, 0, None, &softmax);
    assert_eq!(values(&Array::concatenate(&outs, 0)), values(&whole));
}

//! Our Metal kernels on emulated threadgroups, against the CPU's kernels bit for bit.

pub(crate) mod emulator;

use mlx::{
    Array, Dtype,
    quant::{Mode, Quantization, Quantized},
};

use super::{bits, close, layers::core_attention, noise, values};
use crate::{
    Activation, CoreAttention, DeltaHeads, DeltaNet, DeltaRow, DeltaWeights, KvBuffer, KvRow, Linear, Matrix,
    Recurrence, RmsNorm, Rope, RopePairs, Softmax,
    backend::{cpu, mlx as reference, mlx::metal},
    residual::ResidualAdd,
};

const TYPES: [Dtype; 3] = [Dtype::Float32, Dtype::Bfloat16, Dtype::Float16];

fn rope(half: usize, pairs: RopePairs) -> Rope {
    let frequencies = (0..half).map(|i| 10_000f32.powf(-(i as f32) / half as f32)).collect();
    Rope { frequencies, axes: vec![], pairs, scale: 1.0 }
}

#[test]
fn heads_have_the_bits_of_the_cpu() {
    if !emulator::install() {
        return;
    }
    let norms = |dim, dtype| [1, 2].map(|seed| RmsNorm::new(noise(seed, &[dim]).astype(dtype), 1e-6));
    let plain = |half, pairs, dim| CoreAttention::new(4, 2, dim, rope(half, pairs));
    let [q_norm, k_norm] = norms(128, Dtype::Bfloat16);
    let axes = Rope { axes: (0..8).map(|i| i % 3).collect(), scale: 1.25, ..rope(8, RopePairs::Halves) };
    let [wide_q, wide_k] = norms(272, Dtype::Float32);
    let cases = [
        (plain(32, RopePairs::Halves, 64), Dtype::Float32, 1),
        (plain(32, RopePairs::Adjacent, 72), Dtype::Float16, 1),
        (
            plain(64, RopePairs::Halves, 128).with_qk_norm(q_norm, k_norm).with_output_gate(),
            Dtype::Bfloat16,
            1,
        ),
        (CoreAttention::new(3, 1, 272, axes).with_qk_norm(wide_q, wide_k), Dtype::Float32, 3),
    ];
    for (attention, dtype, columns) in cases {
        let stride = attention.head_dim * if attention.output_gate { 2 } else { 1 };
        let [q, k] = [
            noise(3, &[2, attention.heads * stride]),
            noise(4, &[2, attention.kv_heads * attention.head_dim]),
        ]
        .map(|x| x.astype(dtype));
        let positions = Array::from_slice(&vec![7; 2 * columns as usize], &[2, columns]);
        let positions = if columns == 1 { positions.reshape(&[2]) } else { positions };
        let rotated = metal::rotated(&attention, [&q, &k], &positions);
        assert!(rotated.is_some(), "{} {dtype:?}: other bits than the CPU's", attention.head_dim);
    }
}

#[test]
fn gates_have_the_bits_of_the_cpu() {
    if !emulator::install() {
        return;
    }
    let activations = [Activation::Silu, Activation::GeluTanh, Activation::Silu];
    for ((dtype, dim), activation) in TYPES.into_iter().zip([64, 128, 48]).zip(activations) {
        let [x, gate] = [1, 2].map(|seed| noise(seed, &[3, 2 * dim]).astype(dtype));
        let norm = RmsNorm::new(noise(3, &[dim]).astype(dtype), 1e-6);
        assert!(metal::gated_norm(&x, &gate, &norm).is_some(), "norm, {dtype:?}");
        assert!(metal::gated(&gate, &x, activation).is_some(), "{activation:?}, {dtype:?}");
        let (x, q) = (x.reshape(&[3, 2, dim]), noise(4, &[3, 4 * dim]).astype(dtype));
        assert!(metal::sigmoid_gated(&x, &q).is_some(), "sigmoid, {dtype:?}");
    }
}

/// Any NaN is like any other.
fn bits_or_nan(array: &Array) -> Vec<u32> {
    values(array).iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
}

#[test]
fn gates_of_extreme_numbers_have_the_bits_of_the_cpu() {
    if !emulator::install() {
        return;
    }
    let extremes = [-3e38, -100.0, -87.5, -87.0, -1e-20, -0.0, 0.0, 1e-20, 87.0, 88.5, 3e38];
    let numbers: Vec<f32> =
        extremes.into_iter().chain([f32::NAN, f32::INFINITY, f32::NEG_INFINITY]).collect();
    let gate = Array::from_slice(&numbers, &[1, numbers.len() as i32]);
    let up = &gate * 0.0 + 0.75;
    let limited = Activation::ClampedSwish { limit: 7.0 };
    for (kind, activation) in [Activation::Silu, Activation::GeluTanh, limited].into_iter().enumerate() {
        let got = metal::gated(&gate, &up, activation).expect("our kernel computes it");
        emulator::leave();
        assert_eq!(bits_or_nan(&got), bits_or_nan(&cpu::gated(&gate, &up, activation)), "{kind}");
        emulator::install();
    }
}

/// A small DeltaNet whose decays are not all near 1.
fn delta_net(heads: DeltaHeads, width: i32, dtype: Dtype) -> DeltaNet {
    let channels = 2 * heads.key_width() + heads.value_width();
    let norms = [0.25, 1.0].map(|scale| RmsNorm::l2(heads.key_dim, 1e-6, scale));
    let weights = DeltaWeights {
        conv1d: (noise(1, &[channels, width]) * 0.4).astype(dtype),
        neg_exp_a: noise(2, &[heads.value_heads]).exp() * -0.1,
        dt_bias: noise(3, &[heads.value_heads]),
        norms,
    };
    DeltaNet::new(heads, weights)
}

#[test]
fn delta_rules_have_the_bits_of_the_cpu() {
    if !emulator::install() {
        return;
    }
    for (key_dim, value_dim, width, dtype) in
        [(128, 128, 4, Dtype::Bfloat16), (64, 64, 4, Dtype::Float32), (48, 32, 2, Dtype::Float16)]
    {
        let heads = DeltaHeads { key_heads: 2, value_heads: 4, key_dim, value_dim };
        let net = delta_net(heads, width, dtype);
        let x = Array::zeros(&[1, 2 * heads.key_width() + heads.value_width()], dtype);
        let gate = Array::zeros(&[1, 4], dtype);
        assert!(metal::has_delta_inputs(&net, &x, [&gate, &gate]), "inputs of {key_dim} {dtype:?}");
        for by_channel in if key_dim == 64 { &[false, true][..] } else { &[false] } {
            let keys = Array::zeros(&[1, 1, 2, key_dim], dtype);
            let v = Array::zeros(&[1, 1, 4, value_dim], dtype);
            let g = if *by_channel { vec![1, 1, 4, key_dim] } else { vec![1, 1, 4] };
            let [g, beta] = [&g[..], &[1, 1, 4]].map(|shape| Array::zeros(shape, Dtype::Float32));
            let state = Array::zeros(&[1, 4, value_dim, key_dim], Dtype::Float32);
            let done = metal::gated_delta([&keys, &keys, &v], &g, &beta, &state);
            assert!(done.is_some(), "{key_dim} {dtype:?} {by_channel}");
        }
    }
}

#[test]
fn products_of_few_rows_have_the_bits_of_the_cpu() {
    if !emulator::install() {
        return;
    }
    // The number of inputs: of one group, of a part of a segment, and of several segments.
    for (bits, inputs, dtype, scales) in [
        (4, 1088, Dtype::Bfloat16, Dtype::Bfloat16),
        (8, 1024, Dtype::Float32, Dtype::Bfloat16),
        (2, 64, Dtype::Float16, Dtype::Float16),
        (3, 576, Dtype::Float32, Dtype::Float32),
        (5, 192, Dtype::Bfloat16, Dtype::Bfloat16),
        (6, 512, Dtype::Float32, Dtype::Float32),
    ] {
        let quantization = Quantization { mode: Mode::Affine, group_size: 64, bits };
        let weight = crate::quantize(&noise(1, &[8, inputs]).astype(scales), quantization);
        assert!(metal::has_product(dtype, &weight), "{bits} bits, {inputs} inputs, {dtype:?}");
    }
}

#[test]
fn products_of_many_rows_have_the_bits_of_the_cpu() {
    if !emulator::install() {
        return;
    }
    for (bits, inputs, dtype) in [
        (4, 576, Dtype::Bfloat16),
        (8, 128, Dtype::Float32),
        (3, 64, Dtype::Float16),
        (6, 64, Dtype::Float32),
    ] {
        let quantization = Quantization { mode: Mode::Affine, group_size: 64, bits };
        let weight = crate::quantize(&noise(1, &[8, inputs]).astype(dtype), quantization);
        assert!(metal::has_product_of_many(dtype, &weight), "{bits} bits, {inputs} inputs, {dtype:?}");
    }
}

/// Steps of two sequences on the CPU and by our kernels: a prompt, a draft of which a token is
/// rejected, and what follows it.
#[test]
fn delta_nets_of_sequences_have_the_bits_of_the_cpu() {
    if !emulator::install() {
        return;
    }
    let heads = DeltaHeads { key_heads: 1, value_heads: 2, key_dim: 32, value_dim: 16 };
    let net = delta_net(heads, 4, Dtype::Float32);
    let channels = 2 * heads.key_width() + heads.value_width();
    type Operation = fn(&DeltaNet, &Array, [&Array; 2], &mut [DeltaRow]) -> Array;
    let run = |operation: Operation| {
        let mut states = [Recurrence::default(), Recurrence::default()];
        let mut outs = vec![];
        for (step, parts) in [[(20, 0), (1, 0)], [(4, 3), (2, 1)], [(1, 0), (3, 0)]].into_iter().enumerate() {
            let tokens = parts.iter().map(|(tokens, _)| tokens).sum();
            let seed = 10 * step as u64;
            let x = noise(seed, &[tokens, channels]);
            let [b, a] = [1, 2].map(|own| noise(seed + own, &[tokens, 2]));
            let mut rows: Vec<DeltaRow> = states
                .iter_mut()
                .zip(parts)
                .map(|(state, (tokens, num_draft))| DeltaRow { tokens, num_draft, state })
                .collect();
            outs.push(bits(&operation(&net, &x, [&b, &a], &mut rows)));
            for (state, (_, num_draft)) in states.iter_mut().zip(parts) {
                state.rewind(num_draft.min(1));
            }
        }
        let last: Vec<_> =
            states.iter().flat_map(|state| state.committed().arrays().map(|x| x.map(bits))).collect();
        (outs, last)
    };
    let kernels = run(reference::delta_net);
    emulator::leave();
    assert!(kernels == run(cpu::delta_net));
}

#[test]
fn rotated_heads_of_a_layer_have_the_bits_of_the_cpu() {
    if !emulator::install() {
        return;
    }
    let norms = [1, 2].map(|seed| RmsNorm::new(noise(seed, &[40]), 1e-5));
    let [q_norm, k_norm] = norms;
    let attention = CoreAttention::new(2, 2, 40, rope(10, RopePairs::Halves)).with_qk_norm(q_norm, k_norm);
    let k = noise(3, &[3, 80]);
    let positions = Array::from_slice(&[0, 17, 4000], &[3]);
    let rotated = metal::rotated(&attention, [&k, &k], &positions);
    let [_, got] = rotated.expect("our kernel computes it");
    emulator::leave();
    let [expected, _] = attention.keys_and_values([&k, &k], &positions);
    assert_eq!(bits(&got), bits(&expected));
}

/// The MLX back end's layers with our kernels in them, and without.
#[test]
fn layers_with_kernels_agree_with_those_of_mlx_operations() {
    if !emulator::install() {
        return;
    }
    let attention = core_attention(true, true, Softmax::scaled(0.25));
    let qkv = [(1, 128), (2, 32), (3, 32)].map(|(seed, width)| noise(seed, &[3, width]));
    let positions = Array::from_slice(&[4, 5, 0], &[3]);
    let attend = || {
        let mut buffers = [(); 4].map(|()| KvBuffer::default());
        let [a, b, c, d] = &mut buffers;
        let mut rows = [(2, a, b), (1, c, d)].map(|(tokens, keys, values)| KvRow {
            tokens,
            past: 0,
            window: None,
            images: &[],
            keys,
            values,
        });
        reference::core_attention(&attention, qkv.each_ref(), &positions, &mut rows)
    };
    let [x, gate, stream] = [4, 5, 6].map(|seed| noise(seed, &[3, 64]));
    let norm = RmsNorm::new(noise(7, &[16]), 1e-6);
    let layer = |seed| Linear::new(Matrix::Dense(noise(seed, &[64, 64]) * 0.2), None);
    let [first, second, third] = [8, 9, 10].map(layer);
    let add = ResidualAdd { stream: &stream, post_norm: None };
    let run = || {
        let normed = reference::add_gated_norm(add, &x, &gate, &norm, &first);
        let linears = [&first, &second, &third];
        let fed = reference::feed_forward(&x, None, linears, Activation::GeluTanh, Some(add));
        [attend(), normed, fed]
    };
    let kernels = run();
    emulator::leave();
    kernels.iter().zip(&run()).for_each(|(got, expected)| close(got, expected, 1e-4));
}

/// Layers that share their input, with few rows and with many.
#[test]
fn products_of_layers_have_the_bits_of_the_cpu() {
    if !emulator::install() {
        return;
    }
    let weights = [quantized(192), quantized(192)];
    // Groups of zeros, of numbers that count as zeros, and of numbers that are too large.
    let factors: Vec<f32> = (0..133).map(|row| [1.0, 0.0, 1e-31, 1e32, 1e-12][row % 5]).collect();
    let x = noise(2, &[133, 192]) * Array::from_slice(&factors, &[133, 1]);
    let numbers = [5, 133];
    let ours = numbers.map(|rows| {
        let input = metal::ProductInput::new(x.slice(0, 0, rows));
        weights.each_ref().map(|weight| bits_or_nan(&metal::product(&input, weight)))
    });
    emulator::leave();
    let layers = weights.map(|weight| Linear::new(Matrix::Quantized(weight), None));
    let expected = numbers.map(|rows| {
        let outs = cpu::project(&x.slice(0, 0, rows), None, &[&layers[0], &layers[1]]);
        [bits_or_nan(&outs[0]), bits_or_nan(&outs[1])]
    });
    assert!(ours == expected);
}

/// Whether one of our operations is computed by our kernel.
type Attempt = fn() -> bool;

/// Each kernel with a change, and an operation of sizes that no other test has.
const ALTERED: [(&str, &str, Attempt); 9] = [
    ("a * cosine - b * sine", "fma(a, cosine, -(b * sine))", || {
        let attention = CoreAttention::new(1, 1, 56, rope(20, RopePairs::Halves));
        let x = noise(1, &[2, 56]);
        metal::rotated(&attention, [&x, &x], &Array::from_slice(&[1, 2], &[2])).is_some()
    }),
    ("* factor * static_cast<float>(weight[i])", "* (factor * static_cast<float>(weight[i]))", || {
        let x = noise(1, &[2, 56]);
        metal::gated_norm(&x, &x, &RmsNorm::new(noise(2, &[56]), 1e-6)).is_some()
    }),
    ("lanner::silu(own)", "own / (1.0f + exp(-own))", || {
        let x = noise(1, &[2, 56]);
        metal::gated(&x, &x, Activation::Silu).is_some()
    }),
    ("j + tokens < WIDTH - 1", "j + tokens < WIDTH - 2", || {
        let heads = DeltaHeads { key_heads: 1, value_heads: 1, key_dim: 16, value_dim: 16 };
        let (x, gate) = (noise(1, &[1, 48]), noise(2, &[1, 1]));
        metal::has_delta_inputs(&delta_net(heads, 4, Dtype::Float32), &x, [&gate, &gate])
    }),
    ("fma(delta, own_k[j], s[r][j] * decay[j])", "delta * own_k[j] + s[r][j] * decay[j]", || {
        let x = noise(1, &[1, 1, 1, 16]);
        let gate = noise(2, &[1, 1, 1]);
        metal::gated_delta([&x, &x, &x], &gate, &gate, &noise(3, &[1, 1, 16, 16])).is_some()
    }),
    ("(127 + 10)", "(127 + 9)", || has_product(128)),
    ("    simdgroup_barrier(mem_flags::mem_threadgroup);\n    for (int r", "    for (int r", || {
        has_product(256)
    }),
    ("}\nthreadgroup_barrier(mem_flags::mem_threadgroup);", "}", || has_product(2048)),
    ("pair >> (c * BITS)", "pair >> ((1 - c) * BITS)", || {
        metal::has_product_of_many(Dtype::Float32, &quantized(128))
    }),
];

fn has_product(inputs: i32) -> bool {
    metal::has_product(Dtype::Float32, &quantized(inputs))
}

fn quantized(inputs: i32) -> Quantized {
    let quantization = Quantization { mode: Mode::Affine, group_size: 64, bits: 4 };
    crate::quantize(&noise(1, &[8, inputs]), quantization)
}

#[test]
fn kernels_with_other_bits_are_not_used_and_no_source_is_untested() {
    if emulator::is_gpu() || !emulator::install() {
        return;
    }
    for (from, to, is_used) in ALTERED {
        emulator::install_altered(from, to);
        assert!(!is_used(), "{to} for {from}: not noticed");
        assert!(emulator::bodies_that_ran().iter().any(|body| body.contains(from)), "{from} is nowhere");
    }
    let report = crate::take_row_calls();
    assert!(report.iter().any(|line| line.ends_with("is not used: it has other bits")), "{report:?}");
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels/metal");
    let ran = emulator::bodies_that_ran();
    for file in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("a file").path()) {
        let text = std::fs::read_to_string(&file).expect("a source");
        let name = file.file_name().and_then(|name| name.to_str());
        assert!(name == Some("math.h") || ran.contains(&text[..]), "{} is run by no test", file.display());
    }
}

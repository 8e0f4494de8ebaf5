//! Arrays through the bridge: values, errors that stay errors, and our kernels against MLX's own operations.

use std::panic::{AssertUnwindSafe, catch_unwind};

use mlx::{Array, Dtype, OutputSpec, apply, eval, fast, quant};

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

#[test]
fn values_survive_the_round_trip() {
    let a = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
    assert_eq!(values(&(&a * 2.0 + 1.0)), [3.0, 5.0, 7.0, 9.0, 11.0, 13.0]);
    assert_eq!(values(&a.transpose(&[1, 0])), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    assert_eq!(values(&a.slice(-1, 1, 3)), [2.0, 3.0, 5.0, 6.0]);
    assert_eq!(a.argmax(-1).to_vec::<u32>().expect("uint32"), [2, 2]);
    assert!(a.to_vec::<u32>().expect_err("float32").to_string().contains("array of float32"));
}

#[test]
fn scalars_do_not_widen() {
    for dtype in [Dtype::Float16, Dtype::Bfloat16, Dtype::Float32] {
        let a = Array::full(&[3], 1.5, dtype);
        for result in [&a + 1.0, &a * 0.5, a.softplus(), fast::swiglu(&a, &a), a.softmax(-1)] {
            assert_eq!(result.dtype(), dtype);
        }
    }
}

#[test]
fn a_shape_bug_panics_at_the_callers_line() {
    let (a, b) = (Array::zeros(&[2, 3], Dtype::Float32), Array::zeros(&[2], Dtype::Float32));
    let panic = catch_unwind(AssertUnwindSafe(|| a.matmul(&b))).expect_err("shapes do not fit");
    assert!(panic.downcast_ref::<String>().expect("a message").contains("matmul"));
    assert_eq!(values(&(&a + 1.0)), [1.0; 6], "and nothing else is lost");
}

#[test]
fn too_much_memory_is_an_error_and_not_the_end() {
    let huge = || Array::full(&[1 << 20, 1 << 20, 1 << 10], 1.0, Dtype::Float32);
    let panic = catch_unwind(AssertUnwindSafe(huge)).expect_err("4 petabytes");
    assert!(panic.downcast_ref::<String>().expect("a message").contains("out of memory"));
    assert!(Array::fill_with(&[1 << 30, 1 << 30], Dtype::Float32, |_| Ok(())).is_err());
    assert_eq!(values(&Array::full(&[2], 1.0, Dtype::Float32)), [1.0, 1.0]);
}

#[test]
fn a_panic_in_a_kernel_is_an_error_of_the_evaluation() {
    let a = Array::zeros(&[4], Dtype::Float32);
    let spec = || OutputSpec { shape: vec![4], dtype: Dtype::Float32 };
    let [bad] = apply("bad", &[&a], [spec()], |_, _| panic!("on purpose"));
    let message = eval([&bad]).expect_err("the kernel panics").to_string();
    assert!(message.contains("kernel bad panicked: on purpose"), "{message}");

    let [good] = apply("good", &[&a], [spec()], |inputs, outputs| {
        let from: &[f32] = inputs[0].values();
        outputs[0].values::<f32>().iter_mut().zip(from).for_each(|(to, from)| *to = from + 1.0);
    });
    assert_eq!(values(&good), [1.0; 4], "the stream goes on");
}

#[test]
fn kernels_get_row_major_inputs() {
    let a = noise(1, &[3, 5]).transpose(&[1, 0]);
    let spec = OutputSpec { shape: vec![5, 3], dtype: Dtype::Float32 };
    let [copy] = apply("copy", &[&a], [spec], |inputs, outputs| {
        outputs[0].values::<f32>().copy_from_slice(inputs[0].values());
    });
    assert_eq!(values(&copy), values(&a));
}

#[test]
fn linear_is_matmul() {
    let (x, w) = (noise(1, &[2, 7, 50]), noise(2, &[33, 50]));
    close(&fast::linear(&x, &w), &x.matmul(&w.transpose(&[1, 0])), 1e-4);
    let half = fast::linear(&x.astype(Dtype::Bfloat16), &w.astype(Dtype::Bfloat16));
    assert_eq!(half.dtype(), Dtype::Bfloat16);
    close(&half, &x.matmul(&w.transpose(&[1, 0])), 0.1);
}

#[test]
fn quantized_matmul_agrees_with_mlx_for_every_format() {
    for bits in [2, 3, 4, 5, 6, 8] {
        for group_size in [32, 64, 128] {
            let q = quant::Quantization { group_size, bits };
            let (x, dense) = (noise(3, &[5, 256]), noise(4, &[48, 256]));
            let [w, scales, biases] = quant::quantize(&dense, q);
            let expected = x.matmul(&quant::dequantize(&w, &scales, &biases, q).transpose(&[1, 0]));
            close(&quant::matmul(&x, &w, &scales, &biases, q), &expected, 2e-4);
        }
    }
}

#[test]
fn rms_norm_is_its_definition() {
    let (x, w) = (noise(5, &[4, 3, 24]), noise(6, &[24]));
    let mean = x.square().sum(-1, true) / 24.0;
    close(&fast::rms_norm(&x, &w, 1e-6), &(&x * (mean + 1e-6).rsqrt() * &w), 1e-5);
}

#[test]
fn attention_in_pieces_is_attention_at_once_and_mlxs() {
    let (heads, kv_heads, dim, tokens) = (4, 2, 20, 300);
    let q = noise(7, &[tokens, heads, dim]);
    let (k, v) = (noise(8, &[tokens, kv_heads, dim]), noise(9, &[tokens, kv_heads, dim]));
    let run = |cuts: &[i32]| {
        let (mut keys, mut vals) = (
            mlx::KvBuffer::new(kv_heads, dim, Dtype::Float32),
            mlx::KvBuffer::new(kv_heads, dim, Dtype::Float32),
        );
        let mut past = 0;
        let pieces: Vec<Array> = cuts
            .iter()
            .map(|&n| {
                let piece = |x: &Array| x.slice(0, past, past + n);
                let out = mlx::attend(&piece(&q), &piece(&k), &piece(&v), &mut keys, &mut vals, past, 0.2);
                eval([&out]).expect("evaluates");
                past += n;
                out
            })
            .collect();
        Array::concatenate(&pieces, 0)
    };
    let whole = run(&[tokens]);
    let bits = |a: &Array| values(a).iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&run(&[1, 255, 1, 40, 3])), bits(&whole));
    let batched = |x: &Array| x.transpose(&[1, 0, 2]).reshape(&[1, -1, tokens, dim]);
    let expected = fast::attention(&batched(&q), &batched(&k), &batched(&v), 0.2, true);
    close(&whole, &expected.reshape(&[heads, tokens, dim]).transpose(&[1, 0, 2]), 1e-5);
}

#[test]
fn growing_buffers_are_written_in_place_while_older_steps_are_unread() {
    let (mut keys, mut vals) =
        (mlx::KvBuffer::new(1, 16, Dtype::Float32), mlx::KvBuffer::new(1, 16, Dtype::Float32));
    let token = |seed| noise(seed, &[1, 1, 16]);
    let outs: Vec<Array> = (0..40)
        .map(|i| {
            let out =
                mlx::attend(&token(i), &token(i + 100), &token(i + 200), &mut keys, &mut vals, i as i32, 1.0);
            mlx::async_eval([&out]).expect("starts");
            out
        })
        .collect();
    let (k, v) = (
        Array::concatenate(&(0..40).map(|i| token(i + 100)).collect::<Vec<_>>(), 0),
        Array::concatenate(&(0..40).map(|i| token(i + 200)).collect::<Vec<_>>(), 0),
    );
    let q = Array::concatenate(&(0..40).map(token).collect::<Vec<_>>(), 0);
    let (mut a, mut b) =
        (mlx::KvBuffer::new(1, 16, Dtype::Float32), mlx::KvBuffer::new(1, 16, Dtype::Float32));
    let whole = mlx::attend(&q, &k, &v, &mut a, &mut b, 0, 1.0);
    assert_eq!(values(&Array::concatenate(&outs, 0)), values(&whole));
}

#[test]
fn gated_delta_agrees_with_mlxs_own() {
    let (q, k) = (noise(10, &[1, 9, 2, 32]) * 0.1, noise(11, &[1, 9, 2, 32]) * 0.1);
    let v = noise(12, &[1, 9, 4, 32]);
    let (g, beta) = (noise(13, &[1, 9, 4]).sigmoid(), noise(14, &[1, 9, 4]).sigmoid());
    let state = noise(15, &[1, 4, 32, 32]);
    let (out, end) = fast::gated_delta(&q, &k, &v, &g, &beta, &state);
    let (expected, expected_end) = fast::gated_delta_mlx(&q, &k, &v, &g, &beta, &state);
    close(&out, &expected, 1e-4);
    close(&end, &expected_end, 1e-4);
}

#[test]
fn gumbel_noise_is_a_function_of_its_seed() {
    assert_eq!(values(&noise(1, &[100])), values(&noise(1, &[100])));
    assert_ne!(values(&noise(1, &[100])), values(&noise(2, &[100])));
}

/// A C++ exception in a bridge function that is not fallible would end the process.
#[test]
fn every_bridge_function_that_can_throw_returns_a_result() {
    let cannot_throw = [
        "arrays",
        "push",
        "len",
        "clone_array",
        "shape_of",
        "mlx_version",
        "gpu_available",
        "on_gpu",
        "active_memory",
        "peak_memory",
        "kernel_name",
    ];
    let source = include_str!("../src/bridge.rs");
    let mut seen = 0;
    for declaration in source.split(';').filter_map(|part| part.split_once("fn ").map(|(_, rest)| rest)) {
        let name = declaration.split('(').next().expect("a name");
        seen += 1;
        assert!(
            declaration.contains("-> Result<") || cannot_throw.contains(&name),
            "bridge function {name} is not fallible"
        );
    }
    assert!(seen > 60, "the bridge was parsed: {seen} functions");
    assert!(!source.contains("*mut ") && !source.contains("*const "), "no raw pointers cross the bridge");
}

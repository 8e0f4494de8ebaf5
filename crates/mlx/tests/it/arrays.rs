//! Arrays through the bridge: values, errors, kernels as operations.

use std::panic::{AssertUnwindSafe, catch_unwind};

use lanner_mlx::{Array, Dtype, FrozenArray, OutputSpec, apply, eval};

fn noise(seed: u64, shape: &[i32]) -> Array {
    Array::gumbel(shape, seed)
}

/// Does not compile if arrays could cross threads: the call would be ambiguous.
const _: fn() = || {
    trait Ambiguous<T> {
        fn none() {}
    }
    struct IfSend;
    impl<T: ?Sized> Ambiguous<()> for T {}
    impl<T: ?Sized + Send> Ambiguous<IfSend> for T {}
    <Array as Ambiguous<_>>::none();
};

fn values(array: &Array) -> Vec<f32> {
    array.to_f32().expect("evaluates")
}

#[test]
fn array_values_round_trip() {
    let a = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]);
    assert_eq!(values(&(&a * 2.0 + 1.0)), [3.0, 5.0, 7.0, 9.0, 11.0, 13.0]);
    assert_eq!(values(&a.transpose(&[1, 0])), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    assert_eq!(values(&a.slice(-1, 1, 3)), [2.0, 3.0, 5.0, 6.0]);
    assert_eq!(a.argmax(-1).to_vec::<u32>().expect("uint32"), [2, 2]);
    assert!(a.to_vec::<u32>().expect_err("float32").to_string().contains("array of float32"));
}

/// Prepacked weights depend on their address.
#[test]
fn freezing_a_row_of_a_large_array_does_not_copy_it() {
    let rows = noise(3, &[2, 1 << 16]);
    eval([&rows]).expect("evaluates");
    let row = rows.slice(0, 1, 2);
    eval([&row]).expect("evaluates");
    assert!(row.is_ready());
    let (first, second) = (FrozenArray::of(&row), FrozenArray::of(&row));
    assert_eq!(first.values::<f32>(), values(&row));
    assert_eq!(first.values::<f32>().as_ptr(), second.values::<f32>().as_ptr());
}

#[test]
fn scalar_operands_keep_the_dtype() {
    for dtype in [Dtype::Float16, Dtype::Bfloat16, Dtype::Float32] {
        let a = Array::full(&[3], 1.5, dtype);
        for result in [&a + 1.0, &a * 0.5, a.softplus(), a.softmax(-1)] {
            assert_eq!(result.dtype(), dtype);
        }
    }
}

#[test]
fn shape_mismatch_panics_with_the_operation_name() {
    let (a, b) = (Array::zeros(&[2, 3], Dtype::Float32), Array::zeros(&[2], Dtype::Float32));
    let panic = catch_unwind(AssertUnwindSafe(|| a.matmul(&b))).expect_err("shapes do not fit");
    assert!(panic.downcast_ref::<String>().expect("a message").contains("matmul"));
    assert_eq!(values(&(&a + 1.0)), [1.0; 6], "other arrays still work");
}

#[test]
fn allocation_beyond_memory_is_an_error() {
    let huge = || Array::full(&[1 << 20, 1 << 20, 1 << 10], 1.0, Dtype::Float32);
    let panic = catch_unwind(AssertUnwindSafe(huge)).expect_err("4 petabytes");
    assert!(panic.downcast_ref::<String>().expect("a message").contains("out of memory"));
    assert!(Array::fill_with(&[1 << 30, 1 << 30], Dtype::Float32, |_| Ok(())).is_err());
    assert_eq!(values(&Array::full(&[2], 1.0, Dtype::Float32)), [1.0, 1.0]);
}

#[test]
fn kernel_panic_is_an_evaluation_error() {
    let a = Array::zeros(&[4], Dtype::Float32);
    let spec = || OutputSpec { shape: vec![4], dtype: Dtype::Float32 };
    // A kernel that runs at once, and one that waits for its input.
    for a in [&a, &(&a + &a)] {
        let [bad] = apply("bad", &[a], [spec()], |_, _| panic!("on purpose"));
        let message = eval([&(&bad + &bad)]).expect_err("the kernel panics").to_string();
        assert!(message.contains("kernel bad panicked: on purpose"), "{message}");
    }

    let [good] = apply("good", &[&a], [spec()], |inputs, outputs| {
        let from: &[f32] = inputs[0].values();
        outputs[0].values::<f32>().iter_mut().zip(from).for_each(|(to, from)| *to = from + 1.0);
    });
    assert_eq!(values(&good), [1.0; 4], "the stream still works");
}

#[test]
fn kernel_inputs_are_row_major() {
    let a = noise(1, &[3, 5]).transpose(&[1, 0]);
    let spec = OutputSpec { shape: vec![5, 3], dtype: Dtype::Float32 };
    let [copy] = apply("copy", &[&a], [spec], |inputs, outputs| {
        outputs[0].values::<f32>().copy_from_slice(inputs[0].values());
    });
    assert_eq!(values(&copy), values(&a));
}

#[test]
fn large_arrays_are_aligned_to_cache_lines() {
    let numbers = Array::zeros(&[3, 5000], Dtype::Float32);
    let output = OutputSpec { shape: vec![3, 5000], dtype: Dtype::Float32 };
    let [copy] = apply("copy", &[&numbers], [output], |inputs, outputs| {
        let places = [inputs[0].values::<f32>().as_ptr(), outputs[0].values::<f32>().as_ptr()];
        assert_eq!(places.map(|place| place.addr() % 64), [0, 0]);
        outputs[0].values::<f32>().copy_from_slice(inputs[0].values());
    });
    assert_eq!(copy.to_bytes().expect("evaluates"), numbers.to_bytes().expect("evaluates"));
}

/// Slices, concatenations and takes of evaluated arrays run without MLX's graph.
#[test]
fn eager_copies_equal_those_of_the_graph() {
    let x = noise(1, &[3, 4, 5]);
    eval([&x]).expect("evaluates");
    let later = || &x + &Array::zeros(&[1], Dtype::Float32);
    let check = |operation: fn(&Array) -> Array| {
        let (now, then) = (operation(&x), operation(&later()));
        assert_eq!(now.shape(), then.shape());
        assert_eq!(values(&now), values(&then));
        // And operations on the result.
        assert_eq!(values(&(&now + &now)), values(&(&then + &then)));
        assert_eq!(values(&doubled(&now)), values(&doubled(&then)));
    };
    check(|x| x.slice(0, 1, 3));
    check(|x| x.slice(0, 1, 2).slice(1, 2, 4));
    check(|x| x.slice(0, 2, 3).slice(1, 1, 2).slice(2, 3, 5));
    check(|x| x.slice(1, 1, 3));
    check(|x| x.slice(2, 0, 1));
    check(|x| x.slice(0, 1, 1));
    check(|x| x.slice(0, 1, 3).reshape(&[5, 8]));
    check(|x| x.reshape(&[-1, 10]));
    check(|x| Array::concatenate([x, &x.slice(0, 0, 1), x], 0));
    check(|x| Array::concatenate([&x.slice(1, 0, 0), x, &x.slice(1, 2, 3)], 1));
    check(|x| Array::concatenate([x, x], -1));
    check(|x| x.take(&Array::from_slice(&[2u32, 0, 0], &[3]), 0));
    check(|x| x.take(&Array::from_slice(&[3u32, 0], &[2]), 1));
}

fn doubled(x: &Array) -> Array {
    let spec = OutputSpec { shape: x.shape().to_vec(), dtype: Dtype::Float32 };
    let [out] = lanner_mlx::apply("doubled", &[x], [spec], |inputs, outputs| {
        for (out, x) in outputs[0].values::<f32>().iter_mut().zip(inputs[0].values::<f32>()) {
            *out = 2.0 * x;
        }
    });
    out
}

#[test]
fn gumbel_noise_depends_on_its_seed_alone() {
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
        "reset_peak_memory",
        "flush_thread_cache",
        "release_heap",
        "build_shapes_only",
        "kernel_name",
        "is_ready",
        "set_run_ahead",
        "device_address",
        "free_device",
    ];
    let source = include_str!("../../src/bridge.rs");
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

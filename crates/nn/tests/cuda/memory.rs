//! Arrays on the device as operands of operations that have no kernel.

use mlx::{Array, Dtype};

use super::support::{array, bits, check, has_device};

/// The array, on the device where it is in use.
fn placed(array: Array) -> Array {
    match mlx::cuda::device().filter(|_| mlx::cuda::in_use()) {
        Some(device) => {
            let placed = device.resident(&array).unwrap().into_owned();
            assert!(placed.on_device());
            placed
        }
        None => array,
    }
}

#[test]
fn slices_and_concatenations_on_the_device_match_the_cpu() {
    if !has_device() {
        return;
    }
    let before = mlx::profile::read();
    check("copies", || {
        let x = placed(array(1, &[3, 5, 8]));
        let y = placed(array(2, &[3, 2, 8]));
        let host = array(3, &[3, 1, 8]);
        let rows = Array::from_slice(&[2i32, 0, 2], &[3]);
        [
            x.slice(0, 1, 3),
            x.slice(1, 1, 4),
            x.slice(-1, 2, 3),
            x.slice(1, 2, 2),
            x.reshape(&[-1, 4]).slice(0, 7, 9),
            Array::concatenate([&x, &y, &host], 1),
            Array::concatenate([&x.slice(1, 0, 2), &y], 0),
            x.take(&rows, 0),
            x.contiguous(),
        ]
        .map(|array| (array.shape().to_vec(), bits(&array)))
    });
    let waited = (mlx::profile::read() - before).waited;
    assert!(!waited.is_zero(), "reading waits for the device, and the time counts");
}

#[test]
fn operations_without_a_kernel_match_the_cpu() {
    if !has_device() {
        return;
    }
    check("operations of MLX", || {
        let (x, y) = (placed(array(1, &[4, 6])), array(2, &[4, 6]));
        [
            x.transpose(&[1, 0]).contiguous(),
            x.softmax(-1),
            x.astype(Dtype::Bfloat16).astype(Dtype::Float32),
            lanner_nn::gated(&x, &y, lanner_nn::Activation::Silu),
        ]
        .map(|array| bits(&array))
    });
}

#[test]
fn arithmetic_matches_the_cpu() {
    if !has_device() {
        return;
    }
    check("arithmetic", || {
        let (x, y, row) = (placed(array(1, &[3, 5, 40])), array(2, &[3, 5, 40]), array(3, &[40]));
        [
            &x + &y,
            &y - &x,
            &x * &row,
            &row / &x,
            &x * 0.3,
            &array(4, &[1]) - &x,
            &x + placed(array(5, &[1, 1])),
            // Not repeated: MLX's.
            &x * array(6, &[3, 1, 1]),
            lanner_nn::softcap(&x, 0.7),
        ]
        .map(|array| bits(&array))
    });
}

#[test]
fn memory_of_the_device_is_counted_and_used_again() {
    if !has_device() {
        return;
    }
    check("memory", || {
        let x = placed(array(1, &[1000]));
        let before = mlx::active_memory();
        for _ in 0..10 {
            drop(placed(x.to_host()));
        }
        assert!(mlx::active_memory() <= before, "memory was not given back");
    });
}

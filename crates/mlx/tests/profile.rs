//! Counters of nodes and kernels. A test binary of its own: the counters are the process's.

use std::{thread, time::Duration};

use lanner_mlx::{Array, Dtype, OutputSpec, apply, eval, profile};

#[test]
fn nodes_are_counted_when_built_and_kernels_when_run() {
    let a = Array::from_slice(&[1.0f32, 2.0], &[2]);
    profile::reset();
    assert_eq!(profile::read(), profile::Counters::default());

    let spec = || OutputSpec { shape: vec![2], dtype: Dtype::Float32 };
    let pause = Duration::from_millis(20);
    let both = |a: &Array| {
        apply("both", &[a], [spec(), spec()], move |inputs, outputs| {
            thread::sleep(pause);
            outputs.iter_mut().for_each(|output| output.values().copy_from_slice(inputs[0].values::<f32>()));
        })
    };
    // Its input is evaluated, so it runs at once.
    let [sum, difference] = both(&a);
    let at_once = profile::read();
    assert_eq!((at_once.nodes, at_once.kernels), (1, 1));
    assert!(at_once.kernel_time >= pause && at_once.kernel_time < 50 * pause, "{at_once:?}");

    profile::reset();
    let [sum, difference] = both(&(&sum * &difference));
    let product = (&sum * &difference).square();
    let before = profile::read();
    // Two products, the kernel with its two outputs, and the square.
    assert_eq!((before.nodes, before.kernels, before.kernel_time), (4, 0, Duration::ZERO));

    eval([&product]).expect("evaluates");
    let ran = profile::read() - before;
    assert_eq!((ran.nodes, ran.kernels), (0, 1));
    assert!(ran.kernel_time >= pause && ran.kernel_time < 50 * pause, "{ran:?}");
}

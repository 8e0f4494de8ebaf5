//! The device, random numbers and comparisons.

use std::{panic::Location, path::PathBuf, sync::OnceLock};

use lanner_nn::{
    Activation, KernelOptions, Linear, Matrix, Mlp, Residual, RmsNorm, quantize, set_kernel_options,
};
use mlx::{
    Array, Dtype,
    quant::{Mode, Quantization},
};

use super::{emulation, recorded};

/// Whether there is a device; without one, tests are skipped.
pub(crate) fn has_device() -> bool {
    static FOLDER: OnceLock<Result<Option<PathBuf>, String>> = OnceLock::new();
    match FOLDER.get_or_init(emulation::build) {
        Ok(None) => true,
        Ok(Some(folder)) => {
            set_kernel_options(KernelOptions {
                driver: Some(folder.join("libcuda.so.1")),
                nvrtc_folders: vec![folder.clone()],
                cache: None,
            });
            true
        }
        Err(why) => {
            eprintln!("skipped: {why}");
            false
        }
    }
}

/// Whether it is a GPU, and sizes may be large: those of recorded outputs may not.
pub(crate) fn is_gpu() -> bool {
    std::env::var_os("LANNER_GPU").is_some() && recorded::file().is_none()
}

/// Compares what `run` computes on the CPU and on the device, each called afresh; on the device
/// also with a launch for each operation, if the persistent kernel had a part in it. Outputs of the
/// emulated device are compared with those that a GPU computed, too.
#[track_caller]
pub(crate) fn check<R: PartialEq + std::fmt::Debug>(what: &str, run: impl Fn() -> R) {
    let got = check_unrecorded(what, run);
    if !is_gpu() {
        recorded::compare(Location::caller().file(), what, &got);
    }
}

/// The comparison alone, and what the device computed.
#[track_caller]
pub(crate) fn check_unrecorded<R: PartialEq + std::fmt::Debug>(what: &str, run: impl Fn() -> R) -> R {
    // One device, and one emulation of it.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let on_device = |persistent: bool| {
        lanner_nn::allow_persistent_kernel(persistent);
        lanner_nn::use_cuda().unwrap();
        let got = run();
        lanner_nn::use_gpu(false).unwrap();
        lanner_nn::allow_persistent_kernel(true);
        got
    };
    lanner_nn::use_gpu(false).unwrap();
    let expected = run();
    mlx::profile::count_by_name(true);
    let before = persistent_runs();
    let got = on_device(true);
    assert!(got == expected, "{what}: the device's bits are not the CPU's");
    if persistent_runs() > before {
        assert!(on_device(false) == expected, "{what}: bits of single launches are not the CPU's");
    }
    let fallbacks = lanner_nn::take_fallbacks();
    assert!(fallbacks.is_empty(), "{what}: the CPU computed for the device: {fallbacks:?}");
    got
}

fn persistent_runs() -> u64 {
    let kernels = mlx::profile::kernels();
    kernels.iter().filter(|kernel| kernel.name == "persistent").map(|kernel| kernel.runs).sum()
}

pub(crate) fn bits(array: &Array) -> Vec<u32> {
    array.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

/// Xorshift.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// From `least` to `most`.
    pub(crate) fn between(&mut self, least: i32, most: i32) -> i32 {
        least + (self.next() >> 33) as i32 % (most - least + 1)
    }
}

/// Numbers of all signs, mostly of magnitude 1, some far larger.
pub(crate) fn numbers(seed: u64, n: usize) -> Vec<f32> {
    let mut random = Random::new(seed);
    let mut next = || (random.next() >> 40) as f32 / (1u64 << 24) as f32;
    (0..n)
        .map(|_| {
            let (x, scale) = (2.0 * next() - 1.0, next());
            if scale > 0.99 { 30.0 * x } else { x }
        })
        .collect()
}

pub(crate) fn array(seed: u64, shape: &[i32]) -> Array {
    let n = shape.iter().map(|&dim| dim as usize).product();
    Array::from_slice(&numbers(seed, n), shape)
}

/// A quantised layer of random weights.
pub(crate) fn linear(seed: u64, size: [i32; 2], bits: i32, bias: bool) -> Linear {
    linear_in_groups(seed, size, [bits, 64], bias)
}

pub(crate) fn linear_in_groups(seed: u64, size: [i32; 2], format: [i32; 2], bias: bool) -> Linear {
    let bias = bias.then(|| array(seed + 1, &size[..1]));
    Linear::prepacked(quantized(seed, &size, format), bias).unwrap()
}

/// A random matrix, or a stack of them.
pub(crate) fn quantized(seed: u64, shape: &[i32], [bits, group_size]: [i32; 2]) -> Matrix {
    let quantization = Quantization { mode: Mode::Affine, group_size, bits };
    let weight = array(seed, shape).astype(Dtype::Bfloat16);
    Matrix::Quantized(quantize(&weight, quantization)).in_kernel_groups()
}

/// The outputs of a feed-forward block of random layers: added to the stream, after a norm too, and
/// alone.
pub(crate) fn block_outputs(
    rows: i32,
    activation: Activation,
    layer: impl Fn(u64, [i32; 2]) -> Linear,
) -> [Vec<u32>; 3] {
    let (hidden, inner) = (192, 640);
    let layers = [layer(1, [inner, hidden]), layer(2, [inner, hidden]), layer(3, [hidden, inner])];
    let mlp = Mlp::new(layers, activation);
    let (x, pre, post) = (array(9, &[rows, hidden]), norm(4, hidden), norm(5, hidden));
    let plain = mlp.add_to(&Residual::new(&x, &pre));
    let sandwich = mlp.add_to(&Residual::new(&x, &pre).with_post_norm(&post));
    [bits(&plain), bits(&sandwich), bits(&mlp.forward(&x))]
}

/// The outputs of a projection of 384 gated inputs, normed in heads of `dim`, and of one of the
/// inputs as they are.
pub(crate) fn gated_projection_outputs(
    [dim, rows]: [i32; 2],
    layer: impl Fn(u64, [i32; 2]) -> Linear,
) -> [Vec<u32>; 2] {
    let width = 384;
    let layer = layer(6, [72, width]);
    let (stream, x, gate) = (array(1, &[rows, 72]), array(2, &[rows, width]), array(3, &[rows, width]));
    let (pre, heads) = (norm(4, 72), norm(5, dim));
    let residual = Residual::new(&stream, &pre);
    [bits(&residual.add_gated(&layer, &heads, &gate, &x)), bits(&residual.add_projected(&layer, &x))]
}

/// The same of 4-bit floats in MXFP4.
pub(crate) fn quantized_floats(seed: u64, shape: &[i32]) -> Matrix {
    let quantization = Quantization { mode: Mode::Mxfp4, group_size: 32, bits: 4 };
    Matrix::Quantized(quantize(&array(seed, shape).astype(Dtype::Bfloat16), quantization))
}

pub(crate) fn norm(seed: u64, size: i32) -> RmsNorm {
    RmsNorm::new(array(seed, &[size]), 1e-6)
}

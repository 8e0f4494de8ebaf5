//! Back ends: each implements every operation of this crate for one kind of device.
//!
//! `cpu` runs our kernels, `cuda` those for NVIDIA's GPUs, with the same bits. `mlx` is made of
//! MLX's own operations: it runs on every device that MLX has, and the kernels are tested against
//! it. Another back end is one more folder here with the same functions, one variant of [`Backend`]
//! and one arm of [`on_backend`].

pub(crate) mod cpu;
pub(crate) mod cuda;
pub(crate) mod mlx;

use std::cell::Cell;

use ::mlx::Array;

/// The implementation of a thread's operations.
#[derive(Clone, Copy)]
pub(crate) enum Backend {
    Cpu,
    Cuda,
    Mlx,
}

thread_local! {
    static CURRENT: Cell<Option<Backend>> = const { Cell::new(None) };
}

impl Backend {
    /// The calling thread's back end, which [`use_gpu`] chose; without a choice, that of MLX's
    /// default device at first use.
    pub(crate) fn current() -> Backend {
        CURRENT.get().unwrap_or_else(|| Backend::select(::mlx::on_gpu()))
    }

    fn select(gpu: bool) -> Backend {
        let backend = if gpu { Backend::Mlx } else { Backend::Cpu };
        ::mlx::cuda::set_in_use(false);
        CURRENT.set(Some(backend));
        backend
    }
}

/// Chooses an NVIDIA GPU and our kernels for this thread's operations from here on; the CPU
/// computes operations that have no kernel.
///
/// # Errors
/// There is no such GPU, or its kernels cannot be compiled.
pub fn use_cuda() -> ::mlx::Result<()> {
    ::mlx::use_gpu(false)?;
    cuda::open()?;
    ::mlx::cuda::set_in_use(true);
    CURRENT.set(Some(Backend::Cuda));
    Ok(())
}

/// Zeros where the thread's operations are computed.
#[track_caller]
pub(crate) fn zeros(shape: &[i32], dtype: ::mlx::Dtype) -> ::mlx::Array {
    match Backend::current() {
        Backend::Cuda => cuda::zeros(shape, dtype),
        Backend::Cpu | Backend::Mlx => ::mlx::Array::zeros(shape, dtype),
    }
}

/// A layer's array of numbers where the thread's operations read it: in an NVIDIA GPU's memory as
/// float32, else as it is.
#[track_caller]
pub fn placed(array: Array) -> Array {
    match Backend::current() {
        Backend::Cuda => cuda::placed(array),
        Backend::Cpu | Backend::Mlx => array,
    }
}

/// The operations that the CPU computed for the GPU since the last call; each is reported once for
/// the process.
pub fn take_fallbacks() -> Vec<&'static str> {
    cuda::take_fallbacks()
}

/// What was tried on MLX's GPU since the last call, a sentence each: how products of few rows are
/// computed, so that a row's bits do not depend on other rows, and our kernels in place of MLX's.
pub fn take_row_calls() -> Vec<String> {
    [mlx::take_row_calls(), mlx::metal::take_report()].concat()
}

/// Chooses the device for this thread's operations from here on.
///
/// # Errors
/// There is no GPU in this build of MLX or on this machine.
pub fn use_gpu(gpu: bool) -> ::mlx::Result<()> {
    ::mlx::use_gpu(gpu)?;
    Backend::select(gpu);
    Ok(())
}

/// Chooses MLX's own operations on the CPU for this thread from here on, for the shapes of a model
/// whose weights are not there: arrays may be larger than the memory limit and are not evaluated.
///
/// # Errors
/// Those of [`use_gpu`].
pub fn use_shapes_only() -> ::mlx::Result<()> {
    ::mlx::use_gpu(false)?;
    ::mlx::cuda::set_in_use(false);
    ::mlx::build_shapes_only();
    CURRENT.set(Some(Backend::Mlx));
    Ok(())
}

/// Calls an operation of the thread's back end: `on_backend!(rope(x, positions, rope))`. A macro
/// and not a trait, so that panics name the caller's line.
macro_rules! on_backend {
    ($operation:ident($($argument:expr),* $(,)?)) => {
        match $crate::backend::Backend::current() {
            $crate::backend::Backend::Cpu => $crate::backend::cpu::$operation($($argument),*),
            $crate::backend::Backend::Cuda => $crate::backend::cuda::$operation($($argument),*),
            $crate::backend::Backend::Mlx => $crate::backend::mlx::$operation($($argument),*),
        }
    };
}
pub(crate) use on_backend;

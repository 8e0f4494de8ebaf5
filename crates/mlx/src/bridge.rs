//! The only bridge to C++. Every function that can throw returns `Result`; no raw pointers.

#![allow(unreachable_pub, reason = "cxx makes its items public")]

pub use ffi::*;

#[allow(unsafe_code, reason = "cxx generates it")]
#[cxx::bridge(namespace = "lanner")]
mod ffi {
    /// Element type of an array.
    #[derive(Debug, Hash)]
    enum Dtype {
        Bool,
        Uint8,
        Uint16,
        Uint32,
        Uint64,
        Int8,
        Int16,
        Int32,
        Int64,
        Float16,
        Bfloat16,
        Float32,
    }

    /// Row-major contents of a kernel's input.
    struct View<'a> {
        dtype: Dtype,
        shape: &'a [i32],
        bytes: &'a [u8],
    }

    /// Row-major contents of a kernel's output, uninitialised: the kernel writes all of it.
    struct ViewMut<'a> {
        dtype: Dtype,
        shape: &'a [i32],
        bytes: &'a mut [u8],
    }

    /// Shape and type of one output of a kernel.
    #[derive(Clone)]
    struct OutputSpec {
        shape: Vec<i32>,
        dtype: Dtype,
    }

    /// A kernel in Metal's language; names are separated by spaces.
    struct MetalSource<'a> {
        name: &'a str,
        inputs: &'a str,
        outputs: &'a str,
        header: &'a str,
        body: &'a str,
    }

    /// What a template argument of a kernel is.
    #[derive(Debug)]
    enum MetalKind {
        Int,
        Bool,
        Type,
    }

    /// A template argument of a kernel: a number, or a type.
    struct MetalTemplateArg<'a> {
        name: &'a str,
        kind: MetalKind,
        value: i32,
        dtype: Dtype,
    }

    extern "Rust" {
        type Kernel;
        fn run_kernel(kernel: &Kernel, inputs: &[View], outputs: &mut [ViewMut]) -> Result<()>;
        fn kernel_name(kernel: &Kernel) -> &str;
        fn free_device(pointer: usize, bytes: usize);
    }

    unsafe extern "C++" {
        include!("lanner-mlx/shim/shim.h");

        #[namespace = "mlx::core"]
        #[cxx_name = "array"]
        type RawArray;
        /// A growing list of arrays, for operations on many.
        type Arrays;

        fn arrays() -> UniquePtr<Arrays>;
        fn push(self: Pin<&mut Arrays>, a: &RawArray);
        fn len(self: &Arrays) -> usize;
        fn get(self: &Arrays, i: usize) -> Result<UniquePtr<RawArray>>;

        // array.cc
        fn clone_array(a: &RawArray) -> UniquePtr<RawArray>;
        fn shape_of(a: &RawArray) -> &[i32];
        fn dtype_of(a: &RawArray) -> Result<Dtype>;
        fn empty(shape: &[i32], dtype: Dtype) -> Result<UniquePtr<RawArray>>;
        fn bytes_mut(a: Pin<&mut RawArray>) -> Result<&mut [u8]>;
        fn bytes_of(a: &RawArray) -> Result<&[u8]>;
        fn scalar(value: f32, dtype: Dtype) -> Result<UniquePtr<RawArray>>;
        /// Whether the array is evaluated, on the CPU and row-major.
        fn is_ready(a: &RawArray) -> bool;
        fn mlx_version() -> String;
        fn library_path() -> Result<String>;
        fn device_name() -> Result<String>;
        fn gpu_available() -> bool;
        fn use_gpu(gpu: bool) -> Result<()>;
        fn on_gpu() -> bool;
        fn active_memory() -> usize;
        fn peak_memory() -> usize;
        fn reset_peak_memory();
        fn set_cache_limit(bytes: usize) -> Result<()>;
        fn set_memory_limit(bytes: usize) -> Result<()>;
        fn build_shapes_only();
        fn wire_memory(bytes: usize) -> Result<()>;
        fn clear_cache() -> Result<()>;
        fn flush_thread_cache();
        fn release_heap();

        // device.cc
        fn device_array(
            shape: &[i32],
            dtype: Dtype,
            pointer: usize,
            bytes: usize,
        ) -> Result<UniquePtr<RawArray>>;
        fn device_address(a: &RawArray) -> usize;

        // streams.cc
        fn lease_streams() -> Result<()>;
        fn return_streams() -> Result<()>;

        // eval.cc
        fn set_run_ahead(bytes: usize);
        fn eval(list: &Arrays) -> Result<()>;
        fn async_eval(list: &Arrays) -> Result<()>;

        // ops.cc: unary
        fn exp(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn log(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn negative(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn sigmoid(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn softplus(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn sin(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn cos(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn square(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn rsqrt(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn tanh(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn floor(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn contiguous(a: &RawArray) -> Result<UniquePtr<RawArray>>;
        // binary
        fn add(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn subtract(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn multiply(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn divide(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn maximum(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn minimum(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn matmul(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn greater(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn greater_equal(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn less(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn less_equal(a: &RawArray, b: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn select(condition: &RawArray, yes: &RawArray, no: &RawArray) -> Result<UniquePtr<RawArray>>;
        // shape
        fn astype(a: &RawArray, dtype: Dtype) -> Result<UniquePtr<RawArray>>;
        fn reshape(a: &RawArray, shape: &[i32]) -> Result<UniquePtr<RawArray>>;
        fn transpose(a: &RawArray, axes: &[i32]) -> Result<UniquePtr<RawArray>>;
        fn broadcast_to(a: &RawArray, shape: &[i32]) -> Result<UniquePtr<RawArray>>;
        fn slice(a: &RawArray, start: &[i32], stop: &[i32]) -> Result<UniquePtr<RawArray>>;
        fn slice_update(
            a: &RawArray,
            update: &RawArray,
            start: &[i32],
            stop: &[i32],
        ) -> Result<UniquePtr<RawArray>>;
        fn concatenate(list: &Arrays, axis: i32) -> Result<UniquePtr<RawArray>>;
        fn take(a: &RawArray, indices: &RawArray, axis: i32) -> Result<UniquePtr<RawArray>>;
        fn take_along_axis(a: &RawArray, indices: &RawArray, axis: i32) -> Result<UniquePtr<RawArray>>;
        fn put_along_axis(
            a: &RawArray,
            indices: &RawArray,
            values: &RawArray,
            axis: i32,
        ) -> Result<UniquePtr<RawArray>>;
        fn scatter_add_axis(
            a: &RawArray,
            indices: &RawArray,
            values: &RawArray,
            axis: i32,
        ) -> Result<UniquePtr<RawArray>>;
        fn arange(start: i32, stop: i32, dtype: Dtype) -> Result<UniquePtr<RawArray>>;
        fn full(shape: &[i32], value: f32, dtype: Dtype) -> Result<UniquePtr<RawArray>>;
        // reductions and order
        fn sum(a: &RawArray, axis: i32, keepdims: bool) -> Result<UniquePtr<RawArray>>;
        fn max(a: &RawArray, axis: i32, keepdims: bool) -> Result<UniquePtr<RawArray>>;
        fn argmax(a: &RawArray, axis: i32) -> Result<UniquePtr<RawArray>>;
        fn cumsum(a: &RawArray, axis: i32) -> Result<UniquePtr<RawArray>>;
        fn argsort(a: &RawArray, axis: i32) -> Result<UniquePtr<RawArray>>;
        fn logsumexp(a: &RawArray, axis: i32) -> Result<UniquePtr<RawArray>>;
        fn softmax(a: &RawArray, axis: i32) -> Result<UniquePtr<RawArray>>;
        fn gumbel(shape: &[i32], seed: u64) -> Result<UniquePtr<RawArray>>;

        // fast.cc
        fn rms_norm(x: &RawArray, weight: &RawArray, eps: f32) -> Result<UniquePtr<RawArray>>;
        fn attention(
            q: &RawArray,
            k: &RawArray,
            v: &RawArray,
            scale: f32,
            causal: bool,
            mask: &Arrays,
            sinks: &Arrays,
        ) -> Result<UniquePtr<RawArray>>;
        fn gated_delta(
            q: &RawArray,
            k: &RawArray,
            v: &RawArray,
            g: &RawArray,
            beta: &RawArray,
            state: &RawArray,
        ) -> Result<UniquePtr<Arrays>>;
        /// `w` is codes, scales and, of an affine matrix, biases.
        fn quantized_matmul(
            x: &RawArray,
            w: &Arrays,
            group_size: i32,
            bits: i32,
            mode: &str,
        ) -> Result<UniquePtr<RawArray>>;
        fn gather_qmm(
            x: &RawArray,
            w: &Arrays,
            indices: &RawArray,
            group_size: i32,
            bits: i32,
            mode: &str,
        ) -> Result<UniquePtr<RawArray>>;
        fn gather_mm(x: &RawArray, w: &RawArray, indices: &RawArray) -> Result<UniquePtr<RawArray>>;
        fn dequantize(
            w: &Arrays,
            group_size: i32,
            bits: i32,
            mode: &str,
            dtype: Dtype,
        ) -> Result<UniquePtr<RawArray>>;
        fn quantize(w: &RawArray, group_size: i32, bits: i32, mode: &str) -> Result<UniquePtr<Arrays>>;

        // kernel.cc
        /// `shared[i]` is the input whose memory output `i` takes over, or -1.
        fn apply_kernel(
            kernel: Box<Kernel>,
            inputs: &Arrays,
            outputs: &[OutputSpec],
            shared: &[i32],
        ) -> Result<UniquePtr<Arrays>>;

        // metal.cc
        fn metal_available() -> Result<bool>;
        /// `threads` are those of the whole grid, and those of a threadgroup.
        fn metal_launch(
            kernel: &MetalSource,
            inputs: &Arrays,
            outputs: &[OutputSpec],
            template_args: &[MetalTemplateArg],
            threads: &[i32],
        ) -> Result<UniquePtr<Arrays>>;
        fn metal_text(
            kernel: &MetalSource,
            inputs: &Arrays,
            outputs: &[OutputSpec],
            template_args: &[MetalTemplateArg],
            threads: &[i32],
        ) -> Result<String>;
    }
}

use crate::{
    cuda::free_device,
    kernel::{Kernel, kernel_name, run_kernel},
};

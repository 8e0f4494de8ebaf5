//! Rust functions as operations on arrays.
//!
//! Kernels with evaluated inputs run at once, on the calling thread: an MLX graph node costs more
//! than a small kernel. Others become primitives of the graph and run on MLX's CPU stream, in order
//! with every other operation.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{
    Array,
    array::Element,
    bridge::{self, Dtype, View, ViewMut},
    error::panic_message,
    eval::{list, unlist},
    profile,
};

pub use crate::bridge::OutputSpec;

type Body = dyn Fn(&[Input], &mut [Output]) + Send + Sync;

/// A kernel as the bridge passes it to MLX.
pub struct Kernel {
    name: &'static str,
    body: Box<Body>,
}

/// Row-major contents of one input.
pub struct Input<'a>(&'a View<'a>);

impl Input<'_> {
    pub fn shape(&self) -> &[i32] {
        self.0.shape
    }

    pub fn dtype(&self) -> Dtype {
        self.0.dtype
    }

    /// The bytes of any type.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.bytes
    }

    /// # Panics
    /// If the input's type is not `T`: a bug in the kernel's caller.
    pub fn values<T: Element>(&self) -> &[T] {
        assert_eq!(self.0.dtype, T::DTYPE, "kernel input has another type");
        // An empty buffer may be unaligned.
        if self.0.bytes.is_empty() { &[] } else { bytemuck::cast_slice(self.0.bytes) }
    }
}

/// Row-major contents of one output; uninitialised until the kernel writes it.
pub struct Output<'a>(&'a mut [u8], Dtype);

impl Output<'_> {
    pub fn dtype(&self) -> Dtype {
        self.1
    }

    /// The bytes of any type.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        self.0
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.0.len() / self.1.size()
    }

    /// # Panics
    /// If the output's type is not `T`: a bug in the kernel's caller.
    pub fn values<T: Element>(&mut self) -> &mut [T] {
        assert_eq!(self.1, T::DTYPE, "kernel output has another type");
        if self.0.is_empty() { &mut [] } else { bytemuck::cast_slice_mut(self.0) }
    }
}

/// Runs `body` as one operation on the CPU, at once or as part of the graph; it gets row-major
/// inputs and must write all outputs.
///
/// A panic in `body` becomes an error of the evaluation that needs its outputs.
#[track_caller]
pub fn apply<const N: usize>(
    name: &'static str,
    inputs: &[&Array],
    outputs: [OutputSpec; N],
    body: impl Fn(&[Input], &mut [Output]) + Send + Sync + 'static,
) -> [Array; N] {
    apply_in_place(name, inputs, outputs, &[], body)
}

/// [`apply`] where for each `(output, input)` of `shared` the output takes over the input's memory.
///
/// `body` sees such memory through the output alone; that input is empty. The caller must not use
/// the input's handle again: it would read the kernel's output.
#[track_caller]
pub fn apply_in_place<const N: usize>(
    name: &'static str,
    inputs: &[&Array],
    outputs: [OutputSpec; N],
    shared: &[(usize, usize)],
    body: impl Fn(&[Input], &mut [Output]) + Send + Sync + 'static,
) -> [Array; N] {
    let arrays = apply_many(name, inputs, &outputs, shared, body);
    arrays.try_into().unwrap_or_else(|_| panic!("kernel {name} has {N} outputs"))
}

/// [`apply_in_place`] with any number of outputs.
#[track_caller]
pub fn apply_many(
    name: &'static str,
    inputs: &[&Array],
    outputs: &[OutputSpec],
    shared: &[(usize, usize)],
    body: impl Fn(&[Input], &mut [Output]) + Send + Sync + 'static,
) -> Vec<Array> {
    let kernel = Box::new(Kernel { name, body: Box::new(body) });
    let mut sources = vec![-1; outputs.len()];
    shared.iter().for_each(|&(output, input)| sources[output] = input as i32);
    unlist(bridge::apply_kernel(kernel, &list(inputs.iter().copied()), outputs, &sources))
}

pub(crate) fn kernel_name(kernel: &Kernel) -> &str {
    kernel.name
}

/// Called by MLX's stream or by [`apply`]. No panic may reach C++: it would end the process.
pub(crate) fn run_kernel(kernel: &Kernel, inputs: &[View], outputs: &mut [ViewMut]) -> Result<(), String> {
    let inputs: Vec<Input> = inputs.iter().map(Input).collect();
    let mut outputs: Vec<Output> = outputs.iter_mut().map(|o| Output(&mut *o.bytes, o.dtype)).collect();
    let result = profile::timed(kernel.name, || {
        catch_unwind(AssertUnwindSafe(|| (kernel.body)(&inputs, &mut outputs)))
    });
    result.map_err(|panic| {
        // MLX's stream runs dependent operations before the error is reported: they must not read
        // uninitialised memory as indices.
        outputs.iter_mut().for_each(|output| output.0.fill(0));
        format!("kernel {} panicked: {}", kernel.name, panic_message(&*panic))
    })
}

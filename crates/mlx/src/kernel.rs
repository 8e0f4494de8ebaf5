//! The kernel of an operation written in Rust, as MLX calls it through the bridge.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{
    bridge::{View, ViewMut},
    dtype::{Dtype, Element},
    error::panic_message,
    profile,
};

type Body = dyn Fn(&[Input], &mut [Output]) + Send + Sync;

/// A kernel as the bridge passes it to MLX.
pub(crate) struct Kernel {
    name: &'static str,
    body: Box<Body>,
}

impl Kernel {
    pub(crate) fn new(
        name: &'static str,
        body: impl Fn(&[Input], &mut [Output]) + Send + Sync + 'static,
    ) -> Kernel {
        Kernel { name, body: Box::new(body) }
    }
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
    pub fn num_values(&self) -> usize {
        self.0.len() / self.1.size()
    }

    /// # Panics
    /// If the output's type is not `T`: a bug in the kernel's caller.
    pub fn values<T: Element>(&mut self) -> &mut [T] {
        assert_eq!(self.1, T::DTYPE, "kernel output has another type");
        if self.0.is_empty() { &mut [] } else { bytemuck::cast_slice_mut(self.0) }
    }
}

pub(crate) fn kernel_name(kernel: &Kernel) -> &str {
    kernel.name
}

/// Called by MLX's stream or by [`apply`](crate::apply). No panic may reach C++: it would end the
/// process.
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

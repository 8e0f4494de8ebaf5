//! Rust functions as operations on arrays.
//!
//! Kernels with evaluated inputs run at once, on the calling thread: an MLX graph node costs more
//! than a small kernel. Others become primitives of the graph and run on MLX's CPU stream, in order
//! with every other operation.

use crate::{
    Array, bridge,
    eval::{list, unlist},
    kernel::{Input, Kernel, Output},
};

pub use crate::bridge::OutputSpec;

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
    let kernel = Box::new(Kernel::new(name, body));
    let mut sources = vec![-1; outputs.len()];
    shared.iter().for_each(|&(output, input)| sources[output] = input as i32);
    unlist(bridge::apply_kernel(kernel, &list(inputs.iter().copied()), outputs, &sources))
}

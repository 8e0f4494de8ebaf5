//! Conversions between a model's type and float32, in which kernels compute.

use std::borrow::Cow;

use half::{bf16, f16};
use kernels::Scalar;
use mlx::{Array, Dtype, Element, Input, Output, OutputSpec};

/// Evaluates the expression with the Rust type of a dtype.
macro_rules! dispatch {
    ($dtype:expr, $type:ident => $body:expr) => {
        match $dtype {
            ::mlx::Dtype::Float32 => {
                type $type = f32;
                $body
            }
            ::mlx::Dtype::Float16 => {
                type $type = half::f16;
                $body
            }
            ::mlx::Dtype::Bfloat16 => {
                type $type = half::bf16;
                $body
            }
            other => panic!("kernels take floating-point arrays, not {}", other.name()),
        }
    };
}
pub(super) use dispatch;

/// Evaluates the expression with the Rust types of a dtype and of the one that keys and values are
/// stored in: the same, or bfloat16 for float32.
macro_rules! dispatch_stored {
    ($dtype:expr, $stored_dtype:expr, [$type:ident, $stored:ident] => $body:expr) => {
        match ($dtype, $stored_dtype) {
            (::mlx::Dtype::Float32, ::mlx::Dtype::Bfloat16) => {
                type $type = f32;
                type $stored = half::bf16;
                $body
            }
            (dtype, stored) => {
                assert_eq!(dtype, stored, "keys and values have the type of queries or bfloat16");
                $crate::backend::cpu::values::dispatch!(dtype, $type => {
                    type $stored = $type;
                    $body
                })
            }
        }
    };
}
pub(super) use dispatch_stored;

/// [`Floats`](kernels::Floats) of an input or a frozen array.
macro_rules! floats {
    ($values:expr) => {
        match $values.dtype() {
            ::mlx::Dtype::Float32 => kernels::Floats::F32($values.values()),
            ::mlx::Dtype::Float16 => kernels::Floats::F16($values.values()),
            ::mlx::Dtype::Bfloat16 => kernels::Floats::Bf16($values.values()),
            other => panic!("kernels take floating-point weights, not {}", other.name()),
        }
    };
}
pub(super) use floats;

/// A floating-point type of activations.
pub(super) trait Activations: Scalar + Element {}
impl<T: Scalar + Element> Activations for T {}

/// An output of `array`'s type.
pub(super) fn like(array: &Array, shape: &[i32]) -> OutputSpec {
    OutputSpec { shape: shape.to_vec(), dtype: array.dtype() }
}

/// The values of a small weight.
///
/// # Panics
/// If it cannot be evaluated.
#[track_caller]
pub(super) fn weight_values(array: &Array) -> Vec<f32> {
    array.to_f32().unwrap_or_else(|e| panic!("{e}"))
}

/// The values of an input as float32.
pub(super) fn widened<'a>(input: &'a Input) -> Cow<'a, [f32]> {
    match input.dtype() {
        Dtype::Float32 => Cow::Borrowed(input.values()),
        Dtype::Float16 => Cow::Owned(widen(input.values::<f16>())),
        Dtype::Bfloat16 => Cow::Owned(widen(input.values::<bf16>())),
        other => panic!("kernels take floating-point arrays, not {}", other.name()),
    }
}

fn widen<T: Scalar>(values: &[T]) -> Vec<f32> {
    values.iter().map(|value| value.to_f32()).collect()
}

/// Rounds each value into `out`.
fn narrow<T: Scalar>(values: &[f32], out: &mut [T]) {
    assert_eq!(values.len(), out.len(), "one value per output");
    out.iter_mut().zip(values).for_each(|(out, &value)| *out = T::from_f32(value));
}

/// Calls `f` with `length` values of unspecified contents, in memory that the thread reuses.
pub(super) fn with_scratch_of<T: Element, R>(length: usize, f: impl FnOnce(&mut [T]) -> R) -> R {
    let floats = (length * size_of::<T>()).div_ceil(size_of::<f32>());
    kernels::with_scratch(floats, |memory| f(&mut bytemuck::cast_slice_mut(memory)[..length]))
}

/// Lets `write` fill float32 outputs, which are then rounded to the outputs' own types.
pub(super) fn write_rounded(outputs: &mut [Output], write: impl FnOnce(&mut [&mut [f32]])) {
    if outputs.iter().all(|output| output.dtype() == Dtype::Float32) {
        return write(&mut outputs.iter_mut().map(Output::values).collect::<Vec<_>>());
    }
    let mut wide: Vec<Vec<f32>> = outputs.iter().map(|output| vec![0.0; output.num_values()]).collect();
    write(&mut wide.iter_mut().map(|values| &mut values[..]).collect::<Vec<_>>());
    for (output, values) in outputs.iter_mut().zip(&wide) {
        dispatch!(output.dtype(), T => narrow::<T>(values, output.values()));
    }
}

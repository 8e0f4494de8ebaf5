//! Weights as kernels hold them, and values on their way between a model's type and float32.

use std::borrow::Cow;

use half::{bf16, f16};
use kernels::{Affine, Microscaled, Scalar};

use super::float_format;
use crate::{
    Array, Dtype, Element, Input, Linear, Matrix, Output, RmsNorm,
    constant::Constant,
    quant::{Mode, Quantization},
};

/// A linear layer.
pub(crate) struct LinearParts {
    weight: WeightParts,
    bias: Option<Vec<f32>>,
    pub inputs: usize,
    pub outputs: usize,
}

enum WeightParts {
    Dense(Constant),
    Affine { codes: Constant, scales: Constant, biases: Constant, quantization: Quantization },
    Microscaled { codes: Constant, scales: Constant, mode: Mode },
}

impl LinearParts {
    #[track_caller]
    pub fn of(linear: &Linear) -> LinearParts {
        let weight = match &linear.weight {
            Matrix::Dense(weight) => WeightParts::Dense(Constant::of(weight)),
            Matrix::Quantized(weight) => {
                let (codes, scales) = (Constant::of(&weight.codes), Constant::of(&weight.scales));
                match &weight.biases {
                    Some(biases) => WeightParts::Affine {
                        codes,
                        scales,
                        biases: Constant::of(biases),
                        quantization: weight.quantization,
                    },
                    None => WeightParts::Microscaled { codes, scales, mode: weight.quantization.mode },
                }
            }
        };
        LinearParts {
            weight,
            bias: linear.bias.as_ref().map(numbers),
            inputs: linear.weight.inputs() as usize,
            outputs: linear.weight.outputs() as usize,
        }
    }

    /// Whether [`rows`](LinearParts::rows) takes its format.
    pub fn has_rows(&self) -> bool {
        !matches!(self.weight, WeightParts::Microscaled { .. })
    }

    /// Rows `indices` of the weight.
    pub fn rows<T: Scalar>(&self, indices: &[u32], out: &mut [T]) {
        let k = self.inputs;
        match &self.weight {
            WeightParts::Dense(weight) => super::dispatch!(weight.dtype(), W => {
                let weight: &[W] = weight.values();
                for (&row, out) in indices.iter().zip(out.chunks_exact_mut(k)) {
                    let row = &weight[row as usize * k..][..k];
                    out.iter_mut().zip(row).for_each(|(out, value)| *out = T::from_f32(value.to_f32()));
                }
            }),
            WeightParts::Affine { codes, scales, biases, quantization } => {
                super::dispatch!(scales.dtype(), S => {
                    let weight = affine::<S>(codes, scales, biases, *quantization);
                    kernels::affine_rows(weight, indices, out, k)
                })
            }
            WeightParts::Microscaled { .. } => unreachable!("its rows are MLX's to compute"),
        }
    }
}

fn affine<'a, S: Activations>(
    codes: &'a Constant,
    scales: &'a Constant,
    biases: &'a Constant,
    quantization: Quantization,
) -> Affine<'a, S> {
    Affine {
        codes: codes.values(),
        scales: scales.values(),
        biases: biases.values(),
        group_size: quantization.group_size as usize,
        bits: quantization.bits as usize,
    }
}

/// `x · weightᵀ + bias` of each layer into its `out`; the layers share `x`.
pub(super) fn products<'a>(
    x: &[f32],
    layers: impl IntoIterator<Item = &'a LinearParts>,
    outs: &mut [&mut [f32]],
) {
    for (layer, out) in layers.into_iter().zip(outs) {
        let (k, n) = (layer.inputs, layer.outputs);
        match &layer.weight {
            WeightParts::Dense(weight) => super::dispatch!(weight.dtype(), W => {
                kernels::linear::<f32, W>(x, weight.values(), out, k, n)
            }),
            WeightParts::Affine { codes, scales, biases, quantization } => {
                super::dispatch!(scales.dtype(), S => {
                    let weight = affine::<S>(codes, scales, biases, *quantization);
                    kernels::quantized_linear(x, weight, out, k, n)
                })
            }
            WeightParts::Microscaled { codes, scales, mode } => {
                let format = float_format(*mode);
                let weight = Microscaled { codes: codes.values(), scales: scales.values(), format };
                kernels::microscaled_linear(x, weight, out, k, n)
            }
        }
        if let Some(bias) = &layer.bias {
            for row in out.chunks_exact_mut(n) {
                row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
            }
        }
    }
}

/// A norm.
pub(crate) struct NormParts {
    weight: Vec<f32>,
    eps: f32,
}

impl NormParts {
    #[track_caller]
    pub fn of(norm: &RmsNorm) -> NormParts {
        NormParts { weight: numbers(&norm.weight), eps: norm.eps }
    }

    /// Of each run of `x` as long as the weight.
    pub fn apply(&self, x: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; x.len()];
        kernels::rms_norm(x, &self.weight, &mut out, self.eps);
        out
    }

    pub fn size(&self) -> usize {
        self.weight.len()
    }
}

/// Values of a small weight.
///
/// # Panics
/// If it cannot be evaluated.
#[track_caller]
pub(super) fn numbers(array: &Array) -> Vec<f32> {
    array.to_f32().unwrap_or_else(|e| panic!("{e}"))
}

impl Input<'_> {
    /// The values as float32.
    pub(super) fn wide(&self) -> Cow<'_, [f32]> {
        match self.dtype() {
            Dtype::Float32 => Cow::Borrowed(self.values()),
            Dtype::Float16 => Cow::Owned(widen(self.values::<f16>())),
            Dtype::Bfloat16 => Cow::Owned(widen(self.values::<bf16>())),
            other => panic!("kernels take floating-point arrays, not {}", other.name()),
        }
    }
}

fn widen<T: Scalar>(values: &[T]) -> Vec<f32> {
    values.iter().map(|value| value.to_f32()).collect()
}

/// Rounds each value to its place in `out`.
pub(super) fn narrow<T: Scalar>(values: &[f32], out: &mut [T]) {
    assert_eq!(values.len(), out.len(), "as many values as places");
    out.iter_mut().zip(values).for_each(|(out, &value)| *out = T::from_f32(value));
}

/// Lets `write` fill float32 outputs, which are rounded to the outputs' own type if that is another.
pub(super) fn write_wide(outputs: &mut [Output], write: impl FnOnce(&mut [&mut [f32]])) {
    if outputs.iter().all(|output| output.dtype() == Dtype::Float32) {
        return write(&mut outputs.iter_mut().map(Output::values).collect::<Vec<_>>());
    }
    let mut wide: Vec<Vec<f32>> = outputs.iter().map(|output| vec![0.0; output.len()]).collect();
    write(&mut wide.iter_mut().map(|values| &mut values[..]).collect::<Vec<_>>());
    for (output, values) in outputs.iter_mut().zip(&wide) {
        super::dispatch!(output.dtype(), T => narrow::<T>(values, output.values()));
    }
}

/// A type of activations.
pub(super) trait Activations: Scalar + Element {}
impl<T: Scalar + Element> Activations for T {}

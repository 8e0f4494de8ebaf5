//! Weights as kernels hold them, and values on their way between a model's type and float32.

use std::{borrow::Cow, ops::Range};

use half::{bf16, f16};
use kernels::{
    Activation, Affine, Floats, Matmul, Microscaled, Packed, PackedLayout, Precision, Scalar, Weight,
    with_scratch,
};

use super::float_format;
use crate::{
    Array, Dtype, Element, Input, Linear, Matrix, Output, RmsNorm,
    constant::Constant,
    copies,
    packed::Stored,
    profile,
    quant::{Mode, Quantization},
};

/// A linear layer.
pub(crate) struct LinearParts {
    weight: WeightParts,
    bias: Option<Vec<f32>>,
    unrounded: bool,
    pub inputs: usize,
    pub outputs: usize,
}

enum WeightParts {
    Dense(Constant),
    Affine { codes: Constant, scales: Constant, biases: Constant, quantization: Quantization },
    Microscaled { codes: Constant, scales: Constant, mode: Mode },
    Packed { words: Constant, packing: PackedLayout, inputs: usize },
}

impl LinearParts {
    #[track_caller]
    pub fn of(linear: &Linear) -> LinearParts {
        let weight = match &linear.weight {
            Stored::Plain(Matrix::Dense(weight)) => WeightParts::Dense(Constant::of(weight)),
            Stored::Plain(Matrix::Quantized(weight)) => {
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
            Stored::Packed(weight) => WeightParts::Packed {
                words: Constant::of(&weight.words),
                packing: weight.packing,
                inputs: linear.weight.inputs() as usize,
            },
        };
        LinearParts {
            weight,
            bias: linear.bias.as_ref().map(numbers),
            unrounded: linear.unrounded,
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
                kernels::dequantize_rows(affine(codes, scales, biases, *quantization), indices, out, k)
            }
            WeightParts::Packed { words, packing, inputs } => {
                Packed::new(*packing, *inputs, words.values()).dequantize_rows(indices, out)
            }
            WeightParts::Microscaled { .. } => unreachable!("its rows are MLX's to compute"),
        }
    }
}

impl WeightParts {
    fn weight(&self) -> Weight<'_> {
        match self {
            WeightParts::Dense(values) => Weight::Dense(floats(values)),
            WeightParts::Affine { codes, scales, biases, quantization } => {
                Weight::Affine(affine(codes, scales, biases, *quantization))
            }
            WeightParts::Microscaled { codes, scales, mode } => Weight::Microscaled(Microscaled {
                codes: codes.values(),
                scales: scales.values(),
                format: float_format(*mode),
            }),
            WeightParts::Packed { words, packing, inputs } => {
                Weight::Packed(Packed::new(*packing, *inputs, words.values()))
            }
        }
    }
}

pub(super) fn affine<'a>(
    codes: &'a Constant,
    scales: &'a Constant,
    biases: &'a Constant,
    quantization: Quantization,
) -> Affine<'a> {
    Affine {
        codes: codes.values(),
        scales: floats(scales),
        biases: floats(biases),
        group_size: quantization.group_size as usize,
        bits: quantization.bits as usize,
    }
}

fn floats(values: &Constant) -> Floats<'_> {
    match values.dtype() {
        Dtype::Float32 => Floats::F32(values.values()),
        Dtype::Float16 => Floats::F16(values.values()),
        Dtype::Bfloat16 => Floats::Bf16(values.values()),
        other => panic!("kernels take floating-point weights, not {}", other.name()),
    }
}

/// `x · weightᵀ + bias` of each layer into its `out`; the layers share `x`.
pub(super) fn products<'a>(
    x: &[f32],
    layers: impl IntoIterator<Item = &'a LinearParts>,
    outs: &mut [&mut [f32]],
    precision: Precision,
) {
    let layers: Vec<&LinearParts> = layers.into_iter().collect();
    let Some(first) = layers.first() else { return };
    let (mut rounded, mut unrounded): (Vec<Matmul>, Vec<Matmul>) = (vec![], vec![]);
    for (layer, out) in layers.iter().zip(outs.iter_mut()) {
        let terms = if layer.unrounded { &mut unrounded } else { &mut rounded };
        terms.push(Matmul { weight: layer.weight.weight(), n: layer.outputs, out });
    }
    profile::part("products", || {
        for (terms, precision) in [(&mut rounded, precision), (&mut unrounded, Precision::Float32)] {
            if !terms.is_empty() {
                kernels::linears(x, first.inputs, terms, precision);
            }
        }
    });
    for (layer, out) in layers.iter().zip(outs) {
        if let Some(bias) = &layer.bias {
            for row in out.chunks_exact_mut(layer.outputs) {
                row.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
            }
        }
    }
}

/// `activation(gate(x)) * up(x)`.
pub(super) fn gated_product(
    x: &[f32],
    [gate, up]: [&LinearParts; 2],
    activation: Activation,
    out: &mut [f32],
    precision: Precision,
) {
    if [gate, up].iter().all(|layer| layer.bias.is_none() && !layer.unrounded) {
        let [a, b] = [gate, up].map(|layer| layer.weight.weight());
        let run = || kernels::gated_linear(x, a, b, activation, out, gate.inputs, gate.outputs, precision);
        return profile::part("products", run).0;
    }
    let (mut gates, mut ups) = (vec![0.0; out.len()], vec![0.0; out.len()]);
    products(x, [gate, up], &mut [&mut gates, &mut ups], precision);
    kernels::gated(&gates, &ups, out, activation);
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

    /// In place, of each run as long as the weight in some columns of rows of `width`.
    pub fn apply(&self, x: &mut [f32], width: usize, columns: Range<usize>) {
        kernels::rms_norm_columns(x, width, columns, &self.weight, self.eps);
    }

    /// `norm(x) * silu(gate)`.
    pub fn apply_gated(&self, x: &[f32], gate: &[f32], out: &mut [f32]) {
        kernels::gated_rms_norm(x, gate, &self.weight, out, self.eps);
    }

    pub fn size(&self) -> usize {
        self.weight.len()
    }
}

/// Calls `f` with `x`, each run of which goes through the norm if there is one.
pub(super) fn with_normed<R>(norm: Option<&NormParts>, x: &[f32], f: impl FnOnce(&[f32]) -> R) -> R {
    let Some(norm) = norm else { return f(x) };
    with_scratch(x.len(), |normed| {
        kernels::rms_norm(x, &norm.weight, normed, norm.eps);
        f(normed)
    })
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

/// Rows of a batch that one operation of MLX's graph takes: it ties all outputs of an operation to each other, at a price that
/// grows with their square.
const ROWS: usize = 8;

/// The outputs of all rows, from those that `some` gives for a few of them, whose tokens begin where it is told; for all of
/// them where operations on `x` run at once.
#[track_caller]
pub(super) fn by_parts<R>(
    x: &Array,
    rows: &mut [R],
    tokens: impl Fn(&R) -> i32,
    some: impl Fn(i32, &mut [R]) -> Array,
) -> Array {
    let (mut start, mut outs) = (0, vec![]);
    let most = if copies::are_ready([x]) { rows.len().max(1) } else { ROWS };
    for rows in rows.chunks_mut(most) {
        let end = start + rows.iter().map(&tokens).sum::<i32>();
        outs.push(some(start, rows));
        start = end;
    }
    if outs.len() == 1 { outs.remove(0) } else { Array::concatenate(&outs, 0) }
}

/// Runs `f` on each row of a batch: short ones, a token or a few each, side by side; for others, whose kernels use all
/// threads themselves, one after the other. `work` is the multiply-adds of all rows.
pub(super) fn for_each_row<T: Send>(
    rows: &mut [T],
    tokens: impl Fn(&T) -> usize,
    work: usize,
    f: impl Fn(&mut T) + Sync,
) {
    if rows.iter().all(|row| tokens(row) <= SHORT) {
        kernels::for_each_chunk(rows, 1, work, |_, row| row.iter_mut().for_each(&f));
    } else {
        rows.iter_mut().for_each(f);
    }
}

/// Tokens of a short row.
const SHORT: usize = 8;

fn widen<T: Scalar>(values: &[T]) -> Vec<f32> {
    values.iter().map(|value| value.to_f32()).collect()
}

/// Rounds each value to its place in `out`.
fn narrow<T: Scalar>(values: &[f32], out: &mut [T]) {
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

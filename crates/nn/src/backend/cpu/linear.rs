//! Linear layers.

use std::sync::Arc;

use kernels::{Affine, Matmul, Microscaled, Packed, PackedLayout, Precision, Scalar, Weight};
use mlx::{
    Array, FrozenArray, Input, OutputSpec, apply, apply_many, profile,
    quant::{Mode, Quantization, Quantized},
};

use super::{
    norm::with_normed,
    quant::float_format,
    values::{dispatch, floats, like, weight_values, widened, write_rounded},
};
use crate::{
    Linear, Matrix, RmsNorm, precision,
    storage::{PrepackedMatrix, WeightStorage},
};

/// `linear(norm(x))` of each linear layer.
#[track_caller]
pub(crate) fn project(x: &Array, norm: Option<&RmsNorm>, linears: &[&Linear]) -> Vec<Array> {
    let norm = norm.map(RmsNorm::prepared);
    let layers: Vec<Arc<PreparedLinear>> = linears.iter().map(|linear| linear.prepared()).collect();
    let output = |layer: &Arc<PreparedLinear>| like(x, &output_shape(x, layer.inputs, layer.outputs));
    let outputs: Vec<_> = layers.iter().map(output).collect();
    let precision = precision();
    apply_many("project", &[x], &outputs, &[], move |inputs, outputs| {
        let x = widened(&inputs[0]);
        with_normed(norm.as_deref(), &x, |x| {
            write_rounded(outputs, |outs| products(x, layers.iter().map(|layer| &**layer), outs, precision));
        });
    })
}

/// See [`Linear::rows`]; rows of microscaled weights, and rows in the stored type, are MLX's to
/// compute.
#[track_caller]
pub(crate) fn rows(linear: &Linear, indices: &Array, dtype: Option<mlx::Dtype>) -> Array {
    let dtype = match &linear.weight {
        WeightStorage::Prepacked(weight) => dtype.or(Some(weight.float_dtype())),
        WeightStorage::Plain(_) | WeightStorage::Device(_) | WeightStorage::DeviceFloats(_) => dtype,
    };
    let layer = linear.prepared();
    let (Some(dtype), true) = (dtype, layer.weight.has_rows()) else {
        return linear.weight.plain().rows(indices, dtype);
    };
    let output = OutputSpec { shape: vec![indices.dim(0), layer.inputs as i32], dtype };
    let [out] = apply("rows", &[indices], [output], move |inputs, outputs| {
        dispatch!(outputs[0].dtype(), T => {
            layer.weight.rows::<T>(inputs[0].values(), outputs[0].values(), layer.inputs)
        })
    });
    out
}

/// See [`StackedLinear::forward`](crate::StackedLinear::forward).
#[track_caller]
pub(crate) fn grouped_linear(x: &Array, weight: &WeightStorage, indices: &Array) -> Array {
    let weight = weight.plain();
    let (k, n) = (weight.inputs() as usize, weight.outputs() as usize);
    let (tokens, per_token) = (indices.dim(0), indices.dim(1));
    assert!(
        x.ndim() == 3 && x.dim(0) == tokens && [1, per_token].contains(&x.dim(1)) && x.dim(2) as usize == k,
        "x {:?} does not fit {:?} experts of {k} inputs",
        x.shape(),
        indices.shape()
    );
    let rows_per_input = (per_token / x.dim(1)) as usize;
    let (name, parts, quantization) = match weight {
        Matrix::Dense(weight) => ("grouped_linear", vec![weight], None),
        Matrix::Quantized(w) => ("grouped_quantized_matmul", w.parts().collect(), Some(w.quantization)),
    };
    let inputs: Vec<&Array> = [x].into_iter().chain(parts).chain([indices]).collect();
    let (output, precision) = (like(x, &[tokens, per_token, n as i32]), precision());
    let [out] = apply(name, &inputs, [output], move |inputs, outputs| {
        let [x, parts @ .., indices] = inputs else { unreachable!("x, weight, indices") };
        let weight = match quantization {
            None => Weight::Dense(floats!(parts[0])),
            Some(q) => quantized_weight(parts, q),
        };
        let (x, indices) = (widened(x), indices.values());
        write_rounded(outputs, |outs| {
            kernels::grouped_linear(&x, weight, indices, rows_per_input, outs[0], k, n, precision);
        })
    });
    out
}

fn quantized_weight<'a>(parts: &'a [Input<'a>], q: Quantization) -> Weight<'a> {
    let codes = parts[0].values();
    match q.mode {
        Mode::Affine => Weight::Affine(Affine {
            codes,
            scales: floats!(parts[1]),
            biases: floats!(parts[2]),
            group_size: q.group_size as usize,
            bits: q.bits as usize,
        }),
        mode => {
            Weight::Microscaled(Microscaled { codes, scales: parts[1].values(), format: float_format(mode) })
        }
    }
}

/// Shape of the product of `x` `[.., inputs]` with a layer.
#[track_caller]
pub(super) fn output_shape(x: &Array, inputs: usize, outputs: usize) -> Vec<i32> {
    assert_eq!(x.dim(-1), inputs as i32, "x {:?} does not fit a weight of {inputs} inputs", x.shape());
    let mut shape = x.shape().to_vec();
    if let Some(last) = shape.last_mut() {
        *last = outputs as i32;
    }
    shape
}

/// See [`WeightStorage::prepacked`].
pub(crate) fn prepack(matrix: Matrix) -> mlx::Result<WeightStorage> {
    let packed = match &matrix {
        Matrix::Quantized(weight) if precision() != Precision::Float32 => prepacked(weight)?,
        _ => None,
    };
    Ok(packed.map_or(WeightStorage::Plain(matrix), WeightStorage::Prepacked))
}

/// Experts are read as they are stored: a row takes few of them.
pub(crate) fn prepack_stack(stack: Matrix) -> mlx::Result<WeightStorage> {
    Ok(WeightStorage::Plain(stack))
}

/// Products in float32 read weights as they are stored.
pub(crate) fn place_unrounded(matrix: Matrix) -> mlx::Result<WeightStorage> {
    Ok(WeightStorage::Plain(matrix))
}

/// An affine matrix in the order in which kernels read it, if they have one for its format.
fn prepacked(weight: &Quantized) -> mlx::Result<Option<PrepackedMatrix>> {
    let frozen: Vec<FrozenArray> = weight.parts().map(FrozenArray::of).collect();
    let [codes, scales, biases] = &frozen[..] else { return Ok(None) };
    let affine = affine(codes, scales, biases, weight.quantization);
    let (outputs, inputs) = (weight.codes.dim(-2), weight.inputs());
    let Some(layout) = PackedLayout::for_weight(&affine, outputs as usize) else { return Ok(None) };
    let words = layout.words(outputs as usize, inputs as usize) as i32;
    let words = Array::fill_with(&[words], mlx::Dtype::Uint32, |bytes| {
        layout.pack(affine, inputs as usize, bytemuck::cast_slice_mut(bytes));
        Ok(())
    })?;
    Ok(Some(PrepackedMatrix { words, layout, outputs, inputs }))
}

/// A [`Linear`] as kernels take it. Its arrays are not inputs of operations: each input would cost
/// MLX as much as a small product.
pub(crate) struct PreparedLinear {
    pub weight: PreparedWeight,
    pub bias: Option<Vec<f32>>,
    pub unrounded: bool,
    pub inputs: usize,
    pub outputs: usize,
}

pub(crate) enum PreparedWeight {
    Dense(FrozenArray),
    Affine { codes: FrozenArray, scales: FrozenArray, biases: FrozenArray, quantization: Quantization },
    Microscaled { codes: FrozenArray, scales: FrozenArray, mode: Mode },
    Prepacked { words: FrozenArray, layout: PackedLayout, inputs: usize },
}

impl PreparedLinear {
    #[track_caller]
    pub(crate) fn new(linear: &Linear) -> PreparedLinear {
        PreparedLinear {
            weight: PreparedWeight::new(&linear.weight),
            bias: linear.bias.as_ref().map(weight_values),
            unrounded: linear.unrounded,
            inputs: linear.weight.inputs() as usize,
            outputs: linear.weight.outputs() as usize,
        }
    }
}

impl PreparedWeight {
    #[track_caller]
    pub(crate) fn new(weight: &WeightStorage) -> PreparedWeight {
        match weight {
            WeightStorage::Plain(Matrix::Dense(weight)) => PreparedWeight::Dense(FrozenArray::of(weight)),
            WeightStorage::Plain(Matrix::Quantized(weight)) => {
                let (codes, scales) = (FrozenArray::of(&weight.codes), FrozenArray::of(&weight.scales));
                let quantization = weight.quantization;
                match weight.biases.as_ref().map(FrozenArray::of) {
                    Some(biases) => PreparedWeight::Affine { codes, scales, biases, quantization },
                    None => PreparedWeight::Microscaled { codes, scales, mode: quantization.mode },
                }
            }
            WeightStorage::Prepacked(weight) => PreparedWeight::Prepacked {
                words: FrozenArray::of(&weight.words),
                layout: weight.layout,
                inputs: weight.inputs as usize,
            },
            WeightStorage::Device(_) | WeightStorage::DeviceFloats(_) => {
                panic!("the CPU cannot read a matrix on a GPU")
            }
        }
    }

    /// The weight as an argument of a kernel.
    pub(crate) fn view(&self) -> Weight<'_> {
        match self {
            PreparedWeight::Dense(values) => Weight::Dense(floats!(values)),
            PreparedWeight::Affine { codes, scales, biases, quantization } => {
                Weight::Affine(affine(codes, scales, biases, *quantization))
            }
            PreparedWeight::Microscaled { codes, scales, mode } => Weight::Microscaled(Microscaled {
                codes: codes.values(),
                scales: scales.values(),
                format: float_format(*mode),
            }),
            PreparedWeight::Prepacked { words, layout, inputs } => {
                Weight::Packed(Packed::new(*layout, *inputs, words.values()))
            }
        }
    }

    /// Whether [`rows`](PreparedWeight::rows) takes its format.
    fn has_rows(&self) -> bool {
        !matches!(self, PreparedWeight::Microscaled { .. })
    }

    /// Rows `indices` of a weight of `k` inputs.
    fn rows<T: Scalar>(&self, indices: &[u32], out: &mut [T], k: usize) {
        match self {
            PreparedWeight::Dense(weight) => dispatch!(weight.dtype(), W => {
                let weight: &[W] = weight.values();
                for (&row, out) in indices.iter().zip(out.chunks_exact_mut(k)) {
                    let row = &weight[row as usize * k..][..k];
                    out.iter_mut().zip(row).for_each(|(out, value)| *out = T::from_f32(value.to_f32()));
                }
            }),
            PreparedWeight::Affine { codes, scales, biases, quantization } => {
                kernels::dequantize_rows(affine(codes, scales, biases, *quantization), indices, out, k)
            }
            PreparedWeight::Prepacked { words, layout, inputs } => {
                Packed::new(*layout, *inputs, words.values()).dequantize_rows(indices, out)
            }
            PreparedWeight::Microscaled { .. } => unreachable!("its rows are MLX's to compute"),
        }
    }
}

fn affine<'a>(
    codes: &'a FrozenArray,
    scales: &'a FrozenArray,
    biases: &'a FrozenArray,
    quantization: Quantization,
) -> Affine<'a> {
    Affine {
        codes: codes.values(),
        scales: floats!(scales),
        biases: floats!(biases),
        group_size: quantization.group_size as usize,
        bits: quantization.bits as usize,
    }
}

/// `x · weightᵀ + bias` of each layer into its `out`; the layers share `x`.
pub(super) fn products<'a>(
    x: &[f32],
    layers: impl IntoIterator<Item = &'a PreparedLinear>,
    outs: &mut [&mut [f32]],
    precision: Precision,
) {
    let layers: Vec<&PreparedLinear> = layers.into_iter().collect();
    let Some(first) = layers.first() else { return };
    let (mut rounded, mut unrounded): (Vec<Matmul>, Vec<Matmul>) = (vec![], vec![]);
    for (layer, out) in layers.iter().zip(outs.iter_mut()) {
        let matmuls = if layer.unrounded { &mut unrounded } else { &mut rounded };
        matmuls.push(Matmul { weight: layer.weight.view(), n: layer.outputs, out });
    }
    profile::part("products", || {
        for (matmuls, precision) in [(&mut rounded, precision), (&mut unrounded, Precision::Float32)] {
            if !matmuls.is_empty() {
                kernels::linears(x, first.inputs, matmuls, precision);
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

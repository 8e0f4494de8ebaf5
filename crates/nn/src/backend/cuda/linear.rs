//! Linear layers with quantised weights in tiles on the device.

use kernels::cuda::{OperationKind, TileFormat};
use mlx::{Array, Dtype, Result, cuda::Arguments};

use super::{
    super::cpu,
    floats::{float_product, gather, output_shape, place_dense},
    launch::{empty, fall_back, launch, resident, resident_f32},
    matrix::{DeviceMatrix, tiled},
    multiply::multiply,
    persistent::{self, queue},
    products::{Product, Source},
};
use crate::{Linear, Matrix, Precision, RmsNorm, precision, storage::WeightStorage};

/// See [`WeightStorage::prepacked`].
pub(crate) fn prepack(matrix: Matrix) -> Result<WeightStorage> {
    let tiled = match &matrix {
        Matrix::Quantized(weight) if precision() == Precision::Rounded => tiled(weight)?,
        _ => None,
    };
    let placed = match (tiled, &matrix) {
        (Some(tiled), _) => Some(WeightStorage::Device(tiled)),
        (None, Matrix::Dense(values)) => place_dense(values)?,
        (None, Matrix::Quantized(_)) => None,
    };
    match placed {
        Some(placed) => Ok(placed),
        None => {
            fall_back(match precision() {
                Precision::Rounded => {
                    "weights in other formats than floats, mxfp4 and affine with groups of 64 or 128, bfloat16 scales"
                }
                Precision::Float32 | Precision::Int8 => "quantised weights in this precision",
            });
            cpu::prepack(matrix)
        }
    }
}

impl Linear {
    pub(super) fn on_device(&self) -> Option<&DeviceMatrix> {
        match &self.weight {
            WeightStorage::Device(matrix) => Some(matrix),
            _ => None,
        }
    }

    /// The bias's address on the device, or 0.
    #[track_caller]
    pub(super) fn device_bias(&self) -> u64 {
        let Some(bias) = &self.bias else { return 0 };
        self.device_bias.get_or_init(|| resident_f32(bias).into_owned()).device_address()
    }
}

/// `linear(norm(x))` of each linear layer.
#[track_caller]
pub(crate) fn project(x: &Array, norm: Option<&RmsNorm>, linears: &[&Linear]) -> Vec<Array> {
    if linears.iter().any(|linear| linear.on_device().is_none()) || x.size() == 0 {
        let one = |&linear: &&Linear| match &linear.weight {
            _ if x.size() == 0 && linear.weight.is_on_device() => {
                Array::zeros(&output_shape(x, linear), x.dtype())
            }
            WeightStorage::Device(_) => project(x, norm, &[linear]).remove(0),
            WeightStorage::DeviceFloats(weights) => {
                let normed = norm.map(|norm| norm.forward(&resident_f32(x)));
                float_product(normed.as_ref().unwrap_or(x), linear, weights, None).astype(x.dtype())
            }
            _ => cpu::project(x, norm, &[linear]).remove(0),
        };
        return linears.iter().map(one).collect();
    }
    let inputs = x.dim(-1);
    let rows = x.size() as i32 / inputs.max(1);
    let outs: Vec<Array> = linears.iter().map(|linear| empty(&output_shape(x, linear))).collect();
    let products: Vec<Product> =
        linears.iter().zip(&outs).map(|(linear, out)| Product::new(linear, out, None)).collect();
    let source = match norm {
        Some(norm) => Source::Normed { x, norm },
        None => Source::Plain { x },
    };
    multiply(source, [rows, inputs], &products);
    match x.dtype() {
        Dtype::Float32 => outs,
        dtype => outs.into_iter().map(|out| out.astype(dtype)).collect(),
    }
}

/// See [`cpu::check_token_ids`]. Tokens in the device's memory are not read: its sampler chose them
/// from the vocabulary, or the engine checked them when the request came.
#[track_caller]
pub(crate) fn check_token_ids(tokens: &Array, vocab_size: u32) -> Array {
    if tokens.on_device() { tokens.clone() } else { cpu::check_token_ids(tokens, vocab_size) }
}

/// See [`Linear::rows`].
#[track_caller]
pub(crate) fn rows(linear: &Linear, indices: &Array, dtype: Option<Dtype>) -> Array {
    let n = indices.dim(0);
    if let WeightStorage::DeviceFloats(weights) = &linear.weight {
        let rows = if n > 0 { gather(weights, indices) } else { empty(&[0, weights.dim(1)]) };
        return rows.astype(dtype.unwrap_or(weights.dtype()));
    }
    let Some(matrix) = linear.on_device() else { return cpu::rows(linear, indices, dtype) };
    let out = empty(&[n, matrix.inputs]);
    if n > 0 {
        let ids = resident(indices);
        let arguments = Arguments::new()
            .with(matrix.tiles.device_address())
            .with(ids.device_address())
            .with(out.device_address())
            .with(matrix.inputs)
            .with(matrix.layout.segments() as i32);
        let (name, kind) = match matrix.layout.format {
            TileFormat::Affine4 => ("embed_4", Some(OperationKind::Embed4)),
            TileFormat::Affine8 => ("embed_8", Some(OperationKind::Embed8)),
            TileFormat::Mxfp4 => ("embed_mxfp4", None),
        };
        match kind.filter(|_| n == 1 && persistent::is_allowed()) {
            Some(kind) => queue(name, kind, arguments),
            None => launch(name, [n as usize, 1, 1], 256, 0, arguments),
        }
    }
    out.astype(dtype.unwrap_or(Dtype::Bfloat16))
}

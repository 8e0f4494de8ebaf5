//! Linear layers.

use mlx::{Array, Dtype, Result};

use super::{metal::ProductInput, norm::normed, row_calls};
use crate::{Linear, Matrix, Precision, RmsNorm, precision, storage::WeightStorage};

#[track_caller]
pub(crate) fn project(x: &Array, norm: Option<&RmsNorm>, linears: &[&Linear]) -> Vec<Array> {
    let input = ProductInput::new(normed(x, norm));
    linears.iter().map(|layer| linear(&input, layer)).collect()
}

#[track_caller]
pub(super) fn linear(input: &ProductInput, layer: &Linear) -> Array {
    let weight = layer.weight.plain();
    let rounds = !layer.unrounded && precision() == Precision::Rounded;
    let out = row_calls::multiply(input, weight, rounds, |x| match weight {
        Matrix::Dense(weight) => x.matmul(&weight.transpose(&[1, 0])),
        Matrix::Quantized(weight) => weight.matmul(x),
    });
    match &layer.bias {
        Some(bias) => out + bias.astype(input.x.dtype()),
        None => out,
    }
}

#[track_caller]
pub(crate) fn rows(linear: &Linear, indices: &Array, dtype: Option<Dtype>) -> Array {
    linear.weight.plain().rows(indices, dtype)
}

#[track_caller]
pub(crate) fn grouped_linear(x: &Array, weight: &WeightStorage, indices: &Array) -> Array {
    match weight.plain() {
        Matrix::Dense(weight) => {
            let rows = x.reshape(&[x.dim(0), x.dim(1), 1, x.dim(2)]);
            let out = rows.gather_mm(weight, indices);
            out.reshape(&[indices.dim(0), indices.dim(1), -1])
        }
        Matrix::Quantized(weight) => weight.gather_matmul(x, indices),
    }
}

/// MLX reads matrices in the checkpoint's format.
pub(crate) fn prepack(matrix: Matrix) -> Result<WeightStorage> {
    Ok(WeightStorage::Plain(matrix))
}

pub(crate) use super::super::cpu::{place_unrounded, prepack_stack};

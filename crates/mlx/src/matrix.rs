//! Weight matrices in the formats that checkpoints hold.

use crate::{Array, Dtype, fast, portable, quant::Quantized};

/// A weight matrix `[outputs, inputs]`, or a stack of them `[n, outputs, inputs]`, in the checkpoint's format.
pub enum Matrix {
    Dense(Array),
    Quantized(Quantized),
}

impl Matrix {
    /// `x · selfᵀ`.
    #[track_caller]
    pub fn matmul(&self, x: &Array) -> Array {
        match self {
            Matrix::Dense(weight) => fast::linear(x, weight),
            Matrix::Quantized(weight) => weight.matmul(x),
        }
    }

    /// [`matmul`](Matrix::matmul) by MLX's own operations.
    #[track_caller]
    pub(crate) fn matmul_mlx(&self, x: &Array) -> Array {
        match self {
            Matrix::Dense(weight) => portable::linear(x, weight),
            Matrix::Quantized(weight) => weight.matmul_mlx(x),
        }
    }

    /// As [`fast::grouped_linear`].
    #[track_caller]
    pub fn grouped_matmul(&self, x: &Array, indices: &Array) -> Array {
        match self {
            Matrix::Dense(weight) => fast::grouped_linear(x, weight, indices),
            Matrix::Quantized(weight) => weight.grouped_matmul(x, indices),
        }
    }

    /// The given rows, as `dtype` or in the type they are stored in.
    #[track_caller]
    pub fn rows(&self, indices: &Array, dtype: Option<Dtype>) -> Array {
        match self {
            Matrix::Dense(weight) => {
                let rows = weight.take(indices, 0);
                dtype.map_or(rows.clone(), |dtype| rows.astype(dtype))
            }
            Matrix::Quantized(weight) => {
                let scales = weight.scales.dtype();
                // Formats whose scales are bytes say nothing of activations.
                let own = if scales.is_float() { scales } else { Dtype::Bfloat16 };
                weight.rows(indices, dtype.unwrap_or(own))
            }
        }
    }

    /// Outputs of one matrix.
    pub(crate) fn outputs(&self) -> i32 {
        match self {
            Matrix::Dense(weight) => weight.dim(-2),
            Matrix::Quantized(weight) => weight.codes.dim(-2),
        }
    }

    pub(crate) fn inputs(&self) -> i32 {
        match self {
            Matrix::Dense(weight) => weight.dim(-1),
            Matrix::Quantized(weight) => weight.inputs(),
        }
    }
}

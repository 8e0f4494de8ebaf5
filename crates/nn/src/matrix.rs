//! Weight matrices in the formats that checkpoints hold.

use mlx::{Array, Dtype, quant::Quantized};

/// A weight matrix `[outputs, inputs]`, or a stack of them `[n, outputs, inputs]`.
pub enum Matrix {
    Dense(Array),
    Quantized(Quantized),
}

impl Matrix {
    /// Rows `indices` (uint32 `[n]`), as `dtype` or in the type they are stored in.
    #[track_caller]
    pub(crate) fn rows(&self, indices: &Array, dtype: Option<Dtype>) -> Array {
        match self {
            Matrix::Dense(weight) => {
                let rows = weight.take(indices, 0);
                dtype.map_or(rows.clone(), |dtype| rows.astype(dtype))
            }
            Matrix::Quantized(weight) => {
                let scales = weight.scales.dtype();
                // Formats whose scales are bytes do not name a type for activations.
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

    /// Inputs of one matrix.
    pub(crate) fn inputs(&self) -> i32 {
        match self {
            Matrix::Dense(weight) => weight.dim(-1),
            Matrix::Quantized(weight) => weight.inputs(),
        }
    }
}

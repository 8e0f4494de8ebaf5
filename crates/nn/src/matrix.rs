//! Weight matrices in the formats that checkpoints hold.

use mlx::{
    Array, Dtype,
    quant::{Mode, Quantization, Quantized},
};

use crate::backend::Backend;

/// A weight matrix `[outputs, inputs]`, or a stack of them `[n, outputs, inputs]`.
pub enum Matrix {
    Dense(Array),
    Quantized(Quantized),
}

impl Matrix {
    /// With groups of 128 as two of 64 with the same scale and bias, where our kernels compute:
    /// they have a step for each 64 inputs. Elsewhere as it is.
    pub fn in_kernel_groups(self) -> Matrix {
        match (self, Backend::current()) {
            (Matrix::Quantized(weight), Backend::Cpu | Backend::Cuda)
                if weight.quantization.mode == Mode::Affine && weight.quantization.group_size == 128 =>
            {
                Matrix::Quantized(halve_groups(weight))
            }
            (matrix, _) => matrix,
        }
    }

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

fn halve_groups(weight: Quantized) -> Quantized {
    let twice = |numbers: &Array| {
        let shape = [numbers.shape(), &[2]].concat();
        let groups = numbers.reshape(&[numbers.shape(), &[1]].concat()).broadcast_to(&shape);
        let doubled = [&numbers.shape()[..numbers.ndim() - 1], &[2 * numbers.dim(-1)]].concat();
        groups.reshape(&doubled)
    };
    let quantization = Quantization { group_size: weight.quantization.group_size / 2, ..weight.quantization };
    let (scales, biases) = (twice(&weight.scales), weight.biases.as_ref().map(twice));
    Quantized { scales, biases, quantization, ..weight }
}

//! How a linear layer stores its matrix: in the checkpoint's format, or rearranged for kernels.

use kernels::{FloatType, PackedLayout};
use mlx::{Array, Dtype, Result};

use crate::{
    Matrix,
    backend::{cuda::DeviceMatrix, on_backend},
};

/// A matrix `[outputs, inputs]`.
pub(crate) enum WeightStorage {
    Plain(Matrix),
    Prepacked(PrepackedMatrix),
    Device(DeviceMatrix),
}

/// A matrix in the order in which CPU kernels read it; nothing else can.
pub(crate) struct PrepackedMatrix {
    /// Uint32.
    pub words: Array,
    pub layout: PackedLayout,
    pub outputs: i32,
    pub inputs: i32,
}

impl WeightStorage {
    /// Rearranges `matrix` where the back end can, if it is affine, unless in float32.
    /// Takes no more memory than before, but for a moment twice as much of this matrix.
    ///
    /// # Errors
    /// The matrix cannot be evaluated, or memory is exhausted.
    pub(crate) fn prepacked(matrix: Matrix) -> Result<WeightStorage> {
        on_backend!(prepack(matrix))
    }

    pub(crate) fn outputs(&self) -> i32 {
        match self {
            WeightStorage::Plain(matrix) => matrix.outputs(),
            WeightStorage::Prepacked(packed) => packed.outputs,
            WeightStorage::Device(matrix) => matrix.outputs,
        }
    }

    pub(crate) fn inputs(&self) -> i32 {
        match self {
            WeightStorage::Plain(matrix) => matrix.inputs(),
            WeightStorage::Prepacked(packed) => packed.inputs,
            WeightStorage::Device(matrix) => matrix.inputs,
        }
    }

    /// The matrix in the checkpoint's format.
    ///
    /// # Panics
    /// If it is prepacked: a bug in the caller, since only CPU kernels read those.
    #[track_caller]
    pub(crate) fn plain(&self) -> &Matrix {
        match self {
            WeightStorage::Plain(matrix) => matrix,
            WeightStorage::Prepacked(_) => panic!("MLX cannot read a prepacked matrix"),
            WeightStorage::Device(_) => panic!("MLX cannot read a matrix in tiles"),
        }
    }
}

impl PrepackedMatrix {
    /// The type of its scales.
    pub(crate) fn float_dtype(&self) -> Dtype {
        match self.layout.floats {
            FloatType::F32 => Dtype::Float32,
            FloatType::F16 => Dtype::Float16,
            FloatType::Bf16 => Dtype::Bfloat16,
        }
    }
}

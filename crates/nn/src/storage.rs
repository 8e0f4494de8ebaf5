//! How a linear layer stores its matrix: in the checkpoint's format, or rearranged for kernels.

use kernels::{FloatType, PackedLayout};
use mlx::{Array, Dtype, Result};

use crate::{
    Matrix,
    backend::{cuda::DeviceMatrix, on_backend},
};

/// A matrix `[outputs, inputs]`, or a stack of them.
pub(crate) enum WeightStorage {
    Plain(Matrix),
    Prepacked(PrepackedMatrix),
    Device(DeviceMatrix),
    /// In float32 or bfloat16 in a GPU's memory.
    DeviceFloats(Array),
}

/// A matrix in the order in which CPU kernels read it; nothing else can read it.
pub(crate) struct PrepackedMatrix {
    /// Uint32.
    pub words: Array,
    pub layout: PackedLayout,
    pub outputs: i32,
    pub inputs: i32,
}

impl WeightStorage {
    /// Rearranges an affine matrix into the order of the back end's kernels, if they have one for
    /// it. The result takes no more memory than the matrix, but both exist for a moment.
    ///
    /// # Errors
    /// The matrix cannot be evaluated, or memory is exhausted.
    pub(crate) fn prepacked(matrix: Matrix) -> Result<WeightStorage> {
        on_backend!(prepack(matrix))
    }

    /// Rearranges a stack `[n, outputs, inputs]` likewise.
    ///
    /// # Errors
    /// Those of [`prepacked`](WeightStorage::prepacked).
    pub(crate) fn stacked(stack: Matrix) -> Result<WeightStorage> {
        on_backend!(prepack_stack(stack))
    }

    /// Brings a matrix of a layer whose products are in float32 to where they are computed.
    ///
    /// # Errors
    /// Those of [`prepacked`](WeightStorage::prepacked).
    pub(crate) fn unrounded(matrix: Matrix) -> Result<WeightStorage> {
        on_backend!(place_unrounded(matrix))
    }

    /// Whether it is in a GPU's memory.
    pub(crate) fn is_on_device(&self) -> bool {
        matches!(self, WeightStorage::Device(_) | WeightStorage::DeviceFloats(_))
    }

    pub(crate) fn outputs(&self) -> i32 {
        match self {
            WeightStorage::Plain(matrix) => matrix.outputs(),
            WeightStorage::Prepacked(packed) => packed.outputs,
            WeightStorage::Device(matrix) => matrix.outputs,
            WeightStorage::DeviceFloats(values) => values.dim(0),
        }
    }

    pub(crate) fn inputs(&self) -> i32 {
        match self {
            WeightStorage::Plain(matrix) => matrix.inputs(),
            WeightStorage::Prepacked(packed) => packed.inputs,
            WeightStorage::Device(matrix) => matrix.inputs,
            WeightStorage::DeviceFloats(values) => values.dim(1),
        }
    }

    /// The matrix in the checkpoint's format.
    ///
    /// # Panics
    /// If it is prepacked or on a device: a bug in the caller, since only kernels read those.
    #[track_caller]
    pub(crate) fn plain(&self) -> &Matrix {
        match self {
            WeightStorage::Plain(matrix) => matrix,
            WeightStorage::Prepacked(_) => panic!("MLX cannot read a prepacked matrix"),
            WeightStorage::Device(_) | WeightStorage::DeviceFloats(_) => {
                panic!("MLX cannot read a matrix on the GPU")
            }
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

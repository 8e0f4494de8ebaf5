//! A layer's matrix, in the checkpoint's format or rearranged for our kernels.

use kernels::{FloatType, PackedLayout, Precision};

use crate::{Array, Dtype, Matrix, Result, fused, precision::precision, quant::Mode};

/// A matrix `[outputs, inputs]`.
pub(crate) enum Stored {
    Plain(Matrix),
    Packed(Packed),
}

/// In the order in which our kernels read it; nothing else can.
pub(crate) struct Packed {
    /// Uint32.
    pub words: Array,
    pub packing: PackedLayout,
    outputs: i32,
    inputs: i32,
}

impl Stored {
    /// `matrix` in the order in which our kernels read it, where they run and can: affine, on the CPU, unless in float32.
    /// Takes no more memory than before, but for a moment twice as much of this matrix.
    ///
    /// # Errors
    /// The matrix cannot be evaluated, or memory is exhausted.
    pub fn packed(matrix: Matrix) -> Result<Stored> {
        let fits = !crate::on_gpu() && precision() != Precision::Float32;
        match matrix {
            Matrix::Quantized(weight) if fits && weight.quantization.mode == Mode::Affine => {
                let (outputs, inputs) = (weight.codes.dim(-2), weight.inputs());
                Ok(match fused::pack(&weight)? {
                    Some((words, packing)) => Stored::Packed(Packed { words, packing, outputs, inputs }),
                    None => Stored::Plain(Matrix::Quantized(weight)),
                })
            }
            matrix => Ok(Stored::Plain(matrix)),
        }
    }

    pub fn outputs(&self) -> i32 {
        match self {
            Stored::Plain(matrix) => matrix.outputs(),
            Stored::Packed(packed) => packed.outputs,
        }
    }

    pub fn inputs(&self) -> i32 {
        match self {
            Stored::Plain(matrix) => matrix.inputs(),
            Stored::Packed(packed) => packed.inputs,
        }
    }

    /// `x · selfᵀ` by MLX's own operations.
    ///
    /// # Panics
    /// If it is packed: a bug in the caller, since only what runs on the CPU is.
    #[track_caller]
    pub fn matmul_mlx(&self, x: &Array) -> Array {
        self.plain().matmul_mlx(x)
    }

    /// As [`Matrix::rows`].
    ///
    /// # Panics
    /// As [`matmul_mlx`](Stored::matmul_mlx).
    #[track_caller]
    pub fn rows(&self, indices: &Array, dtype: Option<Dtype>) -> Array {
        self.plain().rows(indices, dtype)
    }

    #[track_caller]
    fn plain(&self) -> &Matrix {
        match self {
            Stored::Plain(matrix) => matrix,
            Stored::Packed(_) => panic!("MLX cannot read a packed matrix"),
        }
    }
}

impl Packed {
    /// The type of its scales.
    pub fn floats(&self) -> Dtype {
        match self.packing.floats {
            FloatType::F32 => Dtype::Float32,
            FloatType::F16 => Dtype::Float16,
            FloatType::Bf16 => Dtype::Bfloat16,
        }
    }
}

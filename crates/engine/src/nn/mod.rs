//! The layers every family is built from; none knows how its weights are stored or where it runs.

pub use mlx::fast::swiglu;
use mlx::{
    Array, Dtype, fast,
    quant::{self, Quantization},
};

/// A weight matrix `[rows, columns]` in the checkpoint's format.
pub enum Matrix {
    Dense(Array),
    /// `codes` uint32 `[rows, columns * bits / 32]`; `scales`, `biases` `[rows, columns / group_size]`.
    Affine {
        codes: Array,
        scales: Array,
        biases: Array,
        quantization: Quantization,
    },
}

impl Matrix {
    /// `x · selfᵀ`.
    fn apply(&self, x: &Array) -> Array {
        match self {
            Matrix::Dense(weight) => fast::linear(x, weight),
            Matrix::Affine { codes, scales, biases, quantization } => {
                quant::matmul(x, codes, scales, biases, *quantization)
            }
        }
    }

    /// The given rows, as `dtype` or in the type they are stored in.
    fn rows(&self, indices: &Array, dtype: Option<Dtype>) -> Array {
        let part = |array: &Array| array.take(indices, 0);
        let cast = |array: Array| dtype.map_or(array.clone(), |dtype| array.astype(dtype));
        match self {
            Matrix::Dense(weight) => cast(part(weight)),
            // MLX dequantises in the scales' type: converting afterwards would round twice.
            Matrix::Affine { codes, scales, biases, quantization } => {
                quant::dequantize(&part(codes), &cast(part(scales)), &cast(part(biases)), *quantization)
            }
        }
    }
}

pub struct Linear {
    weight: Matrix,
}

impl Linear {
    pub fn new(weight: Matrix) -> Linear {
        Linear { weight }
    }

    /// `[.., inputs]` to `[.., outputs]`, in `x`'s type.
    pub fn forward(&self, x: &Array) -> Array {
        self.weight.apply(x)
    }
}

pub struct Embedding {
    weight: Matrix,
    dtype: Option<Dtype>,
}

impl Embedding {
    pub fn new(weight: Matrix, dtype: Option<Dtype>) -> Embedding {
        Embedding { weight, dtype }
    }

    /// Token ids `[tokens]` to `[tokens, hidden_size]`.
    pub fn forward(&self, tokens: &Array) -> Array {
        self.weight.rows(tokens, self.dtype)
    }

    /// The output head of models that tie it to the embedding.
    pub fn as_linear(&self, x: &Array) -> Array {
        self.weight.apply(x)
    }
}

pub struct RmsNorm {
    weight: Array,
    eps: f32,
}

impl RmsNorm {
    pub fn new(weight: Array, eps: f32) -> RmsNorm {
        RmsNorm { weight, eps }
    }

    /// Over the last axis, in `x`'s type.
    pub fn forward(&self, x: &Array) -> Array {
        fast::rms_norm(x, &self.weight, self.eps)
    }
}

/// Rotary frequencies `base^(-2i / dims)` for `dims / 2` pairs (Su et al., 2021).
pub fn rope_frequencies(dims: i32, base: f32) -> Vec<f32> {
    (0..dims / 2).map(|i| 1.0 / base.powf((2 * i) as f32 / dims as f32)).collect()
}

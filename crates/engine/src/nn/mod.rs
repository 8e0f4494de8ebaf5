//! The layers families are built from; none knows how its weights are stored or where it runs.

mod mlp;
mod moe;
pub mod rope;

use mlx::{Array, Dtype, fast, quant::Quantized};

pub use self::{
    mlp::Mlp,
    moe::{Experts, Router, Routing},
};

/// A weight matrix `[outputs, inputs]`, or a stack of them `[n, outputs, inputs]`, in the checkpoint's format.
pub enum Matrix {
    Dense(Array),
    Quantized(Quantized),
}

impl Matrix {
    /// `x · selfᵀ`.
    fn apply(&self, x: &Array) -> Array {
        match self {
            Matrix::Dense(weight) => fast::linear(x, weight),
            Matrix::Quantized(weight) => weight.matmul(x),
        }
    }

    /// The given rows, as `dtype` or in the type they are stored in.
    fn rows(&self, indices: &Array, dtype: Option<Dtype>) -> Array {
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
}

pub struct Linear {
    weight: Matrix,
    bias: Option<Array>,
}

impl Linear {
    pub fn new(weight: Matrix, bias: Option<Array>) -> Linear {
        Linear { weight, bias }
    }

    /// `[.., inputs]` to `[.., outputs]`, in `x`'s type.
    pub fn forward(&self, x: &Array) -> Array {
        let out = self.weight.apply(x);
        match &self.bias {
            Some(bias) => out + bias.astype(x.dtype()),
            None => out,
        }
    }
}

/// Several matrices of one shape, of which each row of the input takes some: experts, or one for each head.
pub struct Stack {
    weight: Matrix,
    /// `[n, outputs]`.
    bias: Option<Array>,
}

impl Stack {
    pub fn new(weight: Matrix) -> Stack {
        Stack { weight, bias: None }
    }

    /// With a bias `[n, outputs]`.
    pub fn with_bias(self, bias: Array) -> Stack {
        Stack { bias: Some(bias), ..self }
    }

    /// `x` `[tokens, 1 or n, inputs]` and `indices` uint32 `[tokens, n]` to `[tokens, n, outputs]`.
    pub fn forward(&self, x: &Array, indices: &Array) -> Array {
        let out = match &self.weight {
            Matrix::Dense(weight) => fast::grouped_linear(x, weight, indices),
            Matrix::Quantized(weight) => weight.grouped_matmul(x, indices),
        };
        match &self.bias {
            Some(bias) => out + bias.take(indices, 0).astype(x.dtype()),
            None => out,
        }
    }

    /// Matrix `i` for row `i` of each token: `[tokens, n, inputs]` to `[tokens, n, outputs]`.
    pub fn forward_each(&self, x: &Array) -> Array {
        let (tokens, n) = (x.dim(0), x.dim(1));
        let each = Array::arange(0, n, Dtype::Uint32).reshape(&[1, n]);
        self.forward(x, &each.broadcast_to(&[tokens, n]))
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

    /// A norm without a weight.
    pub fn plain(size: i32, eps: f32) -> RmsNorm {
        RmsNorm::new(Array::full(&[size], 1.0, Dtype::Float32), eps)
    }

    /// `x * rsqrt(sum(x²) + eps)`, times `scale`: an RMS norm in which `size` moves from the mean into the weight.
    pub fn l2(size: i32, eps: f32, scale: f32) -> RmsNorm {
        let weight = scale * (size as f32).powf(-0.5);
        RmsNorm::new(Array::full(&[size], weight, Dtype::Float32), eps / size as f32)
    }

    /// Over the last axis, in `x`'s type.
    pub fn forward(&self, x: &Array) -> Array {
        fast::rms_norm(x, &self.weight, self.eps)
    }
}

/// Splits the last axis in two.
pub fn halves(x: &Array) -> [Array; 2] {
    let half = x.dim(-1) / 2;
    [x.slice(-1, 0, half), x.slice(-1, half, 2 * half)]
}

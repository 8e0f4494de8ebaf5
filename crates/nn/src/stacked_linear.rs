//! Stacked linear layers of one shape: experts, or one layer per head.

use mlx::{Array, Dtype};

use crate::{Matrix, backend::on_backend};

/// Stacked linear layers, of which each input row takes some.
pub struct StackedLinear {
    weight: Matrix,
    /// `[n, outputs]`.
    bias: Option<Array>,
}

impl StackedLinear {
    pub fn new(weight: Matrix) -> StackedLinear {
        StackedLinear { weight, bias: None }
    }

    /// With a bias `[n, outputs]`.
    pub fn with_bias(self, bias: Array) -> StackedLinear {
        StackedLinear { bias: Some(bias), ..self }
    }

    /// `x` `[tokens, 1 or n, inputs]` through layers `indices` (uint32 `[tokens, n]`), to
    /// `[tokens, n, outputs]`. Rows that share a layer are computed together, with the bits of
    /// [`Linear::forward`](crate::Linear::forward) on the CPU.
    #[track_caller]
    pub fn forward(&self, x: &Array, indices: &Array) -> Array {
        let out = on_backend!(grouped_linear(x, &self.weight, indices));
        match &self.bias {
            Some(bias) => out + bias.take(indices, 0).astype(x.dtype()),
            None => out,
        }
    }

    /// Layer `i` for row `i` of each token: `[tokens, n, inputs]` to `[tokens, n, outputs]`.
    #[track_caller]
    pub fn forward_each(&self, x: &Array) -> Array {
        let (tokens, n) = (x.dim(0), x.dim(1));
        let each = Array::arange(0, n, Dtype::Uint32).reshape(&[1, n]);
        self.forward(x, &each.broadcast_to(&[tokens, n]))
    }
}

//! Stacked linear layers of one shape: experts, or one layer per head.

use std::cell::OnceCell;

use mlx::{Array, Dtype, Result};

use crate::{Matrix, backend::on_backend, storage::WeightStorage};

/// Stacked linear layers, of which each input row takes some.
pub struct StackedLinear {
    pub(crate) weight: WeightStorage,
    /// `[n, outputs]`.
    pub(crate) bias: Option<Array>,
    /// The bias in a GPU's memory.
    pub(crate) device_bias: OnceCell<Array>,
}

impl StackedLinear {
    pub fn new(weight: Matrix) -> StackedLinear {
        StackedLinear { weight: WeightStorage::Plain(weight), bias: None, device_bias: OnceCell::new() }
    }

    /// Layers whose weights are rearranged into the order in which kernels of an NVIDIA GPU read
    /// them, if it computes and has kernels for their format.
    ///
    /// # Errors
    /// The weight cannot be evaluated, or memory is exhausted.
    pub fn prepacked(weight: Matrix) -> Result<StackedLinear> {
        Ok(StackedLinear {
            weight: WeightStorage::stacked(weight)?,
            bias: None,
            device_bias: OnceCell::new(),
        })
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
        self.add_bias(on_backend!(grouped_linear(x, &self.weight, indices)), indices)
    }

    /// Products of layers `indices` with their biases.
    #[track_caller]
    pub(crate) fn add_bias(&self, products: Array, indices: &Array) -> Array {
        match &self.bias {
            Some(bias) => {
                let bias = bias.take(indices, 0).astype(products.dtype());
                products + bias
            }
            None => products,
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

//! Layer norm (Ba et al., "Layer Normalization", 2016).

use mlx::Array;

use crate::backend::on_backend;

/// Layer norm over the last axis, with a weight and a bias.
pub struct LayerNorm {
    /// Float32 `[size]`.
    weight: Array,
    bias: Array,
    eps: f32,
}

impl LayerNorm {
    /// `weight` and `bias` are float32 `[size]`.
    pub fn new(weight: Array, bias: Array, eps: f32) -> LayerNorm {
        LayerNorm { weight, bias, eps }
    }

    /// Over the last axis, in `x`'s type. On the CPU each row depends on itself alone, bit for bit.
    #[track_caller]
    pub fn forward(&self, x: &Array) -> Array {
        on_backend!(layer_norm(x, [&self.weight, &self.bias], self.eps))
    }
}

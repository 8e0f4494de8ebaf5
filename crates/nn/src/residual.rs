//! The residual stream at the entry of a block, with the norms around the block. The back end fuses
//! them with the block's first and last products.

use mlx::Array;

use crate::{Linear, RmsNorm, backend::on_backend, linear::project};

/// A block's input, and what its output is added to: `stream + post_norm(block(pre_norm(stream)))`.
pub struct Residual<'a> {
    /// `[tokens, hidden_size]`.
    pub(crate) stream: &'a Array,
    pub(crate) pre_norm: &'a RmsNorm,
    post_norm: Option<&'a RmsNorm>,
}

/// The residual stream `[tokens, hidden_size]` that a block's output is added to, through a norm if
/// there is one.
#[derive(Clone, Copy)]
pub(crate) struct ResidualAdd<'a> {
    pub stream: &'a Array,
    pub post_norm: Option<&'a RmsNorm>,
}

impl<'a> Residual<'a> {
    pub fn new(stream: &'a Array, pre_norm: &'a RmsNorm) -> Residual<'a> {
        Residual { stream, pre_norm, post_norm: None }
    }

    /// With a norm of the block's output, too.
    pub fn with_post_norm(self, norm: &'a RmsNorm) -> Residual<'a> {
        Residual { post_norm: Some(norm), ..self }
    }

    /// The block's input.
    #[track_caller]
    pub fn normed(&self) -> Array {
        self.pre_norm.forward(self.stream)
    }

    /// The block's input through each of some linear layers.
    #[track_caller]
    pub fn project<const N: usize>(&self, linears: [&Linear; N]) -> [Array; N] {
        project(self.stream, Some(self.pre_norm), linears)
    }

    /// The stream with the block's output added.
    #[track_caller]
    pub fn add(&self, out: Array) -> Array {
        on_backend!(add(self.to_add(), out))
    }

    /// The stream with `linear(x)`, the block's output, added.
    #[track_caller]
    pub fn add_projected(&self, linear: &Linear, x: &Array) -> Array {
        on_backend!(add_projected(self.to_add(), x, linear))
    }

    /// The stream with `linear(silu(gate) * norm(x))` added; `x` and `gate`
    /// `[tokens, heads * dim]`, the norm over each head.
    #[track_caller]
    pub fn add_gated(&self, linear: &Linear, norm: &RmsNorm, gate: &Array, x: &Array) -> Array {
        on_backend!(add_gated_norm(self.to_add(), x, gate, norm, linear))
    }

    pub(crate) fn to_add(&self) -> ResidualAdd<'a> {
        ResidualAdd { stream: self.stream, post_norm: self.post_norm }
    }
}

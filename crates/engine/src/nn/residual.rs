//! The residual stream at the entry of a block, with the norms around the block: a block's first and last products
//! take in what lies between them and the stream.

use mlx::{
    Array,
    fast::{self, Onto},
};

use super::{Linear, RmsNorm};

/// What a block gets, and what it adds its output to: `stream + after(block(before(stream)))`.
pub struct Residual<'a> {
    /// `[tokens, hidden_size]`.
    stream: &'a Array,
    before: &'a RmsNorm,
    after: Option<&'a RmsNorm>,
}

impl<'a> Residual<'a> {
    /// `norm` lies before the block.
    pub fn new(stream: &'a Array, norm: &'a RmsNorm) -> Residual<'a> {
        Residual { stream, before: norm, after: None }
    }

    /// With a norm behind the block, too.
    pub fn with_norm_behind(self, norm: &'a RmsNorm) -> Residual<'a> {
        Residual { after: Some(norm), ..self }
    }

    /// The block's input.
    pub fn normed(&self) -> Array {
        self.before.forward(self.stream)
    }

    /// The block's input through each of some linear layers.
    pub fn project<const N: usize>(&self, linears: [&Linear; N]) -> [Array; N] {
        fast::project(self.stream, Some(self.before), linears)
    }

    /// The stream with the block's output added.
    pub fn add(&self, out: Array) -> Array {
        match self.after {
            Some(norm) => self.stream + norm.forward(&out),
            None => self.stream + out,
        }
    }

    /// The stream with `linear(x)`, the block's output, added.
    pub fn add_projected(&self, linear: &Linear, x: &Array) -> Array {
        fast::add_projected(self.onto(), x, linear)
    }

    /// The stream with `linear(silu(gate) * norm(x))` added, the norm over each head of `x` `[tokens, heads * dim]`.
    pub fn add_gated(&self, linear: &Linear, norm: &RmsNorm, gate: &Array, x: &Array) -> Array {
        fast::add_gated_norm(self.onto(), x, gate, norm, linear)
    }

    /// The norm before the block, the stream, and what its output is added to, for a block that is one operation.
    pub fn parts(&self) -> (&'a RmsNorm, &'a Array, Onto<'a>) {
        (self.before, self.stream, self.onto())
    }

    fn onto(&self) -> Onto<'a> {
        Onto { stream: self.stream, after: self.after }
    }
}

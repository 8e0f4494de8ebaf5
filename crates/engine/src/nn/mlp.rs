//! The gated feed-forward block.

use mlx::{
    Array,
    fast::{self, Activation},
};

use super::{Linear, Residual};
use crate::{error::Result, weights::Weights};

pub struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    activation: Activation,
}

impl Mlp {
    pub fn load(w: &Weights, hidden: i32, intermediate: i32, activation: Activation) -> Result<Mlp> {
        Mlp::load_with(w, hidden, intermediate, activation, false)
    }

    /// As [`load`](Mlp::load), with biases on all three projections if `bias`.
    pub fn load_with(
        w: &Weights,
        hidden: i32,
        intermediate: i32,
        activation: Activation,
        bias: bool,
    ) -> Result<Mlp> {
        Ok(Mlp {
            gate_proj: w.linear_with("gate_proj", intermediate, hidden, bias)?,
            up_proj: w.linear_with("up_proj", intermediate, hidden, bias)?,
            down_proj: w.linear_with("down_proj", hidden, intermediate, bias)?,
            activation,
        })
    }

    /// `[tokens, hidden]` to `[tokens, hidden]`.
    pub fn forward(&self, x: &Array) -> Array {
        fast::feed_forward(x, None, self.linears(), self.activation, None)
    }

    /// The residual stream through the block and its norms.
    pub fn add_to(&self, x: &Residual) -> Array {
        let (norm, stream, onto) = x.parts();
        fast::feed_forward(stream, Some(norm), self.linears(), self.activation, Some(onto))
    }

    fn linears(&self) -> [&Linear; 3] {
        [&self.gate_proj, &self.up_proj, &self.down_proj]
    }
}

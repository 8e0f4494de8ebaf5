//! The gated feed-forward block.

use mlx::{
    Array,
    fast::{Activation, gated},
};

use super::Linear;
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

    pub fn forward(&self, x: &Array) -> Array {
        let (gate, up) = (self.gate_proj.forward(x), self.up_proj.forward(x));
        self.down_proj.forward(&gated(&gate, &up, self.activation))
    }
}

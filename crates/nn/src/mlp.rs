//! Gated feed-forward block.

use mlx::Array;

pub use kernels::Activation;

use crate::{Linear, Residual, backend::on_backend};

/// `down_proj(activation(gate_proj(x)) * up_proj(x))`.
pub struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    pub(crate) activation: Activation,
}

impl Mlp {
    pub fn new([gate_proj, up_proj, down_proj]: [Linear; 3], activation: Activation) -> Mlp {
        Mlp { gate_proj, up_proj, down_proj, activation }
    }

    /// `[tokens, hidden]` to `[tokens, hidden]`.
    #[track_caller]
    pub fn forward(&self, x: &Array) -> Array {
        on_backend!(feed_forward(x, None, self.linears(), self.activation, None))
    }

    /// The residual stream with the block's output added.
    #[track_caller]
    pub fn add_to(&self, x: &Residual) -> Array {
        let (norm, add) = (Some(x.pre_norm), Some(x.to_add()));
        on_backend!(feed_forward(x.stream, norm, self.linears(), self.activation, add))
    }

    pub(crate) fn linears(&self) -> [&Linear; 3] {
        [&self.gate_proj, &self.up_proj, &self.down_proj]
    }
}

/// `activation(gate) * up`.
#[track_caller]
pub fn gated(gate: &Array, up: &Array, activation: Activation) -> Array {
    on_backend!(gated(gate, up, activation))
}

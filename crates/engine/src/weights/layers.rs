//! Blocks of several linear layers.

use nn::{Activation, Experts, Mlp};

use super::Weights;
use crate::error::Result;

impl Weights {
    /// A gated feed-forward block: `gate_proj`, `up_proj` and `down_proj`, without biases.
    pub(crate) fn mlp(&self, hidden: i32, intermediate: i32, activation: Activation) -> Result<Mlp> {
        self.mlp_with(hidden, intermediate, activation, false)
    }

    /// Like [`mlp`](Weights::mlp), with biases on all three projections if `bias`.
    pub(crate) fn mlp_with(
        &self,
        hidden: i32,
        intermediate: i32,
        activation: Activation,
        bias: bool,
    ) -> Result<Mlp> {
        let gate_proj = self.linear_with("gate_proj", intermediate, hidden, bias)?;
        let up_proj = self.linear_with("up_proj", intermediate, hidden, bias)?;
        let down_proj = self.linear_with("down_proj", hidden, intermediate, bias)?;
        Ok(Mlp::new([gate_proj, up_proj, down_proj], activation))
    }

    /// `experts.*`: `count` gated feed-forward blocks, stacked.
    pub(crate) fn experts(
        &self,
        count: i32,
        hidden: i32,
        intermediate: i32,
        activation: Activation,
    ) -> Result<Experts> {
        let stacked =
            |name, outputs, inputs| self.stacked(&format!("experts.{name}"), count, outputs, inputs);
        let gate_proj = stacked("gate_proj", intermediate, hidden)?;
        let up_proj = stacked("up_proj", intermediate, hidden)?;
        let down_proj = stacked("down_proj", hidden, intermediate)?;
        Ok(Experts::new([gate_proj, up_proj, down_proj], activation))
    }
}

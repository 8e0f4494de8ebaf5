//! Blocks of several linear layers.

use nn::{Activation, Experts, Linear, Matrix, Mlp, StackedLinear};

use super::Weights;
use crate::error::Result;

impl Weights {
    /// A convolution, with a bias if `bias`, whose windows touch and do not overlap, as a linear
    /// layer of a window's values `[channels, window..]`. Hubs store `[outputs, channels,
    /// window..]`, MLX channels last.
    pub(crate) fn patch_conv<const N: usize>(
        &self,
        name: &str,
        outputs: i32,
        channels: i32,
        window: [i32; N],
        bias: bool,
    ) -> Result<Linear> {
        let weight = format!("{name}.weight");
        let hub = [&[outputs, channels], &window[..]].concat();
        let channels_last = [&[outputs], &window[..], &[channels]].concat();
        let values = match self.shape(&weight)? == channels_last && hub != channels_last {
            true => {
                let last = channels_last.len() as i32 - 1;
                let order: Vec<i32> = [0, last].into_iter().chain(1..last).collect();
                self.float_tensor(&weight, &channels_last)?.transpose(&order)
            }
            false => self.float_tensor(&weight, &hub)?,
        };
        let inputs = channels * window.iter().product::<i32>();
        let values = self.materialized(self.cast(values).reshape(&[outputs, inputs]).contiguous())?;
        self.layer(Matrix::Dense(values), self.bias(name, outputs, bias)?)
    }

    /// A linear layer without bias from a tensor `[inputs, outputs]`.
    pub(crate) fn transposed(&self, name: &str, outputs: i32, inputs: i32) -> Result<Linear> {
        let values = self.cast(self.float_tensor(name, &[inputs, outputs])?).transpose(&[1, 0]);
        self.layer(Matrix::Dense(self.materialized(values.contiguous())?), None)
    }

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

    /// `experts.*`: `count` gated feed-forward blocks, stacked, without biases.
    pub(crate) fn experts(
        &self,
        count: i32,
        hidden: i32,
        intermediate: i32,
        activation: Activation,
    ) -> Result<Experts> {
        self.experts_with(count, hidden, intermediate, activation, false)
    }

    /// Like [`experts`](Weights::experts), with biases on all three projections if `bias`.
    pub(crate) fn experts_with(
        &self,
        count: i32,
        hidden: i32,
        intermediate: i32,
        activation: Activation,
        bias: bool,
    ) -> Result<Experts> {
        let stacked = |name, outputs, inputs| -> Result<StackedLinear> {
            let layers = self.stacked(&format!("experts.{name}"), count, outputs, inputs)?;
            if !bias {
                return Ok(layers);
            }
            Ok(layers.with_bias(self.float_tensor(&format!("experts.{name}.bias"), &[count, outputs])?))
        };
        let gate_proj = stacked("gate_proj", intermediate, hidden)?;
        let up_proj = stacked("up_proj", intermediate, hidden)?;
        let down_proj = stacked("down_proj", hidden, intermediate)?;
        Ok(Experts::new([gate_proj, up_proj, down_proj], activation))
    }
}

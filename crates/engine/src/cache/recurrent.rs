//! State of a layer that sees the past through a fixed-size summary.

use mlx::{Array, DeltaRow, DeltaState, fast};

/// Empty until the first tokens come; zeros then stand for the past.
#[derive(Clone, Default)]
pub struct Recurrent {
    /// The last inputs of the short convolution, `[width - 1, channels]`.
    conv: Option<Array>,
    state: DeltaState,
}

impl Recurrent {
    pub fn arrays(&self) -> [Option<&Array>; 2] {
        [self.conv.as_ref(), self.state.array()]
    }

    /// What [`arrays`](Recurrent::arrays) gave.
    pub fn from_arrays([conv, state]: [Option<Array>; 2]) -> Recurrent {
        Recurrent { conv, state: DeltaState::from_array(state) }
    }

    /// This sequence's part of a step of `tokens` more.
    pub fn row(&mut self, tokens: i32) -> DeltaRow<'_> {
        DeltaRow { tokens, conv: &mut self.conv, state: &mut self.state }
    }

    /// Causal depthwise convolution of `x` `[tokens, channels]` with `weight` `[channels, width]`.
    #[track_caller]
    pub fn causal_conv(&mut self, x: &Array, weight: &Array, silu: bool) -> Array {
        let past =
            self.conv.take().unwrap_or_else(|| Array::zeros(&[weight.dim(1) - 1, x.dim(1)], x.dtype()));
        let (out, conv) = fast::causal_conv(x, weight, &past, silu);
        self.conv = Some(conv);
        out
    }

    /// Gated delta rule; shapes as in [`fast::gated_delta`], without the leading 1.
    #[track_caller]
    pub fn gated_delta(&mut self, [q, k, v]: [&Array; 3], g: &Array, beta: &Array) -> Array {
        let [q, k, v, g, beta] = [q, k, v, g, beta].map(|x| x.reshape(&[&[1], x.shape()].concat()));
        let out = self.state.gated_delta([&q, &k, &v], &g, &beta);
        out.reshape(&out.shape()[1..])
    }
}

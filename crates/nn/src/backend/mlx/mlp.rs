//! Gated feed-forward block.

use std::f32::consts::PI;

use mlx::Array;

use super::{
    linear::linear,
    metal::{self, ProductInput},
    norm::normed,
    residual::add,
};
use crate::{Activation, Linear, RmsNorm, residual::ResidualAdd};

#[track_caller]
pub(crate) fn gated(gate: &Array, up: &Array, activation: Activation) -> Array {
    if let Some(done) = metal::gated(gate, up, activation) {
        return done;
    }
    match activation {
        Activation::Silu => gate * gate.sigmoid() * up,
        Activation::GeluTanh => {
            let cubed = gate * gate.square() * 0.044715 + gate;
            (gate * 0.5) * ((cubed * (2.0 / PI).sqrt()).tanh() + 1.0) * up
        }
        Activation::ClampedSwish { limit } => {
            let limit = &Array::scalar(limit, gate.dtype());
            let (gate, up) = (gate.minimum(limit), up.minimum(limit).maximum(&-limit));
            &gate * (&gate * 1.702).sigmoid() * (up + 1.0)
        }
    }
}

#[track_caller]
pub(crate) fn feed_forward(
    x: &Array,
    norm: Option<&RmsNorm>,
    [gate, up, down]: [&Linear; 3],
    activation: Activation,
    residual: Option<ResidualAdd>,
) -> Array {
    let input = ProductInput::new(normed(x, norm));
    let inner = gated(&linear(&input, gate), &linear(&input, up), activation);
    let out = linear(&ProductInput::new(inner), down);
    match residual {
        Some(residual) => add(residual, out),
        None => out,
    }
}

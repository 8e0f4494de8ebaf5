//! Gated feed-forward block.

use mlx::{Array, cuda::Arguments};

use super::{
    super::cpu,
    floats::output_shape,
    launch::{empty, gate_activation, is_f32, launch, resident},
    linear::project,
    multiply::multiply,
    products::{Product, Source},
    residual::{add_product, add_projected},
};
use crate::{Activation, Linear, RmsNorm, residual::ResidualAdd};

/// `down(activation(gate(norm(x))) * up(norm(x)))`, added to a residual stream if there is one.
#[track_caller]
pub(crate) fn feed_forward(
    x: &Array,
    norm: Option<&RmsNorm>,
    [gate, up, down]: [&Linear; 3],
    activation: Activation,
    add: Option<ResidualAdd>,
) -> Array {
    let all = [gate, up, down];
    if !all.iter().any(|linear| linear.weight.is_on_device()) {
        return cpu::feed_forward(x, norm, all, activation, add);
    }
    if all.iter().any(|linear| linear.on_device().is_none()) {
        let parts = project(x, norm, &[gate, up]);
        let gated = gated(&parts[0], &parts[1], activation);
        return match add {
            Some(add) => add_projected(add, &gated, down),
            None => project(&gated, None, &[down]).remove(0),
        };
    }
    let parts = project(x, norm, &[gate, up]);
    let activation = gate_activation(activation);
    let source = Source::Gated { gate: &parts[0], up: &parts[1], activation };
    match add {
        Some(add) => add_product(add, source, &parts[0], down),
        None => {
            let out = empty(&output_shape(&parts[0], down));
            let size = [parts[0].size() as i32 / parts[0].dim(-1), parts[0].dim(-1)];
            multiply(source, size, &[Product::new(down, &out, None)]);
            out
        }
    }
}

/// `activation(gate) * up`.
#[track_caller]
pub(crate) fn gated(gate: &Array, up: &Array, activation: Activation) -> Array {
    assert_eq!(gate.shape(), up.shape(), "a gate for each value");
    if !(gate.on_device() && up.on_device() && is_f32(gate) && is_f32(up)) || gate.size() == 0 {
        return cpu::gated(gate, up, activation);
    }
    let (gate, up, out) = (resident(gate), resident(up), empty(gate.shape()));
    let arguments = Arguments::new()
        .with(gate.device_address())
        .with(up.device_address())
        .with(out.device_address())
        .with(out.size() as i32)
        .with(gate_activation(activation));
    launch("gated", [out.size().div_ceil(256), 1, 1], 256, 0, arguments);
    out
}

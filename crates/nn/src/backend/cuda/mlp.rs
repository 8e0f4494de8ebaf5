//! Gated feed-forward block.

use mlx::Array;

use super::{
    super::cpu,
    launch::empty,
    linear::{output_shape, project},
    products::{Product, Source, multiply},
    residual::add_product,
};
use crate::{Activation, Linear, RmsNorm, residual::ResidualAdd, storage::WeightStorage};

/// `down(activation(gate(norm(x))) * up(norm(x)))`, added to a residual stream if there is one.
#[track_caller]
pub(crate) fn feed_forward(
    x: &Array,
    norm: Option<&RmsNorm>,
    [gate, up, down]: [&Linear; 3],
    activation: Activation,
    add: Option<ResidualAdd>,
) -> Array {
    let on_device = |linear: &&Linear| matches!(linear.weight, WeightStorage::Device(_));
    match [gate, up, down].iter().filter(|linear| on_device(linear)).count() {
        0 => return cpu::feed_forward(x, norm, [gate, up, down], activation, add),
        3 => {}
        _ => {
            let parts = project(x, norm, &[gate, up]);
            let gated = cpu::gated(&parts[0], &parts[1], activation);
            let out = project(&gated, None, &[down]).remove(0);
            return match add {
                Some(add) => super::residual::add(add, out),
                None => out,
            };
        }
    }
    let parts = project(x, norm, &[gate, up]);
    let activation = match activation {
        Activation::Silu => 0,
        Activation::GeluTanh => 1,
    };
    let source = Source::Gated { gate: &parts[0], up: &parts[1], activation };
    match add {
        Some(add) => add_product(add, source, &parts[0], down),
        None => {
            let out = empty(&output_shape(&parts[0], down));
            let size = [parts[0].size() as i32 / parts[0].dim(-1), parts[0].dim(-1)];
            multiply(source, size, &[Product { linear: down, out: &out, stream: None }]);
            out
        }
    }
}

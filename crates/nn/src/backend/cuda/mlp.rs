//! Gated feed-forward block.

use mlx::Array;

use super::{
    super::cpu,
    launch::empty,
    linear::{Product, QuantizedInputs, Source, output_shape, project},
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
    let (rows, inputs) = ((x.size() / x.dim(-1) as usize) as i32, down.weight.inputs());
    let source = Source::Gated { gate: &parts[0], up: &parts[1], activation };
    let quantized = QuantizedInputs::new(source, rows, inputs);
    match add {
        Some(add) => add_product(add, &quantized, &parts[0], down),
        None => {
            let out = empty(&output_shape(&parts[0], down));
            quantized.multiply(&[Product { linear: down, out: &out, stream: None }]);
            out
        }
    }
}

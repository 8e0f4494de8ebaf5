//! The product of weights with integer codes: `x` is quantised to integers too, and the products of
//! a group are summed exactly.
//!
//! Each row of `x` is cut into the weight's groups. Groups of 64, and smaller ones of 64 inputs
//! together, are stored as integers of 14 bits with one step, a power of two, of which 11
//! significant bits are kept: half precision holds them, and they lose an eighth of what bfloat16
//! loses. Or as 8-bit integers with a step of a 127th of the largest magnitude, which halves the
//! multiplications. Then, for one output:
//!
//! ```text
//! sum = 0
//! for each segment of 512 inputs:
//!     part = 0
//!     for each group g of the segment:               codes of the weight, integers of x
//!         dot = Σ code · integer                     exact
//!         part = fma(scale[g], dot as f32 · step[g], part)
//!         part = fma(bias[g], (Σ integer) as f32 · step[g], part)
//!     sum = sum + part
//! ```
//!
//! Segments let a GPU divide the inputs among its threads and still add up in this order.
//!
//! Integer sums do not depend on their order, so results are bit-identical for every instruction
//! set, number of rows and number of threads. Weights need no conversion: codes are multiplied as
//! they are.
//!
//! A *four* is the four codes of a row that a 32-bit lane holds as bytes, in the order in which
//! instructions multiply them with four inputs.
//!
//! The code of a 4-bit float is twice its value plus 12, which is at least 0; the 12 are subtracted
//! from the dot product. 4-bit floats have no bias. Inputs with one step whose magnitudes are below
//! 1e-30 count as zeros; a magnitude above 1e30 or a NaN among them makes all outputs of the row
//! NaN.

pub(crate) mod inputs;
mod kernels;
pub(crate) mod packed;
pub(crate) mod panel;
mod portable;
pub(crate) mod quantize;
mod task;
pub(crate) mod unpack;

use super::{row_groups::RowGroups, weight::Weight};
use crate::{disjoint::DisjointMut, gated::Activation};
use inputs::{InputLayout, QuantizedInputs};
use kernels::{IntegerKernels, integer_kernels};
use task::{IntegerMatmul, IntegerWeight, run};

pub(super) use inputs::ActivationWidth;

/// Products that share `x` and its grouping by matrix.
pub(super) fn multiply(x: &[f32], products: Vec<(Weight, &RowGroups, &mut [f32])>, width: ActivationWidth) {
    let Some(&(_, rows, _)) = products.first() else { return };
    let kernels = integer_kernels();
    let mut inputs: Vec<QuantizedInputs> = vec![];
    let mut weights = vec![];
    for (weight, ..) in &products {
        let weight = IntegerWeight::new(weight, rows.k);
        let layout = weight.layout();
        if inputs.iter().all(|inputs| inputs.layout != layout) {
            inputs.push(quantized(x, rows, layout, width, kernels));
        }
        weights.push(weight);
    }
    let inputs_of = |layout| inputs.iter().find(|inputs| inputs.layout == layout).expect("just quantised");
    let matmuls = products.into_iter().zip(weights).map(|((_, groups, out), weight)| {
        let inputs = inputs_of(weight.layout());
        IntegerMatmul { weight, gated: None, inputs, groups, out: DisjointMut::new(out) }
    });
    run(matmuls.collect(), kernels);
}

/// `out = activation(x · gateᵀ) * (x · upᵀ)`, bit-identical to the three steps, without storing the
/// products. False, without effect, if the weights require different layouts of `x`.
pub(super) fn multiply_gated(
    x: &[f32],
    [gate, up]: [Weight; 2],
    groups: &RowGroups,
    activation: Activation,
    out: &mut [f32],
    width: ActivationWidth,
) -> bool {
    let [weight, up] = [gate, up].map(|weight| IntegerWeight::new(&weight, groups.k));
    if weight.layout() != up.layout() {
        return false;
    }
    let kernels = integer_kernels();
    let inputs = &quantized(x, groups, weight.layout(), width, kernels);
    let gated = Some((up, activation));
    run(vec![IntegerMatmul { weight, gated, inputs, groups, out: DisjointMut::new(out) }], kernels);
    true
}

fn quantized(
    x: &[f32],
    rows: &RowGroups,
    layout: InputLayout,
    width: ActivationWidth,
    kernels: &IntegerKernels,
) -> QuantizedInputs {
    QuantizedInputs::new(x, rows, layout, width, kernels.as_bytes, kernels.quantize)
}

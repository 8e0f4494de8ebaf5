//! `x · Wᵀ`, row-invariant, for each weight format and precision.

mod affine;
#[allow(clippy::needless_range_loop, reason = "closures do not get the instruction set of their callers")]
pub(crate) mod bfloat16;
mod codes;
mod float32;
#[allow(clippy::needless_range_loop, reason = "closures do not get the instruction set of their callers")]
pub(crate) mod integer;
mod microscaled;
mod output;
mod packed;
mod row_groups;
mod scratch;
pub(crate) mod tiling;
mod weight;

pub use affine::Affine;
pub use float32::float32_values;
pub use microscaled::{FloatFormat, Microscaled};
pub use packed::{FloatType, Packed, PackedLayout};
pub use weight::{Floats, Matmul, Precision, Weight};

pub(crate) use codes::{e4m3, e8m0};
pub(crate) use integer::unpack::half_e8m0;
pub(crate) use scratch::Scratch;

use crate::gated::{Activation, gated};
use integer::ActivationWidth;
use row_groups::{AllRows, RowGroups};
use weight::Accumulation;

/// `out[m, n] = x[m, k] · weight[n, k]ᵀ`.
pub fn linear(x: &[f32], weight: Weight, out: &mut [f32], k: usize, n: usize, precision: Precision) {
    linears(x, k, &mut [Matmul { weight, n, out }], precision);
}

/// Several products with the same `x` `[m, k]`, computed together.
pub fn linears(x: &[f32], k: usize, matmuls: &mut [Matmul], precision: Precision) {
    let m = x.len().checked_div(k).unwrap_or(0);
    assert_eq!(x.len(), m * k, "x is not [{m}, {k}]");
    let all = AllRows::new(m);
    let mut groups: Vec<RowGroups> = Vec::with_capacity(matmuls.len());
    for Matmul { weight, n, out } in matmuls.iter() {
        weight.check(*n, k);
        if k > 0 {
            assert_eq!(out.len(), m * n, "out is not [{m}, {n}]");
        }
        groups.push(RowGroups::one_matrix(&all, k, *n));
    }
    let (mut rounded, mut integers) = (vec![], vec![]);
    for (Matmul { weight, out, .. }, groups) in matmuls.iter_mut().zip(&groups) {
        let accumulation =
            if out.is_empty() || k == 0 { Accumulation::Float32 } else { weight.accumulation(precision) };
        match accumulation {
            Accumulation::Float32 => float32::multiply(x, *weight, out, groups),
            Accumulation::Bfloat16 => rounded.push((*weight, groups, &mut **out)),
            Accumulation::Integer => integers.push((*weight, groups, &mut **out)),
        }
    }
    bfloat16::multiply(x, rounded);
    integer::multiply(x, integers, ActivationWidth::of(precision));
}

/// `out = activation(x · gateᵀ) * (x · upᵀ)`: both weights `[n, k]`, `x` `[m, k]`, `out` `[m, n]`.
/// Bit-identical to two products and [`gated`].
#[expect(clippy::too_many_arguments, reason = "slices come without their shapes")]
pub fn gated_linear(
    x: &[f32],
    gate: Weight,
    up: Weight,
    activation: Activation,
    out: &mut [f32],
    k: usize,
    n: usize,
    precision: Precision,
) {
    if let (Accumulation::Integer, Accumulation::Integer) =
        (gate.accumulation(precision), up.accumulation(precision))
        && k > 0
        && !out.is_empty()
    {
        [gate, up].iter().for_each(|weight| weight.check(n, k));
        let all = AllRows::new(x.len() / k);
        let groups = RowGroups::one_matrix(&all, k, n);
        assert_eq!((x.len() % k, out.len()), (0, x.len() / k * n), "x is not [.., {k}] or out not [.., {n}]");
        let width = ActivationWidth::of(precision);
        if integer::multiply_gated(x, [gate, up], &groups, activation, out, width) {
            return;
        }
    }
    let (mut gates, mut ups) = (vec![0.0; out.len()], vec![0.0; out.len()]);
    let mut matmuls = [Matmul { weight: gate, n, out: &mut gates }, Matmul { weight: up, n, out: &mut ups }];
    linears(x, k, &mut matmuls, precision);
    gated(&gates, &ups, out, activation);
}

/// `out[r] = x[r / per_row] · weight[experts[r]]ᵀ`: output row `r` belongs to expert `experts[r]`,
/// and `per_row` output rows share a row of `x`. Each row is bit-identical to [`linear`] with that
/// matrix.
///
/// `x` `[rows / per_row, k]`; `weight` `[experts, n, k]`; `out` `[rows, n]`.
///
/// # Panics
/// If an expert does not exist.
#[expect(clippy::too_many_arguments, reason = "slices come without their shapes")]
pub fn grouped_linear(
    x: &[f32],
    weight: Weight,
    experts: &[u32],
    per_row: usize,
    out: &mut [f32],
    k: usize,
    n: usize,
    precision: Precision,
) {
    let size = n * k;
    let elements = weight.num_elements();
    assert!(size > 0 && elements.is_multiple_of(size), "{elements} weights are not matrices of {size}");
    weight.check(elements / k, k);
    let groups = RowGroups::by_matrix(experts, per_row, elements / size, k, n);
    assert_eq!(out.len(), experts.len() * n, "out is not [{}, {n}]", experts.len());
    match weight.accumulation(precision) {
        Accumulation::Float32 => float32::multiply(x, weight, out, &groups),
        Accumulation::Bfloat16 => bfloat16::multiply(x, vec![(weight, &groups, out)]),
        Accumulation::Integer => {
            integer::multiply(x, vec![(weight, &groups, out)], ActivationWidth::of(precision))
        }
    }
}

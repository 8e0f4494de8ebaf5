//! Products where every output row has a matrix of its own choice: mixtures of experts, matrices per head.
//!
//! Each row's bits are those of the plain product with that matrix. All matrices are one parallel region.

use crate::{
    linear::{
        Affine, Dense, FloatFormat, Microscaled, Product, affine_product, microscaled_product, multiply,
    },
    scalar::Scalar,
};

/// `out[r] = x[r / per_row] · weight[experts[r]]ᵀ`: row `r` of the output belongs to expert `experts[r]`, and
/// `per_row` output rows share a row of `x`.
///
/// `x` `[rows / per_row, k]`; `weight` `[experts, n, k]`; `out` `[rows, n]`. Panics if an expert does not exist.
pub fn grouped_linear<X: Scalar, W: Scalar>(
    x: &[X],
    weight: &[W],
    experts: &[u32],
    per_row: usize,
    out: &mut [X],
    k: usize,
    n: usize,
) {
    let count = matrices(weight.len(), n * k);
    multiply(x, Dense { values: weight, k }, out, &Product::grouped(experts, per_row, count, k, n));
}

/// As [`grouped_linear`], for quantised weights.
pub fn grouped_affine_linear<X: Scalar, S: Scalar>(
    x: &[X],
    weight: Affine<S>,
    experts: &[u32],
    per_row: usize,
    out: &mut [X],
    k: usize,
    n: usize,
) {
    let count = matrices(weight.codes.len(), n * k * weight.bits / 32);
    affine_product(x, weight, out, &Product::grouped(experts, per_row, count, k, n));
}

/// As [`grouped_linear`], for microscaled weights.
pub fn grouped_microscaled_linear<X: Scalar>(
    x: &[X],
    weight: Microscaled,
    experts: &[u32],
    per_row: usize,
    out: &mut [X],
    k: usize,
    n: usize,
) {
    let bits = if weight.format == FloatFormat::Mxfp8 { 8 } else { 4 };
    let count = matrices(weight.codes.len(), n * k * bits / 32);
    microscaled_product(x, weight, out, &Product::grouped(experts, per_row, count, k, n));
}

/// How many matrices of `size` elements fill `len`.
fn matrices(len: usize, size: usize) -> usize {
    assert!(size > 0 && len.is_multiple_of(size), "{len} elements are not matrices of {size}");
    len / size
}

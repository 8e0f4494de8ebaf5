//! `x · Wᵀ`, row-invariant: the formats a weight may have, and the one product they share.

mod affine;
mod float;
mod product;

pub use affine::{Affine, quantized_linear};
pub use float::{FloatFormat, Microscaled, microscaled_linear};

pub(crate) use affine::affine_product;
pub(crate) use float::{e4m3, microscaled_product};
pub(crate) use product::{Product, multiply};

use crate::{
    lanes::{Lanes, load_scalar},
    scalar::Scalar,
};

/// `out[m, n] = x[m, k] · weight[n, k]ᵀ`, accumulated in float32.
pub fn linear<X: Scalar, W: Scalar>(x: &[X], weight: &[W], out: &mut [X], k: usize, n: usize) {
    assert_eq!(weight.len(), k * n, "weight is not [{n}, {k}]");
    multiply(x, Dense { values: weight, k }, out, &Product::one_matrix(out.len(), k, n));
}

/// A weight, as rows to be read 16 values at a time.
pub(crate) trait Matrix: Copy + Send + Sync {
    type Row: Row;
    fn row(self, index: usize) -> Self::Row;
}

/// One row of a weight.
pub(crate) trait Row: Copy {
    /// Values `16 * chunk ..` of the row, zeros past its end.
    fn lanes(&self, chunk: usize) -> Lanes;
}

/// A matrix `[rows, k]` of plain numbers.
#[derive(Clone, Copy)]
pub(crate) struct Dense<'a, W> {
    pub values: &'a [W],
    pub k: usize,
}

impl<'a, W: Scalar> Matrix for Dense<'a, W> {
    type Row = &'a [W];
    #[inline(always)]
    fn row(self, index: usize) -> &'a [W] {
        &self.values[index * self.k..][..self.k]
    }
}

impl<W: Scalar> Row for &[W] {
    #[inline(always)]
    fn lanes(&self, chunk: usize) -> Lanes {
        load_scalar(self, chunk)
    }
}

/// A row already in lanes.
impl Row for &[Lanes] {
    #[inline(always)]
    fn lanes(&self, chunk: usize) -> Lanes {
        self[chunk]
    }
}

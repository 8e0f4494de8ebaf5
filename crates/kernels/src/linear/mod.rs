//! `x · Wᵀ`, row-invariant: the formats a weight may have, and the precisions in which products are computed.

mod affine;
#[allow(clippy::needless_range_loop, reason = "closures do not get the instruction set of what calls them")]
mod bfloat16;
mod float;
mod float32;
#[allow(clippy::needless_range_loop, reason = "closures do not get the instruction set of what calls them")]
mod integer;
mod lines;
mod output;
mod packed;
mod product;
mod scratch;
#[cfg(target_arch = "x86_64")]
mod tiles;

use half::{bf16, f16};

pub use affine::Affine;
pub use float::{FloatFormat, Microscaled};
pub use packed::{FloatType, Packed, PackedLayout};

pub(crate) use float::e4m3;

#[cfg(target_arch = "x86_64")]
pub(crate) use tiles::allowed as tiles_allowed;

use crate::{
    gated::{Activation, gated},
    scalar::Scalar,
};
use integer::Width;
use product::{AllRows, Product};

/// What a product's factors are rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Nothing is rounded; sums are float32.
    Float32,
    /// What processors multiply faster: activations are rounded to integers of 16 bits with a scale per group where
    /// the weight's codes are integers or 4-bit floats, and to bfloat16 where it is bfloat16 or 8-bit floats. Weights are
    /// never rounded, and nothing is where they are float32 or float16.
    Rounded,
    /// As [`Precision::Rounded`], but to integers of 8 bits instead of 16. Faster where processors multiply bytes: AVX-512 with
    /// VNNI, AMX.
    Int8,
}

impl Precision {
    pub fn name(self) -> &'static str {
        match self {
            Precision::Float32 => "float32",
            Precision::Rounded => "rounded",
            Precision::Int8 => "int8",
        }
    }

    /// Of integers.
    fn width(self) -> Width {
        match self {
            Precision::Int8 => Width::One,
            Precision::Rounded | Precision::Float32 => Width::Two,
        }
    }
}

/// How a product is computed.
enum Order {
    Float32,
    Bfloat16,
    Integer,
}

/// Floating-point numbers as they are stored.
#[derive(Clone, Copy, Debug)]
pub enum Floats<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
}

impl Floats<'_> {
    pub fn len(&self) -> usize {
        match self {
            Floats::F32(values) => values.len(),
            Floats::F16(values) => values.len(),
            Floats::Bf16(values) => values.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number `index` as float32.
    #[inline(always)]
    pub(crate) fn at(self, index: usize) -> f32 {
        match self {
            Floats::F32(values) => values[index],
            Floats::F16(values) => Scalar::to_f32(values[index]),
            Floats::Bf16(values) => Scalar::to_f32(values[index]),
        }
    }

    fn to_f32(self) -> Vec<f32> {
        match self {
            Floats::F32(values) => values.to_vec(),
            Floats::F16(values) => values.iter().map(|v| Scalar::to_f32(*v)).collect(),
            Floats::Bf16(values) => values.iter().map(|v| Scalar::to_f32(*v)).collect(),
        }
    }
}

/// A matrix `[n, k]`, or several of them one below the other, in the format it is stored in.
#[derive(Clone, Copy, Debug)]
pub enum Weight<'a> {
    Dense(Floats<'a>),
    Affine(Affine<'a>),
    Microscaled(Microscaled<'a>),
    /// Not for products in [`Precision::Float32`].
    Packed(Packed<'a>),
}

/// One of the products that share their `x`: `out[m, n] = x[m, k] · weight[n, k]ᵀ`.
pub struct Matmul<'a> {
    pub weight: Weight<'a>,
    pub n: usize,
    pub out: &'a mut [f32],
}

/// `out[m, n] = x[m, k] · weight[n, k]ᵀ`.
pub fn linear(x: &[f32], weight: Weight, out: &mut [f32], k: usize, n: usize, precision: Precision) {
    linears(x, k, &mut [Matmul { weight, n, out }], precision);
}

/// Several products with the same `x` `[m, k]`, as one piece of work.
pub fn linears(x: &[f32], k: usize, terms: &mut [Matmul], precision: Precision) {
    let m = x.len().checked_div(k).unwrap_or(0);
    assert_eq!(x.len(), m * k, "x is not [{m}, {k}]");
    let all = AllRows::new(m);
    let mut products: Vec<Product> = Vec::with_capacity(terms.len());
    for Matmul { weight, n, out } in terms.iter() {
        weight.check(*n, k);
        if k > 0 {
            assert_eq!(out.len(), m * n, "out is not [{m}, {n}]");
        }
        products.push(Product::one_matrix(&all, k, *n));
    }
    let (mut rounded, mut integers) = (vec![], vec![]);
    for (term, product) in terms.iter_mut().zip(&products) {
        let order = if term.out.is_empty() || k == 0 { Order::Float32 } else { term.weight.order(precision) };
        match order {
            Order::Float32 => float32::multiply_any(x, term.weight, term.out, product),
            Order::Bfloat16 => rounded.push((term.weight, product, &mut *term.out)),
            Order::Integer => integers.push((term.weight, product, &mut *term.out)),
        }
    }
    bfloat16::multiply(x, rounded);
    integer::multiply(x, integers, precision.width());
}

/// `out = activation(x · gateᵀ) * (x · upᵀ)`: both weights `[n, k]`, `x` `[m, k]`, `out` `[m, n]`. To the bits of two products
/// and [`gated`].
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
    if let (Order::Integer, Order::Integer) = (gate.order(precision), up.order(precision))
        && k > 0
        && !out.is_empty()
    {
        [gate, up].iter().for_each(|weight| weight.check(n, k));
        let all = AllRows::new(x.len() / k);
        let product = Product::one_matrix(&all, k, n);
        assert_eq!((x.len() % k, out.len()), (0, x.len() / k * n), "x is not [.., {k}] or out not [.., {n}]");
        if integer::multiply_gated(x, [gate, up], &product, activation, out, precision.width()) {
            return;
        }
    }
    let (mut gates, mut ups) = (vec![0.0; out.len()], vec![0.0; out.len()]);
    let mut terms = [Matmul { weight: gate, n, out: &mut gates }, Matmul { weight: up, n, out: &mut ups }];
    linears(x, k, &mut terms, precision);
    gated(&gates, &ups, out, activation);
}

/// `out[r] = x[r / per_row] · weight[experts[r]]ᵀ`: row `r` of the output belongs to expert `experts[r]`, and
/// `per_row` output rows share a row of `x`. Each row's bits are those of [`linear`] with that matrix.
///
/// `x` `[rows / per_row, k]`; `weight` `[experts, n, k]`; `out` `[rows, n]`. Panics if an expert does not exist.
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
    let values = weight.values();
    assert!(size > 0 && values.is_multiple_of(size), "{values} weights are not matrices of {size}");
    weight.check(values / k, k);
    let product = Product::grouped(experts, per_row, values / size, k, n);
    assert_eq!(out.len(), experts.len() * n, "out is not [{}, {n}]", experts.len());
    match weight.order(precision) {
        Order::Float32 => float32::multiply_any(x, weight, out, &product),
        Order::Bfloat16 => bfloat16::multiply(x, vec![(weight, &product, out)]),
        Order::Integer => integer::multiply(x, vec![(weight, &product, out)], precision.width()),
    }
}

impl Weight<'_> {
    /// Panics unless the parts are those of `rows` rows of `k`.
    fn check(&self, rows: usize, k: usize) {
        match self {
            Weight::Dense(values) => assert_eq!(values.len(), rows * k, "weight is not [{rows}, {k}]"),
            Weight::Affine(weight) => weight.check(rows, k),
            Weight::Microscaled(weight) => weight.check(rows, k),
            Weight::Packed(weight) => weight.check(rows, k),
        }
    }

    /// How many numbers it stands for.
    fn values(&self) -> usize {
        match self {
            Weight::Dense(values) => values.len(),
            Weight::Affine(weight) => weight.codes.len() * 32 / weight.bits,
            Weight::Microscaled(weight) => weight.codes.len() * 32 / weight.format.bits(),
            Weight::Packed(weight) => weight.values(),
        }
    }

    fn order(&self, precision: Precision) -> Order {
        match (precision, self) {
            (Precision::Float32, _) | (_, Weight::Dense(Floats::F32(_) | Floats::F16(_))) => Order::Float32,
            (_, weight) if integer::suits(weight) => Order::Integer,
            _ => Order::Bfloat16,
        }
    }
}

//! The formats of weights and the precisions of products.

use half::{bf16, f16};

use super::{affine::Affine, microscaled::Microscaled, packed::Packed};
use crate::scalar::Scalar;

/// The types to which a product rounds its factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// No rounding; sums are float32.
    Float32,
    /// The types that processors multiply faster: activations are rounded to 11-bit integers with a
    /// scale per group if the weight's codes are integers or 4-bit floats, and to bfloat16 if it is
    /// bfloat16 or 8-bit floats. Weights are never rounded; float32 and float16 weights are
    /// multiplied in float32.
    Rounded,
    /// [`Precision::Rounded`] with 8-bit integers. Faster where processors multiply bytes: AVX-512
    /// with VNNI, AMX.
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

    pub(super) fn to_f32(self) -> Vec<f32> {
        match self {
            Floats::F32(values) => values.to_vec(),
            Floats::F16(values) => values.iter().map(|v| Scalar::to_f32(*v)).collect(),
            Floats::Bf16(values) => values.iter().map(|v| Scalar::to_f32(*v)).collect(),
        }
    }
}

/// A matrix `[n, k]`, or several stacked, in its stored format.
#[derive(Clone, Copy, Debug)]
pub enum Weight<'a> {
    Dense(Floats<'a>),
    Affine(Affine<'a>),
    Microscaled(Microscaled<'a>),
    /// Not for products in [`Precision::Float32`].
    Packed(Packed<'a>),
}

impl Weight<'_> {
    /// Panics unless the parts are those of `rows` rows of `k`.
    pub(crate) fn check(&self, rows: usize, k: usize) {
        match self {
            Weight::Dense(values) => assert_eq!(values.len(), rows * k, "weight is not [{rows}, {k}]"),
            Weight::Affine(weight) => weight.check(rows, k),
            Weight::Microscaled(weight) => weight.check(rows, k),
            Weight::Packed(weight) => weight.check(rows, k),
        }
    }

    /// The number of matrix elements.
    pub(super) fn num_elements(&self) -> usize {
        match self {
            Weight::Dense(values) => values.len(),
            Weight::Affine(weight) => weight.codes.len() * 32 / weight.bits,
            Weight::Microscaled(weight) => weight.codes.len() * 32 / weight.format.bits(),
            Weight::Packed(weight) => weight.num_elements(),
        }
    }

    pub(super) fn accumulation(&self, precision: Precision) -> Accumulation {
        match (precision, self) {
            (Precision::Float32, _) | (_, Weight::Dense(Floats::F32(_) | Floats::F16(_))) => {
                Accumulation::Float32
            }
            (_, weight) if weight.has_integer_codes() => Accumulation::Integer,
            _ => Accumulation::Bfloat16,
        }
    }

    /// Whether codes are integers, or 4-bit floats, which a table maps to integers.
    fn has_integer_codes(&self) -> bool {
        match self {
            Weight::Affine(_) | Weight::Packed(_) => true,
            Weight::Microscaled(weight) => weight.format.bits() == 4,
            Weight::Dense(_) => false,
        }
    }
}

/// The arithmetic of a product and its order of summation, one module each.
pub(super) enum Accumulation {
    Float32,
    Bfloat16,
    Integer,
}

/// One of several products that share `x`: `out[m, n] = x[m, k] · weight[n, k]ᵀ`.
pub struct Matmul<'a> {
    pub weight: Weight<'a>,
    pub n: usize,
    pub out: &'a mut [f32],
}

//! Numbers for the tests, and comparisons.

pub(crate) mod order;
pub(crate) mod weights;

use half::{bf16, f16};
use lanner_kernels::Scalar;

/// A dtype under test.
pub(crate) trait Float: Scalar {
    /// The largest relative error of rounding to it.
    const ROUNDING: f64;
}

impl Float for f32 {
    const ROUNDING: f64 = 1.0 / (1 << 24) as f64;
}

impl Float for f16 {
    const ROUNDING: f64 = 1.0 / (1 << 11) as f64;
}

impl Float for bf16 {
    const ROUNDING: f64 = 1.0 / (1 << 8) as f64;
}

/// Pseudo-random numbers in about [-1, 1).
pub(crate) fn noise<T: Scalar>(seed: u64, n: usize) -> Vec<T> {
    random_words(seed, n).into_iter().map(|z| T::from_f32((z >> 8) as f32 / (1 << 23) as f32 - 1.0)).collect()
}

pub(crate) fn random_words(seed: u64, n: usize) -> Vec<u32> {
    let mix = |i: u64| {
        let mut z = (seed << 32).wrapping_add(i).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 32) as u32
    };
    (0..n as u64).map(mix).collect()
}

pub(crate) fn wide<T: Scalar>(values: &[T]) -> Vec<f64> {
    values.iter().map(|v| v.to_f32() as f64).collect()
}

/// Checks that each element is within `bound` of the exact one, plus rounding to its type.
#[track_caller]
pub(crate) fn close<T: Float>(got: &[T], exact: &[f64], bound: f64) {
    assert_eq!(got.len(), exact.len());
    for (i, (got, exact)) in got.iter().zip(exact).enumerate() {
        let (got, bound) = (got.to_f32() as f64, bound + 1.01 * T::ROUNDING * exact.abs());
        assert!((got - exact).abs() <= bound, "element {i}: {got} for {exact}");
    }
}

pub(crate) fn bits<T: Scalar>(values: &[T]) -> Vec<u32> {
    values.iter().map(|v| v.to_f32().to_bits()).collect()
}

/// A slice of NaN: an element left unwritten fails every comparison.
pub(crate) fn unwritten<T: Scalar>(n: usize) -> Vec<T> {
    vec![T::from_f32(f32::NAN); n]
}

//! Element types kernels read and write; all arithmetic is float32.

use half::{bf16, f16};

/// A floating-point type stored in memory; conversion from float32 rounds to nearest even.
pub trait Scalar: Copy + Send + Sync + Default + 'static {
    fn to_f32(self) -> f32;
    fn from_f32(value: f32) -> Self;
}

impl Scalar for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(value: f32) -> f32 {
        value
    }
}

impl Scalar for bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits((self.to_bits() as u32) << 16)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> bf16 {
        bf16::from_f32(value)
    }
}

impl Scalar for f16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> f16 {
        f16::from_f32(value)
    }
}

/// The values as float32, each run of `row` padded with zeros to a multiple of `pad`.
pub(crate) fn widen<T: Scalar>(values: &[T], row: usize, pad: usize) -> Vec<f32> {
    let padded = row.next_multiple_of(pad);
    let mut wide = vec![0.0; values.len() / row.max(1) * padded];
    if row > 0 {
        for (to, from) in wide.chunks_exact_mut(padded).zip(values.chunks_exact(row)) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to_f32());
        }
    }
    wide
}

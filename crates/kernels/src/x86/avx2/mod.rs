//! Kernels for AVX2 with FMA and F16C.

pub(crate) mod bfloat16;
pub(crate) mod bfloat16_many;
pub(crate) mod delta;
pub(crate) mod integer;
pub(crate) mod packed;
pub(crate) mod transpose;
pub(crate) mod unpack;

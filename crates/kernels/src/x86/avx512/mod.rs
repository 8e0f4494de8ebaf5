//! Kernels for AVX-512 F, BW, VL and DQ; some need VNNI (dot products of bytes) or BF16 as well.

pub(crate) mod bfloat16;
pub(crate) mod bfloat16_inputs;
pub(crate) mod bfloat16_unpack;
pub(crate) mod delta;
pub(crate) mod integer;
pub(crate) mod packed;
pub(crate) mod quantize;
pub(crate) mod transpose;
pub(crate) mod unpack;

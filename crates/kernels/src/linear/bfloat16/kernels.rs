//! Selects the kernels of the bfloat16 product for the instruction set.

use super::{
    inputs::UnroundedRows,
    lanes::LaneMatmul,
    task::Bf16Task,
    weight::{DenseBf16, Mxfp8},
};
#[cfg(target_arch = "x86_64")]
use crate::x86::{
    amx,
    avx512::{self, bfloat16_unpack::UnpackAvx512},
};
use crate::{
    linear::{Floats, Weight, tiling::TILE_ROWS},
    simd::{SimdLevel, dispatch, simd_level},
};

/// Rows of `x` that are interleaved.
pub(super) fn tile_rows() -> usize {
    if simd_level() == SimdLevel::Amx { TILE_ROWS } else { 1 }
}

pub(super) fn round(rows: UnroundedRows) {
    match simd_level() {
        // SAFETY: the processor has AVX-512 with bfloat16.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx512Bf16 | SimdLevel::Amx => unsafe { avx512::bfloat16_inputs::round(rows) },
        _ => dispatch(rows),
    }
}

pub(super) fn multiply(task: &Bf16Task) {
    let k = task.k;
    match task.weight {
        Weight::Dense(Floats::Bf16(values)) => multiply_weight(task, DenseBf16 { values, k }),
        Weight::Microscaled(weight) => multiply_weight(task, Mxfp8 { weight, k }),
        Weight::Dense(_) | Weight::Affine(_) | Weight::Packed(_) => unreachable!("multiplied otherwise"),
    }
}

#[cfg(target_arch = "x86_64")]
fn multiply_weight(task: &Bf16Task, weight: impl UnpackAvx512) {
    match simd_level() {
        // SAFETY: AMX is available.
        SimdLevel::Amx => unsafe { amx::bfloat16::multiply(task, weight) },
        // SAFETY: the processor has AVX-512 with bfloat16.
        SimdLevel::Avx512Bf16 => unsafe { avx512::bfloat16::multiply(task, weight) },
        _ => dispatch(LaneMatmul { task, weight }),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn multiply_weight(task: &Bf16Task, weight: impl super::weight::Bf16Weight) {
    dispatch(LaneMatmul { task, weight });
}

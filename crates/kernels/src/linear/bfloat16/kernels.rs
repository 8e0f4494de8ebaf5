//! Selects the kernels of the bfloat16 product for the instruction set.

use super::{
    inputs::UnroundedRows,
    lanes::LaneMatmul,
    task::Bf16Task,
    weight::{DenseBf16, Mxfp8},
};
#[cfg(target_arch = "x86_64")]
use crate::x86::{
    amx, avx2,
    avx512::{self, bfloat16_unpack::UnpackAvx512},
};
use crate::{
    linear::{Floats, Weight, tiling::TILE_ROWS},
    simd::{SimdLevel, dispatch, simd_level},
};

/// Fewest rows of `x` for a matrix with which float32 copies pay with AVX2.
#[cfg(target_arch = "x86_64")]
const MANY_ROWS: usize = 24;

/// How rows of `x` are stored, and the product with them.
pub(super) struct Bf16Kernel {
    /// Rows that are stored interleaved.
    pub tile_rows: usize,
    /// Cache lines that 32 inputs of a row take.
    pub lines: usize,
    /// Rounds and stores up to `tile_rows` rows.
    pub round: fn(UnroundedRows),
    pub multiply: fn(&Bf16Task),
}

/// The kernel for `rows` rows of `x` with each of `matrices` matrices, on average.
#[cfg(target_arch = "x86_64")]
pub(super) fn kernel(rows: usize, matrices: usize) -> Bf16Kernel {
    match simd_level() {
        SimdLevel::Amx => Bf16Kernel { tile_rows: TILE_ROWS, round: round_avx512, ..ONE_BY_ONE },
        SimdLevel::Avx512Bf16 => Bf16Kernel { round: round_avx512, ..ONE_BY_ONE },
        SimdLevel::Avx2 if rows >= MANY_ROWS * matrices => Bf16Kernel {
            tile_rows: avx2::bfloat16_many::TILE_ROWS,
            lines: avx2::bfloat16_many::LINES,
            // SAFETY: the processor has AVX2.
            round: |rows| unsafe { avx2::bfloat16_many::round(rows) },
            multiply: |task| multiply(task, true),
        },
        _ => ONE_BY_ONE,
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn kernel(_rows: usize, _matrices: usize) -> Bf16Kernel {
    ONE_BY_ONE
}

const ONE_BY_ONE: Bf16Kernel = Bf16Kernel {
    tile_rows: 1,
    lines: 1,
    round: |rows| dispatch(rows),
    multiply: |task| multiply(task, false),
};

#[cfg(target_arch = "x86_64")]
fn round_avx512(rows: UnroundedRows) {
    // SAFETY: the processor has AVX-512 with bfloat16.
    unsafe { avx512::bfloat16_inputs::round(rows) }
}

/// `many`: rows of `x` are stored as float32.
fn multiply(task: &Bf16Task, many: bool) {
    let k = task.k;
    match task.weight {
        Weight::Dense(Floats::Bf16(values)) => multiply_weight(task, DenseBf16 { values, k }, many),
        Weight::Microscaled(weight) => multiply_weight(task, Mxfp8 { weight, k }, many),
        Weight::Dense(_) | Weight::Affine(_) | Weight::Packed(_) => unreachable!("multiplied otherwise"),
    }
}

#[cfg(target_arch = "x86_64")]
fn multiply_weight(task: &Bf16Task, weight: impl UnpackAvx512, many: bool) {
    match simd_level() {
        // SAFETY: AMX is available.
        SimdLevel::Amx => unsafe { amx::bfloat16::multiply(task, weight) },
        // SAFETY: the processor has AVX-512 with bfloat16.
        SimdLevel::Avx512Bf16 => unsafe { avx512::bfloat16::multiply(task, weight) },
        // SAFETY: the processor has AVX2.
        _ if many => unsafe { avx2::bfloat16_many::multiply(task, weight) },
        _ => dispatch(LaneMatmul { task, weight }),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn multiply_weight(task: &Bf16Task, weight: impl super::weight::Bf16Weight, _many: bool) {
    dispatch(LaneMatmul { task, weight });
}

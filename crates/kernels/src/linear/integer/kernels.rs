//! The kernels of the integer product for each instruction set.

use std::ops::Range;

use super::{
    inputs::{InputTile, InputTiles, UnfilledTile},
    packed::{self, PackedRows},
    panel::{KBlock, UnpackedPanel},
    portable, quantize,
    unpack::{self, CodeMatrix},
};
use crate::linear::{packed::Packed, tiling::PANEL_ROWS};
#[cfg(target_arch = "x86_64")]
use crate::{
    simd::{SimdLevel, simd_level},
    x86::{amx, avx2, avx512},
};

/// Sums of all products of 16 weight rows with a tile's rows, as half a panel.
pub(super) type MultiplyPacked = unsafe fn(PackedRows, InputTile, &mut [[f32; PANEL_ROWS]]);

/// The kernels of one instruction set. Calling one requires a processor that has it.
pub(super) struct IntegerKernels {
    /// Whether integers of `x` are stored as bytes, or as 16 bits.
    pub as_bytes: bool,
    /// Fills a tile with quantised rows of `x`.
    pub quantize: unsafe fn(UnfilledTile),
    /// Unpacks inputs of some rows, starting with a given one. The panel's other rows are
    /// unspecified.
    pub unpack: unsafe fn(&CodeMatrix, usize, usize, Range<usize>, &mut UnpackedPanel),
    /// The same for packed weights.
    pub unpack_packed: unsafe fn(Packed, usize, usize, Range<usize>, &mut UnpackedPanel),
    /// Adds the sum of a K block's products, counted from zero, to each row's sums.
    pub multiply: unsafe fn(KBlock, InputTiles, &mut [[f32; PANEL_ROWS]]),
    /// Multiplies packed weights without unpacking them, for up to this many rows of `x`. With
    /// more, unpacking them once is cheaper.
    multiply_packed: Option<(MultiplyPacked, usize)>,
    /// Called at the end of each task.
    pub finish: fn(),
}

impl IntegerKernels {
    /// The kernel for `rows` rows of `x` and packed weights, unless they should be unpacked first.
    pub(super) fn multiply_packed(&self, rows: usize) -> Option<MultiplyPacked> {
        self.multiply_packed.filter(|(_, max_rows)| rows <= *max_rows).map(|(multiply, _)| multiply)
    }
}

const PORTABLE: IntegerKernels = IntegerKernels {
    as_bytes: false,
    quantize: quantize::quantize,
    unpack: unpack::unpack,
    unpack_packed: packed::unpack,
    multiply: portable::multiply,
    multiply_packed: None,
    finish: || {},
};

#[cfg(target_arch = "x86_64")]
const AVX2: IntegerKernels = IntegerKernels {
    unpack: avx2::unpack::unpack,
    multiply: avx2::integer::multiply,
    multiply_packed: Some((avx2::packed::multiply, usize::MAX)),
    ..PORTABLE
};

/// Without VNNI, AVX-512 multiplies no bytes.
#[cfg(target_arch = "x86_64")]
const AVX512: IntegerKernels =
    IntegerKernels { unpack: avx512::unpack::unpack, unpack_packed: avx512::packed::unpack, ..AVX2 };

#[cfg(target_arch = "x86_64")]
const AVX512_VNNI: IntegerKernels = IntegerKernels {
    as_bytes: true,
    quantize: avx512::quantize::quantize,
    multiply: avx512::integer::multiply,
    multiply_packed: Some((avx512::packed::multiply, 64)),
    ..AVX512
};

#[cfg(target_arch = "x86_64")]
const AMX: IntegerKernels = IntegerKernels {
    multiply: amx::integer::multiply,
    multiply_packed: Some((avx512::packed::multiply, 12)),
    finish: amx::integer::release,
    ..AVX512_VNNI
};

/// The kernels for [`simd_level`](crate::simd_level).
#[cfg(target_arch = "x86_64")]
pub(super) fn integer_kernels() -> &'static IntegerKernels {
    match simd_level() {
        SimdLevel::Portable => &PORTABLE,
        SimdLevel::Avx2 => &AVX2,
        SimdLevel::Avx512 => &AVX512,
        SimdLevel::Avx512Vnni | SimdLevel::Avx512Bf16 => &AVX512_VNNI,
        SimdLevel::Amx => &AMX,
    }
}

/// The kernels of this target.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn integer_kernels() -> &'static IntegerKernels {
    &PORTABLE
}

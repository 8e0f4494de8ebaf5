//! Unpacked weights: what kernels multiply with quantised activations.

use crate::cache_line::CacheLine;

/// Inputs of a panel that are unpacked at a time, 16 KB of codes: a segment of the sums, whose size
/// is part of the arithmetic.
pub(crate) const K_BLOCK: usize = 512;

/// Up to [`K_BLOCK`] inputs of a panel of weights, unpacked.
#[repr(C, align(64))]
pub(crate) struct UnpackedPanel {
    /// Four codes of each row, 16 rows per line; [`InputLayout`](super::inputs::InputLayout) says
    /// which four.
    pub codes: [[CacheLine; 2]; K_BLOCK / 4],
    /// Per group.
    pub scales: [[[f32; 16]; 2]; K_BLOCK / 16],
    pub biases: [[[f32; 16]; 2]; K_BLOCK / 16],
}

impl UnpackedPanel {
    pub(crate) const ZERO: UnpackedPanel = UnpackedPanel {
        codes: [[CacheLine::ZERO; 2]; K_BLOCK / 4],
        scales: [[[0.0; 16]; 2]; K_BLOCK / 16],
        biases: [[[0.0; 16]; 2]; K_BLOCK / 16],
    };
}

/// The groups of a panel that are unpacked.
#[derive(Clone, Copy)]
pub(crate) struct KBlock<'a> {
    pub panel: &'a UnpackedPanel,
    /// The first input, a multiple of [`K_BLOCK`].
    pub start: usize,
    /// The number of groups, and the inputs of each.
    pub groups: usize,
    pub group: usize,
}

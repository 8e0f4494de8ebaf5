//! A quantised matrix on the device.

use kernels::cuda::{TILE_FEATURES, TiledLayout};
use mlx::Array;

/// A matrix, or a stack of them, in tiles on the device; nothing else can read it.
pub(crate) struct DeviceMatrix {
    /// Uint8.
    pub tiles: Array,
    /// The layout of all matrices, one after the other.
    pub layout: TiledLayout,
    /// Outputs of one matrix.
    pub outputs: i32,
    pub inputs: i32,
}

impl DeviceMatrix {
    /// Matrices of the stack.
    pub(super) fn count(&self) -> usize {
        self.layout.features / self.outputs as usize
    }

    /// Tiles of one matrix; of a single one with padding.
    pub(super) fn tiles_of_one(&self) -> usize {
        match self.count() {
            1 => self.layout.padded_tiles(),
            _ => self.outputs as usize / TILE_FEATURES,
        }
    }
}

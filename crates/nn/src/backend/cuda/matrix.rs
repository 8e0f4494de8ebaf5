//! A quantised matrix on the device.

use kernels::cuda::TiledLayout;
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

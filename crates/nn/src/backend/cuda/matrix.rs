//! A quantised matrix on the device.

use kernels::cuda::TiledLayout;
use mlx::Array;

/// A matrix in tiles on the device; nothing else can read it.
pub(crate) struct DeviceMatrix {
    /// Uint8.
    pub tiles: Array,
    pub layout: TiledLayout,
    pub outputs: i32,
    pub inputs: i32,
}

//! An NVIDIA GPU for kernels of our own: the driver, compiled kernels, device memory and launches.
//! MLX has no part in it.
//!
//! Arrays may lie in the device's memory ([`Array::on_device`](crate::Array::on_device)). Launches,
//! copies and reuse of memory all happen in the order of one stream, so only reads wait.
//! An operation that has no kernel reads a copy in the host's memory.

mod arrays;
mod compile;
mod device;
mod download;
mod driver;
mod launch;
mod memory;
pub(crate) mod on_device;
mod operations;
mod queue;

pub(crate) use self::memory::{active_memory, clear_cache, peak_memory, reset_peak_memory};
pub use self::{
    compile::{CacheUse, CompileOptions, Sources, compile_logs, cubins},
    device::{Device, device, in_use, open, set_in_use},
    download::Download,
    driver::has_library,
    launch::Arguments,
    memory::Buffer,
    operations::{OperationWeights, PersistentKernel},
};

/// A failure of the driver, of NVRTC or of the device.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Fault(pub String);

pub type Result<T> = std::result::Result<T, Fault>;

/// Called by MLX when the last array in a piece of the device's memory is gone.
pub(crate) fn free_device(pointer: usize, bytes: usize) {
    drop(Buffer::adopt(pointer as u64, bytes));
}

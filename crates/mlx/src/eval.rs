//! Running the graph, and the device, threads and memory it runs on.

use crate::{
    Array, Result,
    bridge::{self, Arrays},
    cuda, profile,
};

/// Inputs of an operation in the host's memory.
#[track_caller]
pub(crate) fn list<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> cxx::UniquePtr<Arrays> {
    let mut list = bridge::arrays();
    for array in arrays {
        list.pin_mut().push(&array.host());
    }
    list
}

/// Arrays of MLX's graph: those on the device are queued there already.
fn pending<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> cxx::UniquePtr<Arrays> {
    list(arrays.into_iter().filter(|array| !array.on_device()))
}

#[track_caller]
pub(crate) fn unlist(list: std::result::Result<cxx::UniquePtr<Arrays>, cxx::Exception>) -> Vec<Array> {
    profile::count_node();
    let list = list.unwrap_or_else(|e| panic!("{e}"));
    (0..list.len()).map(|i| Array(list.get(i).unwrap_or_else(|e| panic!("{e}")))).collect()
}

/// Computes the arrays and waits for them.
///
/// # Errors
/// Out of memory, a device error, or a failure inside a kernel.
pub fn eval<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<()> {
    Ok(bridge::eval(&pending(arrays))?)
}

/// Starts computing the arrays on a GPU; a later read waits for them. On the CPU the same as
/// [`eval`].
///
/// # Errors
/// Those of [`eval`]; an error on the device may appear only at the read.
pub fn async_eval<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<()> {
    Ok(bridge::async_eval(&pending(arrays))?)
}

/// Bounds the outputs of queued operations of this thread on the CPU to `bytes`; a larger operation
/// is queued alone. Without a bound MLX queues a hundred operations and allocates their outputs, so
/// that the memory of a graph would depend on the machine's load. On a GPU MLX decides.
pub fn set_run_ahead(bytes: usize) {
    bridge::set_run_ahead(bytes);
}

/// Version of the MLX library found by the loader, e.g. `0.32.4`.
pub fn version() -> String {
    bridge::mlx_version()
}

/// The path of the loaded MLX library, if the loader knows it.
pub fn library_path() -> Option<std::path::PathBuf> {
    bridge::library_path().ok().filter(|path| !path.is_empty()).map(Into::into)
}

/// Name of this thread's device: `cpu`, or the GPU's, since another GPU may compute other bits.
pub fn device_name() -> String {
    match (on_gpu(), own_device()) {
        (true, _) => bridge::device_name().unwrap_or_else(|_| "gpu".into()),
        (false, Some(device)) => format!("cuda {}", device.name),
        (false, None) => "cpu".into(),
    }
}

/// A GPU, for measurements.
pub struct Gpu {
    pub name: String,
    /// Bytes that its memory can deliver per second; `None` if that is not known.
    pub memory_bandwidth: Option<f64>,
}

/// This thread's GPU.
pub fn gpu() -> Option<Gpu> {
    match own_device() {
        _ if on_gpu() => Some(Gpu { name: device_name(), memory_bandwidth: None }),
        Some(device) => Some(Gpu { name: device.name.clone(), memory_bandwidth: device.memory_bandwidth }),
        None => None,
    }
}

fn own_device() -> Option<&'static cuda::Device> {
    cuda::device().filter(|_| cuda::in_use())
}

pub fn gpu_available() -> bool {
    bridge::gpu_available()
}

/// Sets the device of this thread's operations from here on.
///
/// # Errors
/// There is no GPU in this build of MLX or on this machine.
pub fn use_gpu(gpu: bool) -> Result<()> {
    Ok(bridge::use_gpu(gpu)?)
}

/// Whether operations run on the GPU.
pub fn on_gpu() -> bool {
    bridge::on_gpu()
}

/// Whether operations of this thread are queued on a device: it computes while more are built. On
/// the CPU an operation is computed at once.
pub fn runs_ahead() -> bool {
    on_gpu() || cuda::in_use()
}

/// Bytes held by live arrays, on the device too.
pub fn active_memory() -> usize {
    bridge::active_memory() + cuda::active_memory()
}

/// Largest [`active_memory`] so far, or since [`reset_peak_memory`], in bytes.
pub fn peak_memory() -> usize {
    bridge::peak_memory() + cuda::peak_memory()
}

/// Forgets the peak.
pub fn reset_peak_memory() {
    bridge::reset_peak_memory();
    cuda::reset_peak_memory();
}

/// Freed buffers beyond this many bytes go back to the system.
pub fn set_cache_limit(bytes: usize) -> Result<()> {
    Ok(bridge::set_cache_limit(bytes)?)
}

/// Allocations beyond this many bytes fail as an [`Error`](crate::Error) where MLX enforces it.
pub fn set_memory_limit(bytes: usize) -> Result<()> {
    Ok(bridge::set_memory_limit(bytes)?)
}

/// This thread builds arrays for their shapes alone from here on, so they may be larger than the
/// memory limit. To evaluate one is an error of the caller.
pub fn build_shapes_only() {
    bridge::build_shapes_only();
}

/// On Metal, keeps up to `bytes` of arrays resident (wired), at most the device's recommended
/// limit; otherwise the system may page them out while idle. Needs macOS 15; does nothing
/// elsewhere.
///
/// # Errors
/// The system refuses.
pub fn wire_memory(bytes: usize) -> Result<()> {
    Ok(bridge::wire_memory(bytes)?)
}

/// Gives freed buffers of MLX and GPUs back to the system, and in a program that allocates with
/// jemalloc the free memory of its heap and of the calling thread's cache.
///
/// # Errors
/// MLX fails to free its buffers.
pub fn release_memory() -> Result<()> {
    clear_cache()?;
    bridge::release_heap();
    Ok(())
}

/// Makes freed memory that the calling thread caches part of the heap's free memory, in a program
/// that allocates with jemalloc: [`release_memory`] on another thread does not reach it.
pub fn flush_thread_cache() {
    bridge::flush_thread_cache();
}

/// Gives freed buffers back to the system.
pub fn clear_cache() -> Result<()> {
    cuda::clear_cache();
    Ok(bridge::clear_cache()?)
}

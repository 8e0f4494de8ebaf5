//! Opening the device.

use std::{
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

use mlx::cuda::{CompileOptions, Fault, Sources};

/// Where the driver and NVRTC are, and where compiled kernels are kept.
#[derive(Clone, Debug, Default)]
pub struct KernelOptions {
    /// `None`: `libcuda.so.1`, as the loader finds it.
    pub driver: Option<PathBuf>,
    /// Folders in which NVRTC is looked for before the loader's.
    pub nvrtc_folders: Vec<PathBuf>,
    /// `None`: they are compiled at every start.
    pub cache: Option<PathBuf>,
}

static OPTIONS: Mutex<Option<KernelOptions>> = Mutex::new(None);

/// Sets how the GPU is opened, if it is not open yet.
pub fn set_kernel_options(options: KernelOptions) {
    *OPTIONS.lock().unwrap_or_else(PoisonError::into_inner) = Some(options);
}

const SOURCES: Sources = Sources { kernels: kernels::cuda::KERNELS, headers: kernels::cuda::HEADERS };

/// Opens the device, compiling what the cache lacks.
pub(crate) fn open() -> Result<(), Fault> {
    let options = OPTIONS.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default();
    let driver = options.driver.as_ref().map_or("libcuda.so.1".into(), |path| path.display().to_string());
    mlx::cuda::open(&driver, SOURCES, kernels::cuda::NAMES, &compile_options(&options)).map(|_| ())
}

/// What the assembler reports of every kernel source for `arch`, such as `sm_90a`.
///
/// # Errors
/// There is no NVRTC, or a source does not compile.
pub fn kernel_logs(arch: &str, options: &KernelOptions) -> Result<Vec<String>, Fault> {
    mlx::cuda::compile_logs(SOURCES, arch, &compile_options(options))
}

fn compile_options(options: &KernelOptions) -> CompileOptions {
    CompileOptions { nvrtc_folders: options.nvrtc_folders.clone(), cache: options.cache.clone() }
}

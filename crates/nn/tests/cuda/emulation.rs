//! The emulated device: libraries in place of the driver's and NVRTC's, compiled from the kernels'
//! sources.

use std::{path::PathBuf, process::Command};

/// Where the emulated libraries are; `None` with a GPU, or the reason why there is no device.
pub(crate) fn build() -> Result<Option<PathBuf>, String> {
    if std::env::var_os("LANNER_GPU").is_some() {
        return Ok(None);
    }
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Err("the emulated device is for x86-64 and Linux".into());
    }
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels/cuda/emulation/driver.cc");
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cuda-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
    let library = folder.join("libcuda.so.1");
    let status = Command::new("g++")
        .args(["-std=c++20", "-O2", "-fPIC", "-shared", "-w", "-ffp-contract=off", "-mfma", "-o"])
        .args([library.as_os_str(), source.as_ref()])
        .status();
    if !status.is_ok_and(|status| status.success()) {
        return Err("g++ could not compile the emulated device".into());
    }
    std::fs::copy(&library, folder.join("libnvrtc.so.13")).map_err(|e| e.to_string())?;
    Ok(Some(folder))
}

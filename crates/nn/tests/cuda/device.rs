//! Compiling the kernels without a GPU.

use std::{path::PathBuf, process::Command};

use lanner_nn::{KernelOptions, kernel_logs};

/// The folder of NVRTC from Python's package nvidia-cuda-nvrtc.
fn nvrtc() -> Option<PathBuf> {
    let find = "import nvidia, pathlib; print(next(p for root in nvidia.__path__ \
                for p in pathlib.Path(root).rglob('libnvrtc.so.1[23]')).parent)";
    let output = Command::new("python3").args(["-c", find]).output().ok()?;
    let folder = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| PathBuf::from(folder.trim()))
}

#[test]
fn kernels_compile_for_every_generation_without_spills() {
    let Some(folder) = nvrtc() else {
        return eprintln!("skipped: there is no Python package nvidia-cuda-nvrtc");
    };
    let options = KernelOptions { nvrtc_folders: vec![folder], ..KernelOptions::default() };
    for arch in ["sm_90a", "sm_100a", "sm_120a"] {
        for log in kernel_logs(arch, &options).unwrap() {
            let lines = || log.lines().filter(|line| line.contains("spill"));
            assert!(lines().count() > 0, "the report says nothing of registers: {log}");
            let spills: Vec<&str> =
                lines().filter(|line| !line.contains("0 bytes spill stores, 0 bytes spill loads")).collect();
            assert!(spills.is_empty(), "{arch}: {spills:?}");
        }
    }
}

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

/// The bytes that a line of the assembler's report says are spilled.
fn spilled(line: &str) -> u32 {
    let before = line.split(" bytes spill stores").next().unwrap_or_default();
    let number = before.rsplit(' ').next().and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("a report without a number of bytes: {line}"))
}

#[test]
fn kernels_compile_for_every_generation_without_spills() {
    let Some(folder) = nvrtc() else {
        return eprintln!("skipped: there is no Python package nvidia-cuda-nvrtc");
    };
    let options = KernelOptions { nvrtc_folders: vec![folder], ..KernelOptions::default() };
    // For generations on which no kernel has run yet, the assembler spills a few registers of some
    // kernels, others with each of its versions.
    for (arch, allowed) in [("sm_90a", 0), ("sm_100a", 64), ("sm_120a", 64)] {
        for log in kernel_logs(arch, &options).unwrap() {
            let lines = || log.lines().filter(|line| line.contains("spill"));
            assert!(lines().count() > 0, "the report says nothing of registers: {log}");
            let spills: Vec<&str> = lines().filter(|line| spilled(line) > allowed).collect();
            assert!(spills.is_empty(), "{arch}: {spills:?}");
        }
    }
}

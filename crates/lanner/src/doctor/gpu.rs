//! NVIDIA GPUs on Linux: device, driver, and the compiler of kernels.

use std::{fs, path::PathBuf};

use super::Check;
use crate::host::HostInfo;

/// Of CUDA 13, which NVRTC 13 and MLX's CUDA library need.
const LEAST_DRIVER: u32 = 580;
/// In tenths.
const LEAST_CAPABILITY: u32 = 90;
const QUERY: [&str; 2] =
    ["--query-gpu=name,memory.total,compute_cap,driver_version", "--format=csv,noheader"];

pub(super) fn checks(machine: &HostInfo, kernels: Option<&PathBuf>) -> Vec<Check> {
    match machine.os {
        "linux" if is_present(machine) => {
            [driver(machine), device(machine), compiler(machine, kernels)].into_iter().flatten().collect()
        }
        "linux" => vec![Check::ok("GPU", "no NVIDIA GPU; the CPU computes")],
        _ => vec![],
    }
}

/// A display or 3D controller of NVIDIA's on the PCI bus, or the driver's own files.
fn is_present(machine: &HostInfo) -> bool {
    let devices = fs::read_dir(machine.path("/sys/bus/pci/devices")).into_iter().flatten().flatten();
    let is_gpu = |folder: PathBuf| {
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        read("vendor").trim() == "0x10de" && read("class").starts_with("0x03")
    };
    machine.path("/proc/driver/nvidia/version").exists() || devices.map(|entry| entry.path()).any(is_gpu)
}

fn driver(machine: &HostInfo) -> Option<Check> {
    if !(machine.has_library)("libcuda.so.1") {
        return Some(Check::error(
            "driver",
            "there is an NVIDIA GPU, and no libcuda.so.1",
            format!(
                "install NVIDIA's driver, {LEAST_DRIVER} or later; in a container start it with GPUs (docker: --gpus all)"
            ),
        ));
    }
    let version = machine.output("nvidia-smi", &["--query-gpu=driver_version", "--format=csv,noheader"]);
    let version = version.and_then(|text| text.lines().next().map(str::to_owned));
    let Some(version) = version else {
        return Some(Check::warn("driver", "libcuda.so.1, of unknown version", "nvidia-smi does not answer"));
    };
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    Some(match major.is_some_and(|major| major < LEAST_DRIVER) {
        true => Check::warn(
            "driver",
            version,
            format!("CUDA 13 needs {LEAST_DRIVER} or later: update the driver"),
        ),
        false => Check::ok("driver", version),
    })
}

fn device(machine: &HostInfo) -> Option<Check> {
    let list = machine.output("nvidia-smi", &QUERY)?;
    let rows: Vec<Vec<&str>> = list.lines().map(|line| line.split(',').map(str::trim).collect()).collect();
    let shown = rows.iter().filter_map(|row| Some(format!("{}, {}", row.first()?, row.get(1)?)));
    let found = shown.collect::<Vec<_>>().join("; ");
    let capability = |row: &Vec<&str>| row.get(2)?.replace('.', "").parse::<u32>().ok();
    Some(match rows.first().and_then(capability) {
        Some(capability) if capability < LEAST_CAPABILITY => Check::warn(
            "GPU",
            format!("{found}, compute capability {}.{}", capability / 10, capability % 10),
            "Lanner's kernels need 9.0 or later: the CPU computes, or MLX's CUDA library if it is installed",
        ),
        _ => Check::ok("GPU", found),
    })
}

fn compiler(machine: &HostInfo, kernels: Option<&PathBuf>) -> Option<Check> {
    let found = ["libnvrtc.so.13", "libnvrtc.so.12"].into_iter().find(|name| (machine.has_library)(name));
    let cached =
        kernels.into_iter().flat_map(|folder| fs::read_dir(machine.see(folder)).into_iter().flatten());
    let cached = cached.flatten().filter(|entry| entry.path().extension().is_some_and(|end| end == "cubin"));
    let cached = cached.count();
    Some(match (found, cached) {
        (Some(name), _) => Check::ok("NVRTC", format!("{name}; {cached} compiled kernels are cached")),
        (None, 0) => Check::error(
            "NVRTC",
            "there is no libnvrtc.so.13, and no compiled kernel is cached",
            "--device gpu needs it once: python3 -m pip install nvidia-cuda-nvrtc, and its folder in LD_LIBRARY_PATH",
        ),
        (None, cached) => Check::warn(
            "NVRTC",
            format!("there is no libnvrtc.so.13; {cached} compiled kernels are cached"),
            "after an update of Lanner it is needed again: python3 -m pip install nvidia-cuda-nvrtc",
        ),
    })
}

//! MLX's library and, on macOS, its compiled kernels.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::Check;
use crate::{host::HostInfo, hub::megabytes};

/// A kernel that only the library for macOS 26 has: it uses the matrix units of M5's GPU.
const NAX_KERNEL: &[u8] = b"steel_gemm_fused_nax";

pub(super) fn checks(machine: &HostInfo) -> Vec<Check> {
    let library = loaded(machine).or_else(|| beside(machine));
    let Some(library) = library else {
        let hint = "`lanner` runs, so it is somewhere: see docs/files.md";
        return vec![Check::warn("MLX", "where its library lies is not known", hint)];
    };
    let found = match wheel(&library) {
        Some(wheel) => format!("{} ({wheel})", library.display()),
        None => library.display().to_string(),
    };
    let mut checks = vec![Check::ok("MLX", found)];
    if machine.os == "macos" {
        checks.push(metallib(machine, &library));
    }
    checks
}

/// The library that this process has loaded, on Linux.
fn loaded(machine: &HostInfo) -> Option<PathBuf> {
    let maps = machine.read("/proc/self/maps")?;
    let paths = maps.lines().filter_map(|line| line.find('/').map(|start| &line[start..]));
    paths.map(Path::new).find(|path| path.ends_with("libmlx.so")).map(Path::to_path_buf)
}

/// The library of a package, beside the program.
fn beside(machine: &HostInfo) -> Option<PathBuf> {
    let name = if machine.os == "macos" { "libmlx.dylib" } else { "libmlx.so" };
    let folder = machine.program.as_ref()?.parent()?.join("lib/mlx/lib");
    let file = folder.join(name);
    machine.see(&file).is_file().then_some(file)
}

/// The name and version of the wheel, from the folder in the build's cache.
fn wheel(library: &Path) -> Option<String> {
    let folder = library.ancestors().nth(3)?.file_name()?.to_str()?;
    folder.starts_with("mlx-").then(|| folder.rsplit_once('-').map_or(folder, |(name, _)| name).to_owned())
}

/// MLX looks for its kernels beside its library.
fn metallib(machine: &HostInfo, library: &Path) -> Check {
    let file = library.with_file_name("mlx.metallib");
    let shown = file.display();
    let Ok(bytes) = fs::read(machine.see(&file)) else {
        return Check::error(
            "metallib",
            format!("there is no {shown}"),
            "the GPU cannot compute without it: install again, with lib/ beside bin/",
        );
    };
    let has_nax = bytes.windows(NAX_KERNEL.len()).any(|window| window == NAX_KERNEL);
    let kernels = if has_nax { "with" } else { "without" };
    let found =
        format!("{shown}, {}, {kernels} kernels for M5's matrix units", megabytes(bytes.len() as u64));
    let cpu = machine.output("sysctl", &["-n", "machdep.cpu.brand_string"]).unwrap_or_default();
    match cpu.contains("M5") && !has_nax {
        true => Check::warn(
            "metallib",
            found,
            "build on macOS 26 or later, whose MLX has them: prompts are computed faster with them",
        ),
        false => Check::ok("metallib", found),
    }
}

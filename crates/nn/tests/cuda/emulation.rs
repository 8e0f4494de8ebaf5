//! The emulated device: libraries in place of the driver's and NVRTC's, compiled from the kernels'
//! sources.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
};

const FLAGS: [&str; 7] = ["-std=c++20", "-O2", "-fPIC", "-shared", "-w", "-ffp-contract=off", "-mfma"];

/// Where the emulated libraries are; `None` with a GPU, or the reason why there is no device. Fails
/// if a compiler is there and finds a fault.
/// They are compiled once for all tests, until their sources change.
pub(crate) fn build() -> Result<Option<PathBuf>, String> {
    if std::env::var_os("LANNER_GPU").is_some() {
        return Ok(None);
    }
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Err("the emulated device is for x86-64 and Linux".into());
    }
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels/cuda/emulation/driver.cc");
    let failed = "g++ could not compile the emulated device";
    let preprocessed = compiler().args(["-E", source]).output().map_err(|e| format!("no g++: {e}"))?;
    assert!(preprocessed.status.success(), "{failed}");
    let mut hasher = DefaultHasher::new();
    (FLAGS, preprocessed.stdout).hash(&mut hasher);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let finished = folder.join(format!("cuda-{:016x}", hasher.finish()));
    if !finished.exists() {
        let own = folder.join(format!("cuda-{}", std::process::id()));
        fs::create_dir_all(&own).map_err(|e| e.to_string())?;
        let library = own.join("libcuda.so.1");
        let status = compiler().arg("-o").args([library.as_os_str(), source.as_ref()]).status();
        assert!(status.is_ok_and(|status| status.success()), "{failed}");
        fs::copy(&library, own.join("libnvrtc.so.13")).map_err(|e| e.to_string())?;
        // Another program may have been faster; its folder is as good.
        if fs::rename(&own, &finished).is_err() && !finished.exists() {
            return Err(format!("{} could not be written", finished.display()));
        }
    }
    Ok(Some(finished))
}

fn compiler() -> Command {
    let mut command = Command::new("g++");
    command.args(FLAGS);
    command
}

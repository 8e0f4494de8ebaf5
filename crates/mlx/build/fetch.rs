//! Fetches a pinned MLX wheel into a cache folder: download once, verify, unpack, rename into
//! place.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use sha2::{Digest, Sha256};

use crate::platform::{MLX_VERSION, Wheel, required_files};

/// Returns the unpacked wheel's `mlx` folder (with `include/` and `lib/`); fetches it if `cache`
/// lacks it.
///
/// # Errors
/// One sentence that says what failed and what to run.
pub(crate) fn fetch(wheel: &Wheel, cache: &Path) -> Result<PathBuf, String> {
    let name = format!("{}-{MLX_VERSION}-{}", wheel.package, &wheel.sha256[..12]);
    let home = cache.join(&name);
    if !home.join("mlx").is_dir() {
        let partial = cache.join(format!("{name}.partial-{}", std::process::id()));
        let result = download(wheel, &partial).and_then(|file| unpack(wheel, &file, &partial, &home));
        let _ = fs::remove_dir_all(&partial);
        result?;
    }
    check_layout(wheel, &home.join("mlx"))?;
    Ok(home.join("mlx"))
}

/// Fails, naming the file, if the build would not find what it needs.
pub(crate) fn check_layout(wheel: &Wheel, mlx: &Path) -> Result<(), String> {
    match required_files(wheel).into_iter().find(|file| !mlx.join(file).is_file()) {
        None => Ok(()),
        Some(file) => Err(format!("{} has no {file}; delete the folder and build again", mlx.display())),
    }
}

fn download(wheel: &Wheel, to: &Path) -> Result<PathBuf, String> {
    let requirement = format!("{}=={MLX_VERSION}", wheel.package);
    let status = Command::new("python3")
        .args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"])
        .args(["--only-binary=:all:", "--platform", wheel.platform, "--dest"])
        .arg(to)
        .arg(&requirement)
        .status();
    let by_hand = format!(
        "connect to the network and build again, or set MLX_DIR to an unpacked `mlx` folder of the wheel \
         {requirement} ({})",
        wheel.platform
    );
    match status {
        Ok(status) if status.success() => {}
        Ok(_) => return Err(format!("could not download MLX with `python3 -m pip download`: {by_hand}")),
        Err(error) => return Err(format!("could not run python3 to download MLX ({error}): {by_hand}")),
    }
    let file = fs::read_dir(to).ok().and_then(|mut entries| entries.next()).and_then(Result::ok);
    let file = file.ok_or("pip downloaded nothing")?.path();
    verify(&file, wheel.sha256)?;
    Ok(file)
}

/// Fails unless the file's sha256 is the one pinned.
pub(crate) fn verify(file: &Path, sha256: &str) -> Result<(), String> {
    let bytes = fs::read(file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
    let found: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
    if found == sha256 {
        return Ok(());
    }
    Err(format!("{} has sha256 {found}, but {sha256} is pinned: do not use it", file.display()))
}

fn unpack(wheel: &Wheel, file: &Path, partial: &Path, home: &Path) -> Result<(), String> {
    let unpacked = partial.join("unpacked");
    let status = Command::new("python3").args(["-m", "zipfile", "-e"]).arg(file).arg(&unpacked).status();
    if !status.is_ok_and(|s| s.success()) {
        return Err(format!("could not unpack {}", file.display()));
    }
    check_layout(wheel, &unpacked.join("mlx"))?;
    // Another build may have won the race; its copy is as good as ours.
    match fs::rename(&unpacked, home) {
        Err(error) if !home.join("mlx").is_dir() => Err(format!("cannot create {}: {error}", home.display())),
        _ => Ok(()),
    }
}

/// Where wheels are kept between builds: `LANNER_CACHE`, or the user's cache folder.
///
/// # Errors
/// Neither is known.
pub(crate) fn cache_dir() -> Result<PathBuf, String> {
    if let Some(dir) = env::var_os("LANNER_CACHE") {
        return Ok(PathBuf::from(dir).join("mlx"));
    }
    if let Some(dir) = env::var_os("XDG_CACHE_HOME") {
        return Ok(PathBuf::from(dir).join("lanner/mlx"));
    }
    let home =
        env::var_os("HOME").ok_or("HOME is not set; set LANNER_CACHE to a folder MLX can be kept in")?;
    Ok(PathBuf::from(home).join(".cache/lanner/mlx"))
}

/// Version of macOS on this machine, e.g. 15; `None` elsewhere.
pub(crate) fn macos_major() -> Option<u32> {
    let output = Command::new("sw_vers").arg("-productVersion").output().ok()?;
    String::from_utf8(output.stdout).ok()?.split('.').next()?.trim().parse().ok()
}

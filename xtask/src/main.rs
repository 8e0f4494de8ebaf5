//! Project tasks beyond Cargo: `cargo run -p xtask -- help`.

mod deny;
#[path = "../../crates/mlx/build/fetch.rs"]
mod fetch;
#[path = "../../crates/mlx/build/platform.rs"]
mod platform;
mod tidy;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use platform::{MLX_VERSION, WHEELS, Wheel};

const HELP: &str = "\
cargo run -p xtask -- COMMAND

  wheels [WORD]   download the pinned MLX wheels whose package or platform contains WORD (default: all); check
                  sha256, headers and layout
  dist            build a relocatable tarball of this platform under target/dist
  deny            check licences, sources and duplicate versions of dependencies, offline, by deny.toml
  tidy [RULE]     check structure, lengths and wording; print the faults of RULE (default: all) and the number of
                  faults by rule";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["wheels"] => wheels(""),
        ["wheels", word] => wheels(word),
        ["dist"] => dist(),
        ["deny"] => deny::run(Path::new(".")),
        ["tidy"] => tidy::run(Path::new("."), ""),
        ["tidy", rule] => tidy::run(Path::new("."), rule),
        ["help"] | [] => {
            println!("{HELP}");
            Ok(())
        }
        _ => Err(format!("unknown command\n{HELP}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Builds for other platforms cannot run here, but their wheels can be checked.
fn wheels(word: &str) -> Result<(), String> {
    let chosen = WHEELS.iter().filter(|w| w.package.contains(word) || w.platform.contains(word));
    let mut count = 0;
    for wheel in chosen {
        let cache = tempfile::tempdir().map_err(|e| e.to_string())?;
        let mlx = fetch::fetch(wheel, cache.path())?;
        check_choice(wheel)?;
        check_headers(&mlx)?;
        println!("{} {MLX_VERSION} {}: sha256 and layout are right", wheel.package, wheel.platform);
        count += 1;
    }
    if count == 0 { Err(format!("no pinned wheel's package or platform contains `{word}`")) } else { Ok(()) }
}

/// The build script must be able to choose the wheel.
fn check_choice(wheel: &Wheel) -> Result<(), String> {
    let (os, arch) = match wheel.platform.split_once('_') {
        Some(("macosx", _)) => ("macos", "aarch64"),
        Some((_, rest)) if rest.ends_with("x86_64") => ("linux", "x86_64"),
        _ => ("linux", "aarch64"),
    };
    let major = wheel.platform.strip_prefix("macosx_").and_then(|v| v.split('_').next()?.parse().ok());
    let chosen = platform::choose(os, arch, wheel.package.contains("cuda"), major)?;
    if chosen == wheel { Ok(()) } else { Err(format!("{} is never chosen", wheel.platform)) }
}

/// The headers must be those of the pinned release.
fn check_headers(mlx: &Path) -> Result<(), String> {
    let path = mlx.join("include/mlx/version.h");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let part = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("#define MLX_VERSION_{name} ")));
        line.map(|value| value.trim().to_string()).unwrap_or_default()
    };
    let found = [part("MAJOR"), part("MINOR"), part("PATCH")].join(".");
    if found == MLX_VERSION { Ok(()) } else { Err(format!("{}: headers of MLX {found}", path.display())) }
}

/// A tarball of the program and MLX; the program finds the library by a relative path.
fn dist() -> Result<(), String> {
    let mlx = mlx_folder()?;
    run(Command::new(env!("CARGO")).args(["build", "--release", "-p", "lanner"]))?;
    let name = format!("lanner-{}-{}-{}", env!("CARGO_PKG_VERSION"), env::consts::OS, env::consts::ARCH);
    let root = PathBuf::from("target/dist").join(&name);
    let _ = fs::remove_dir_all(&root);
    let copy = |from: &Path, to: &Path| {
        fs::create_dir_all(to.parent().unwrap_or(to)).map_err(|e| format!("{}: {e}", to.display()))?;
        fs::copy(from, to).map(|_| ()).map_err(|e| format!("{}: {e}", from.display()))
    };
    copy(Path::new("target/release/lanner"), &root.join("bin/lanner"))?;
    for file in ["README.md", "LICENSE", "CHANGELOG.md"] {
        copy(Path::new(file), &root.join(file))?;
    }
    // MLX's rpath expects the other libraries of its wheel beside its folder.
    let wheel = mlx.parent().ok_or("MLX lies in no folder")?;
    for folder in fs::read_dir(wheel).map_err(|e| e.to_string())?.flatten() {
        let name = folder.file_name().to_string_lossy().into_owned();
        let is_mlx = folder.path().file_name() == mlx.file_name();
        let from = if is_mlx { folder.path().join("lib") } else { folder.path() };
        let to = if is_mlx { root.join("lib/mlx/lib") } else { root.join("lib").join(&name) };
        if is_mlx || name.ends_with(".libs") {
            for file in
                fs::read_dir(&from).map_err(|e| e.to_string())?.flatten().filter(|f| f.path().is_file())
            {
                copy(&file.path(), &to.join(file.file_name()))?;
            }
        }
    }
    run(Command::new("tar")
        .args(["-C", "target/dist", "-czf"])
        .arg(format!("target/dist/{name}.tar.gz"))
        .arg(&name))?;
    println!("target/dist/{name}.tar.gz");
    Ok(())
}

/// The unpacked MLX of the build.
fn mlx_folder() -> Result<PathBuf, String> {
    if let Some(dir) = env::var_os("MLX_DIR") {
        return Ok(dir.into());
    }
    let wheel = platform::choose(env::consts::OS, env::consts::ARCH, false, fetch::macos_major())?;
    fetch::fetch(wheel, &fetch::cache_dir()?)
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} failed: {status}")),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}

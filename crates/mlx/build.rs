//! Finds or fetches the pinned MLX, compiles the C++ shim against it and links to its library.

#[path = "build/fetch.rs"]
mod fetch;
#[path = "build/platform.rs"]
#[allow(dead_code, reason = "xtask and the tests use the rest")]
mod platform;

use std::{
    env,
    path::{Path, PathBuf},
};

fn main() {
    for path in ["build.rs", "build", "shim", "src/bridge.rs"] {
        println!("cargo:rerun-if-changed={path}");
    }
    for variable in ["MLX_DIR", "LANNER_CACHE"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    match find_mlx() {
        Ok(mlx) => build(&mlx),
        Err(message) => {
            eprintln!("error: {message}");
            std::process::exit(1);
        }
    }
}

fn find_mlx() -> Result<PathBuf, String> {
    let target = |part: &str| env::var(format!("CARGO_CFG_TARGET_{part}")).unwrap_or_default();
    let cuda = env::var_os("CARGO_FEATURE_CUDA").is_some();
    let wheel = platform::choose(&target("OS"), &target("ARCH"), cuda, fetch::macos_major());
    if let Some(dir) = env::var_os("MLX_DIR").map(PathBuf::from) {
        if !dir.join("include/mlx/mlx.h").is_file() {
            return Err(format!("MLX_DIR is {}, which has no include/mlx/mlx.h", dir.display()));
        }
        return Ok(dir);
    }
    fetch::fetch(wheel?, &fetch::cache_dir()?)
}

fn build(mlx: &Path) {
    let mut shim = cxx_build::bridge("src/bridge.rs");
    shim.std("c++20").include(mlx.join("include")).flag_if_supported("-Wno-deprecated-copy");
    // MLX's headers are not ours to keep warning-free.
    shim.warnings(false).opt_level(2);
    shim.file("shim/all.cc").compile("lanner_mlx_shim");

    let lib = mlx.join("lib");
    println!("cargo:rustc-link-search=native={}", lib.display());
    println!("cargo:rustc-link-lib=dylib=mlx");
    // A packaged program carries MLX beside itself; one just built finds it in the cache. Build
    // scripts of dependent packages read both folders as DEP_MLX_RPATHS. On Linux they become a
    // RUNPATH, so LD_LIBRARY_PATH can still choose another build of MLX (CUDA).
    let macos = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "macos");
    let beside = if macos { "@loader_path/../lib/mlx/lib" } else { "$ORIGIN/../lib/mlx/lib" };
    println!("cargo:rpaths={beside}:{}", lib.display());
    println!("cargo:lib={}", lib.display());
    // Tests compile MLX's Metal kernels.
    println!("cargo:rustc-env=LANNER_MLX_INCLUDE={}", mlx.join("include").display());
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", lib.display());
}

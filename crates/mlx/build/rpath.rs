//! Build script of every package that links a program with MLX: sets the program's library path.
//!
//! Cargo does not pass a library's linker arguments on to its dependents, so each names this file
//! as `build`. On Linux the path is a RUNPATH: LD_LIBRARY_PATH comes first, so another build of MLX
//! (CUDA) can be chosen at start.

fn main() {
    println!("cargo::rerun-if-changed=../mlx/build/rpath.rs");
    // A packaged program carries MLX beside itself; one just built finds it in the cache.
    let macos = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "macos");
    let beside = if macos { "@loader_path/../lib/mlx/lib" } else { "$ORIGIN/../lib/mlx/lib" };
    let built = std::env::var("DEP_MLX_LIB").unwrap_or_default();
    for path in [beside, &built] {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{path}");
    }
}

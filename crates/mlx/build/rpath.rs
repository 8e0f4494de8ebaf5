//! Build script of every package that links a program with MLX in it: tells the program where the library is.
//!
//! Cargo does not pass a library's linker arguments on to its dependents, so each names this file as `build`. On
//! Linux the path is a RUNPATH: LD_LIBRARY_PATH comes first, so another build of MLX (CUDA) can be chosen at start.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Ok(lib) = std::env::var("DEP_MLX_LIB") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{lib}");
    }
}

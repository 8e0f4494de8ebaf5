//! Sets the library path of programs that link MLX; Cargo does not pass it on from `lanner-mlx`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for path in std::env::var("DEP_MLX_RPATHS").unwrap_or_default().split(':') {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{path}");
    }
}

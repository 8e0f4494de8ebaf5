//! Sets the rpath to libmlx: beside the target, or where it was linked from.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let built = std::env::var("DEP_MLX_LIB").unwrap_or_default();
    for path in ["$ORIGIN", &built] {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{path}");
    }
}

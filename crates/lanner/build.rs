//! Says whether the built-in model's files are there to be compiled in, and tells programs where MLX's library is.

use std::path::Path;

const FILES: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
];

fn main() {
    let folder = Path::new("../../models/merlin");
    println!("cargo::rustc-check-cfg=cfg(builtin_model)");
    println!("cargo::rerun-if-changed={}", folder.display());
    if FILES.iter().all(|file| folder.join(file).is_file()) {
        println!("cargo::rustc-cfg=builtin_model");
    }
    if let Ok(lib) = std::env::var("DEP_MLX_LIB") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{lib}");
    }
}

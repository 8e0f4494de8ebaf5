//! Says whether the built-in model's files are there to be compiled in.

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
}

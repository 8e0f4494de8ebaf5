//! MLX's Metal kernels, compiled by g++ from the headers of MLX's package and run on emulated
//! threadgroups: whether they compute what they should, and whether a row's bits depend on other
//! rows where ADR 46 says that they do not. In which order a GPU adds up a SIMD-group's numbers
//! cannot be seen here.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const KERNELS: &str = "mlx/backend/metal/kernels";
const HERE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/metal");

/// MLX's headers in a folder of a test's own.
fn headers(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("metal").join(test);
    fs::create_dir_all(&folder).unwrap();
    for name in ["metal_simdgroup", "metal_stdlib"] {
        fs::write(folder.join(name), "").unwrap();
    }
    // The delta rule's kernel for many tokens multiplies matrices, which are not emulated.
    let sequential = "template <typename InT, int Dk, int Dv, int Hk, int Hv, int Ckpt>";
    for (name, from) in
        [("quantized.h", None), ("sdpa_vector.h", None), ("gated_delta_update.h", Some(sequential))]
    {
        let path = Path::new(env!("LANNER_MLX_INCLUDE")).join(KERNELS).join(name);
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let start = from.map_or(0, |from| text.find(from).unwrap_or_else(|| panic!("no {from} in {name}")));
        let lines: Vec<String> = text[start..].lines().map(in_cpp).collect();
        fs::write(folder.join(name), lines.join("\n")).unwrap();
    }
    folder
}

/// A line as C++ has it, where a word of Metal's language means something that no macro can say.
fn in_cpp(line: &str) -> String {
    let words = line.trim_start();
    match (words.strip_prefix("threadgroup "), words.strip_prefix("constant ")) {
        // `threadgroup` alone also qualifies pointers.
        (Some(array), _) if array.contains('[') && array.ends_with("];") => format!("SHARED_ARRAY {array}"),
        (_, Some(reference)) if reference.contains('&') => format!("const {reference}"),
        _ => line.into(),
    }
}

/// Compiles the kernels with more flags, and runs them with an order of threads.
fn run(test: &str, flags: &[&str], seeds: &[&str]) {
    let folder = headers(test);
    let program = folder.join("kernels");
    let compiled = Command::new("g++")
        .args(["-std=c++20", "-O1", "-g", "-w", "-ffp-contract=off", "-I", HERE, "-I"])
        .arg(&folder)
        .args(flags)
        .arg(Path::new(HERE).join("kernels.cc"))
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    for seed in seeds {
        // Fibers have stacks of their own.
        let options = [("ASAN_OPTIONS", "detect_stack_use_after_return=0")];
        let ran = Command::new(&program).arg(seed).envs(options).output().unwrap();
        let said = [ran.stdout, ran.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(ran.status.success(), "seed {seed}: {said:?}");
        println!("{}", said[0].trim());
    }
}

fn has_compiler() -> bool {
    let found = cfg!(target_os = "linux") && Command::new("g++").arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: no g++ on Linux");
    }
    found
}

#[test]
fn rows_of_mlx_kernels_do_not_depend_on_each_other_in_any_order_of_threads() {
    if has_compiler() {
        run("plain", &[], &["1", "2", "3"]);
    }
}

#[test]
fn mlx_kernels_stay_inside_their_arrays() {
    if has_compiler() {
        run(
            "kernels-sanitized",
            &["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
            &["4"],
        );
    }
}

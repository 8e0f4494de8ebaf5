//! Statements of ARCHITECTURE.md, checked against the tree.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use toml::Table;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the root")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn manifest(folder: &str) -> Table {
    read(&root().join(folder).join("Cargo.toml")).parse().expect("TOML")
}

/// Folders of all packages: `crates/engine`.
fn packages() -> Vec<String> {
    let crates = fs::read_dir(root().join("crates")).expect("crates");
    let crates = crates.map(|entry| entry.expect("an entry").file_name());
    let mut packages: Vec<String> = crates.map(|name| format!("crates/{}", name.display())).collect();
    packages.push("xtask".into());
    packages.sort();
    packages
}

/// Sources below a folder of the root without tests, by path from the root.
fn sources(folder: &str) -> Vec<(String, String)> {
    let mut found = vec![];
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && name != "tests" {
                folders.push(path);
            } else if name.ends_with(".rs") && name != "tests.rs" {
                let short = path.strip_prefix(root()).expect("below the root").display().to_string();
                found.push((short, read(&path)));
            }
        }
    }
    assert!(!found.is_empty(), "{folder} has sources");
    found
}

fn all_sources() -> Vec<(String, String)> {
    packages().iter().flat_map(|package| sources(&format!("{package}/src"))).collect()
}

/// Lines of code with one of `words`, as `path:line`; comments do not count.
fn lines_with(sources: &[(String, String)], words: &[&str]) -> Vec<String> {
    let mut found = vec![];
    for (path, text) in sources {
        for (i, line) in text.lines().enumerate() {
            let code = !line.trim_start().starts_with("//");
            if code && words.iter().any(|word| line.contains(word)) {
                found.push(format!("{path}:{}: {}", i + 1, line.trim()));
            }
        }
    }
    found
}

#[test]
fn crate_dependencies_point_in_one_direction() {
    let allowed = [
        ("crates/files", &[][..]),
        ("crates/store", &[]),
        ("crates/vision", &[]),
        ("crates/amx-emulator", &[]),
        ("crates/eval", &[]),
        ("crates/markdown", &[]),
        ("crates/mcp", &[]),
        ("crates/kernels", &["amx-emulator"]),
        ("crates/chat", &["files"]),
        ("crates/mlx", &["files"]),
        ("crates/nn", &["kernels", "mlx"]),
        ("crates/engine", &["files", "kernels", "mlx", "nn"]),
        ("crates/lanner", &["chat", "engine", "eval", "files", "markdown", "mcp", "mlx", "store", "vision"]),
        ("xtask", &[]),
    ];
    let ours = [
        "amx-emulator",
        "eval",
        "markdown",
        "mcp",
        "files",
        "store",
        "vision",
        "kernels",
        "chat",
        "mlx",
        "nn",
        "engine",
        "lanner",
        "xtask",
    ];
    assert_eq!(packages().len(), allowed.len(), "a crate more or less: {:?}", packages());
    for (package, allowed) in allowed {
        let manifest = manifest(package);
        let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
        let mut found: Vec<&str> = dependencies.iter().flat_map(|d| d.keys()).map(String::as_str).collect();
        found.retain(|name| ours.contains(name));
        found.sort_unstable();
        assert_eq!(found, allowed, "{package} depends on these of our crates");
    }
}

#[test]
fn engine_and_chat_depend_on_no_http_or_async_crate() {
    for package in ["crates/kernels", "crates/mlx", "crates/nn", "crates/engine", "crates/chat"] {
        let manifest = manifest(package);
        let dependencies = manifest["dependencies"].as_table().expect("dependencies");
        for name in ["tokio", "axum", "hyper", "ureq", "tower-http", "futures-util", "async-trait"] {
            assert!(!dependencies.contains_key(name), "{package} depends on {name}");
        }
    }
}

#[test]
fn unsafe_code_is_forbidden_outside_mlx_and_kernels() {
    let forbidden = &manifest(".")["workspace"]["lints"]["rust"]["unsafe_code"];
    assert_eq!(forbidden.as_str(), Some("forbid"));
    for package in packages() {
        let inherits = manifest(&package)["lints"].get("workspace").and_then(toml::Value::as_bool);
        let exempt = ["crates/amx-emulator", "crates/kernels", "crates/mlx"].contains(&&*package);
        assert_eq!(inherits == Some(true), !exempt, "{package} has the workspace's lints");
    }
    let lints = manifest("crates/mlx");
    assert_eq!(lints["lints"]["rust"]["unsafe_code"].as_str(), Some("deny"), "mlx allows it place by place");
}

#[test]
fn environment_is_read_only_where_architecture_says() {
    let allowed = [
        "crates/lanner/src/cli/",
        "crates/lanner/src/config/",
        "crates/kernels/src/simd.rs",
        "xtask/src/main.rs",
    ];
    let sources: Vec<_> = all_sources()
        .into_iter()
        .filter(|(path, _)| !allowed.iter().any(|allowed| path.starts_with(allowed)))
        .collect();
    let words = [
        "env::var",
        "env::set_var",
        "env::remove_var",
        "var_os(",
        "getenv",
        "setenv",
        // clap's attribute; `target_env` is not one.
        " env = \"",
        "(env = \"",
    ];
    let found = lines_with(&sources, &words);
    assert!(found.is_empty(), "the environment is read or set elsewhere:\n{}", found.join("\n"));
    let text = read(&root().join("ARCHITECTURE.md"));
    for path in allowed.iter().filter(|path| path.starts_with("crates")) {
        let short = path.trim_start_matches("crates/");
        assert!(text.contains(short), "ARCHITECTURE.md does not name {short}");
    }
    let mut shim = String::new();
    for entry in fs::read_dir(root().join("crates/mlx/shim")).expect("the shim") {
        shim += &read(&entry.expect("an entry").path());
    }
    assert_eq!(shim.matches("setenv(").count(), 1, "the shim sets one variable");
    assert!(!shim.contains("getenv("), "the shim reads none");
}

#[test]
fn release_build_unwinds() {
    let manifest = manifest(".");
    assert_eq!(manifest["profile"]["release"]["panic"].as_str(), Some("unwind"));
    let engine = read(&root().join("crates/engine/src/lib.rs"));
    assert!(
        engine.contains("#[cfg(not(panic = \"unwind\"))]\ncompile_error!"),
        "other profiles do not build"
    );
}

#[test]
fn model_files_name_no_device_and_no_batch_size() {
    let words = ["on_gpu", "use_gpu", "Device", "batch_size", "max_batch"];
    let found = lines_with(&sources("crates/engine/src/models"), &words);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn libraries_print_nothing() {
    let libraries = ["kernels", "mlx", "nn", "engine", "chat", "eval"];
    let sources: Vec<_> = libraries.iter().flat_map(|name| sources(&format!("crates/{name}/src"))).collect();
    let found = lines_with(&sources, &["print!(", "println!(", "eprint!(", "eprintln!(", "dbg!("]);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Documents whose words in backticks are checked against the tree.
const DOCUMENTS: [&str; 3] = ["ARCHITECTURE.md", "docs/glossary.md", "docs/notes/reading.md"];

/// The text between backticks, and the text after each up to the next.
fn code_spans(text: &str) -> Vec<(&str, &str)> {
    let parts: Vec<&str> = text.split('`').collect();
    parts[1..].chunks_exact(2).map(|pair| (pair[0], pair[1])).collect()
}

/// Every Rust file of the repository's crates, tests included, by path from the root.
fn rust_files() -> Vec<String> {
    let output =
        Command::new("git").arg("-C").arg(root()).args(["ls-files", "*.rs"]).output().expect("git runs");
    String::from_utf8(output.stdout).expect("UTF-8").lines().map(str::to_owned).collect()
}

/// Files by path, or by the end of one.
#[test]
fn files_named_by_documents_exist() {
    let all = rust_files();
    for document in DOCUMENTS {
        let text = read(&root().join(document));
        let exists = |file: &str| all.iter().any(|path| path == file || path.ends_with(&format!("/{file}")));
        let files = code_spans(&text).into_iter().map(|(span, _)| span).filter(|span| span.ends_with(".rs"));
        let missing: Vec<&str> = files.filter(|file| !exists(file)).collect();
        assert!(missing.is_empty(), "{document} names missing files: {missing:?}");
    }
}

/// Where a document says that a name is in a file, the file contains it.
#[test]
fn names_in_documents_are_in_their_files() {
    let all = rust_files();
    let mut wrong = vec![];
    for document in DOCUMENTS {
        let text = read(&root().join(document));
        for pair in code_spans(&text).windows(2) {
            let [(name, between), (file, _)] = pair else { continue };
            if between.split_whitespace().ne(["in"]) || !file.ends_with(".rs") {
                continue;
            }
            let path = all.iter().find(|path| path.ends_with(file));
            let contains = path.is_some_and(|path| read(&root().join(path)).contains(name));
            if !contains {
                wrong.push(format!("{document}: {name} is not in {file}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A route that the request fuzzer never calls may crash the server on any input.
#[test]
fn every_route_is_fuzzed() {
    let file = |name: &str| read(&root().join("crates/lanner/tests/cli/fuzzing").join(name));
    let fuzzed = file("fields.rs") + &file("more_fields.rs");
    let mut paths = vec![];
    for (_, text) in sources("crates/lanner/src/server") {
        paths.extend(text.split(".route(").skip(1).filter_map(|rest| {
            let path = rest.trim_start().strip_prefix('"')?.split('"').next()?;
            // A parameter stands for anything.
            Some(path.split_once('{').map_or(format!("{path}\""), |(start, _)| start.to_owned()))
        }));
    }
    assert!(paths.len() > 8, "routes are found: {paths:?}");
    // With a method before it, or as the path of `posted`; a query may follow.
    let is_fuzzed = |path: &&String| {
        let with_query = path.replace('"', "?");
        [' ', '"'].iter().any(|from| {
            [path.as_str(), &with_query].iter().any(|path| fuzzed.contains(&format!("{from}{path}")))
        })
    };
    let missing: Vec<_> = paths.iter().filter(|path| !is_fuzzed(path)).collect();
    assert!(missing.is_empty(), "add {missing:?} to `posted` or `OTHERS` in tests/cli/fuzzing");
}

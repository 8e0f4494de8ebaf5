//! `quantize` from the command line: its output, its files, and interrupted runs.

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    checkpoint,
    process::lanner,
    server::{TEMPLATE, tokenizer_json},
    wait::{output, output_of, wait_until},
};

fn path(folder: &Path) -> &str {
    folder.to_str().unwrap()
}

/// A small checkpoint with a tokenizer, and the path of its copy.
fn source() -> (TempDir, std::path::PathBuf) {
    let folder = checkpoint::folder("qwen3_5-hub");
    fs::write(folder.path().join("tokenizer.json"), tokenizer_json()).unwrap();
    fs::write(folder.path().join("chat_template.jinja"), TEMPLATE).unwrap();
    let out = folder.path().join("out");
    (folder, out)
}

/// stdout and stderr of a command that must succeed.
fn quantize(source: &Path, args: &[&str]) -> (String, String) {
    let output = lanner(&[&["quantize", path(source)], args].concat(), &[]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    (String::from_utf8(output.stdout).unwrap(), stderr)
}

#[test]
fn quantized_copy_generates() {
    let (folder, out) = source();
    let (stdout, stderr) = quantize(folder.path(), &["--out", path(&out), "--group-size", "32"]);
    assert_eq!(stdout, "", "without --json there is no data");
    assert!(stderr.contains("quantising 100 %") && stderr.contains("affine 4-bit/32"), "{stderr}");
    let run = [
        "run",
        "hi",
        "--model",
        path(&out),
        "--max-tokens",
        "8",
        "--temperature",
        "0",
        "--json",
        "--device",
        "cpu",
    ];
    let output = lanner(&run, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(!answer["ids"].as_array().unwrap().is_empty());
}

#[test]
fn dry_run_lists_every_tensor_and_writes_nothing() {
    let (folder, out) = source();
    let (stdout, _) = quantize(folder.path(), &["--dry-run", "--mode", "mxfp8", "--out", path(&out)]);
    let line =
        |name: &str| stdout.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{stdout}"));
    assert!(line("model.language_model.layers.0.mlp.up_proj.weight").ends_with("mxfp8"));
    assert!(line("model.language_model.layers.0.linear_attn.A_log").ends_with("recurrence"));
    assert!(line("model.language_model.norm.weight").ends_with("norm"));
    assert!(!out.exists());
    let (json, _) = quantize(folder.path(), &["--dry-run", "--json"]);
    let rows: Value = serde_json::from_str(&json).unwrap();
    assert!(rows.as_array().unwrap().iter().any(|row| row["why"] == "norm" && row["to"] == row["from"]));
    for row in rows.as_array().unwrap() {
        let shape = row["shape"].as_array().unwrap_or_else(|| panic!("{row}"));
        assert!(!shape.is_empty() && shape.iter().all(Value::is_u64), "{row}");
    }
}

#[test]
fn verify_compares_tensors_and_perplexity() {
    let (folder, out) = source();
    let text = folder.path().join("text.txt");
    fs::write(&text, "The falcon waits above the ridge until the wind turns. ".repeat(12)).unwrap();
    let args = ["--out", path(&out), "--bits", "8", "--group-size", "32", "--verify", "--text", path(&text)];
    let (stdout, _) = quantize(folder.path(), &args);
    assert!(stdout.contains("mean cosine of") && stdout.contains("kept tensors are the same"), "{stdout}");
    assert!(stdout.contains("perplexity"), "{stdout}");

    fs::remove_dir_all(&out).unwrap();
    let (json, _) = quantize(folder.path(), &[&args[..], &["--json"]].concat());
    let report: Value = serde_json::from_str(&json).unwrap();
    for tensor in report["verify"]["tensors"].as_array().unwrap() {
        let cosine = tensor["cosine"].as_f64().unwrap();
        assert!(if tensor["quantized"] == true { cosine > 0.999 } else { cosine == 1.0 }, "{tensor}");
    }
    let ratio = report["verify"]["perplexity"]["ratio"].as_f64().unwrap();
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
}

fn check_failure(args: &[&str], expected: &str) {
    let output = lanner(&[&["quantize"], args].concat(), &[]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{args:?}");
    assert!(
        stderr.contains(expected) && !stderr.contains("panicked"),
        "{args:?} said {stderr:?}, not {expected:?}"
    );
}

#[test]
fn wrong_quantize_usage_fails_with_one_sentence() {
    let (folder, out) = source();
    let (source, out) = (path(folder.path()), path(&out));
    check_failure(&[source], "--out");
    check_failure(&["/no/such/folder", "--out", out], "there is no model folder /no/such/folder");
    check_failure(&[source, "--out", source], "exists already");
    check_failure(&[source, "--out", out, "--bits", "7"], "not 7 bits");
    check_failure(&[source, "--out", out, "--mode", "mxfp4", "--bits", "8"], "mxfp4 has 4 bits");
    check_failure(&[source, "--out", out, "--mode", "int4"], "int4");
    check_failure(&[source, "--out", out, "--text", "text.txt"], "--verify");
    quantize(folder.path(), &["--out", out]);
    let twice = format!("{out}-again");
    check_failure(&[out, "--out", &twice], "quantised already");
}

#[test]
fn unusable_perplexity_text_is_refused_before_quantizing() {
    let (folder, out) = source();
    let text = folder.path().join("text.txt");
    let check = |expected: &str| {
        let args = [path(folder.path()), "--out", path(&out), "--verify", "--text", path(&text)];
        check_failure(&args, expected);
        assert!(!out.exists(), "{expected}");
    };
    check("cannot read");
    fs::write(&text, "").unwrap();
    check("the text has 0 tokens; perplexity needs 32 or more");
    fs::write(&text, "a").unwrap();
    check("the text has 1 token; perplexity needs 32 or more");
    fs::write(&text, "The falcon waits above the ridge until the wind turns. ".repeat(12)).unwrap();
    fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    check("tokenizer");
}

/// A checkpoint that takes a while: one matrix of zeros in a sparse file.
fn large() -> TempDir {
    const BYTES: u64 = 512 << 20;
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), json!({ "model_type": "llama" }).to_string()).unwrap();
    let entry = json!({ "dtype": "BF16", "shape": [BYTES / 2048, 1024], "data_offsets": [0, BYTES] });
    let header = json!({ "lm_head.weight": entry }).to_string();
    let mut file = File::create(folder.path().join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len(8 + header.len() as u64 + BYTES).unwrap();
    folder
}

/// Sends `signal` while the result is being written; returns stderr.
fn interrupt(source: &Path, out: &Path, signal: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lanner"));
    let args = ["quantize", path(source), "--out", path(out)];
    let child = command.env_clear().args(args).stderr(Stdio::piped()).spawn().unwrap();
    let written = out.with_extension("partial").join("model.safetensors");
    wait_until("it begins to write", || written.exists());
    Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    let output = output_of(child).unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn interrupted_quantize_leaves_no_finished_looking_folder() {
    let (source, place) = (large(), tempfile::tempdir().unwrap());
    let out = place.path().join("small");
    let stderr = interrupt(source.path(), &out, "-INT");
    assert!(stderr.contains("interrupted; no unfinished file is left"), "{stderr}");
    assert!(names_in(place.path()).is_empty());

    // A killed run cannot clean up, but its folder is marked as partial and is no model.
    interrupt(source.path(), &out, "-KILL");
    assert_eq!(names_in(place.path()), ["small.partial"]);
    assert!(!out.with_extension("partial").join("config.json").exists());
    quantize(source.path(), &["--out", path(&out)]);
    assert_eq!(names_in(place.path()), ["small"]);
}

#[test]
fn write_failure_names_the_file_and_the_needed_space() {
    let (source, place) = (large(), tempfile::tempdir().unwrap());
    let out = place.path().join("small");
    // A limit of a megabyte per file stands for a full disk.
    let script = "trap '' XFSZ; ulimit -f 1000; exec \"$@\"";
    let lanner = env!("CARGO_BIN_EXE_lanner");
    let args = ["-c", script, "sh", lanner, "quantize", path(source.path()), "--out", path(&out)];
    let output = output(Command::new("sh").args(args)).unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(stderr.contains("cannot write") && stderr.contains("model.safetensors"), "{stderr}");
    assert!(stderr.contains("the result needs 0.15 GB"), "{stderr}");
    assert!(names_in(place.path()).is_empty());
}

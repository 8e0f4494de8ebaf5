//! `bench` from the command line: consistent figures, well-formed charts, one-sentence errors.

use std::{fs, path::PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{checkpoint, process::lanner, server::tokenizer_json};

/// A tiny shape, measured in no time.
pub(crate) fn shape() -> String {
    checkpoint::recorded().join("qwen3_5-hub/config.json").display().to_string()
}

/// stdout and stderr of a command that must succeed.
pub(crate) fn bench(args: &[&str], env: &[(&str, &str)]) -> (String, String) {
    let output = lanner(&[&["bench", "--device", "cpu"], args].concat(), env);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{args:?}: {stderr}");
    (String::from_utf8(output.stdout).unwrap(), stderr)
}

pub(crate) fn json(args: &[&str], env: &[(&str, &str)]) -> Value {
    serde_json::from_str(&bench(&[args, &["--json"]].concat(), env).0).unwrap()
}

pub(crate) fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn check_near(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-9 * a.abs().max(b.abs()), "{a} and {b}");
}

pub(crate) fn check_ascending(of: &Value, keys: &[&str]) {
    let values: Vec<f64> = keys.iter().map(|key| number(&of[key])).collect();
    assert!(values[0] > 0.0 && values.is_sorted(), "{of}");
}

/// Asserts that the figures of one run are consistent.
fn check_run(run: &Value, report: &Value) {
    for spread in ["ttft_s", "prefill_tok_s", "decode_tok_s"] {
        check_ascending(&run[spread], &["min", "median", "max"]);
    }
    check_ascending(&run["token_ms"], &["p50", "p90", "p99", "max"]);
    let (batch, decode) = (number(&run["batch"]), number(&run["decode_tok_s"]["median"]));
    if batch == 1.0 {
        check_near(
            number(&run["prefill_tok_s"]["max"]),
            number(&run["prompt"]) / number(&run["ttft_s"]["min"]),
        );
        assert!(1e3 / decode <= number(&run["token_ms"]["max"]) * 1.001, "{run}");
    }
    // A token reads all weights, since the head is the embedding.
    let weights = number(&report["model"]["weight_bytes"]) * decode / batch / 1e9;
    check_near(number(&run["weight_gb_s"]), weights);
    check_near(number(&run["read_fraction"]), weights / number(&report["machine"]["read_gb_s"]));
    let operations = 2.0 * number(&report["model"]["active_parameters"]);
    let prefill = number(&run["prefill_tok_s"]["median"]);
    check_near(number(&run["prefill_tflop_s"]), operations * prefill / 1e12);
    let kernels = number(&run["kernels_per_token"]);
    assert!(kernels > 0.0 && kernels < number(&run["nodes_per_token"]), "{run}");
    assert!(number(&run["kernel_ms_per_token"]) > 0.0 && number(&run["host_ms_per_token"]) > 0.0, "{run}");
    assert!(number(&run["peak_memory_bytes"]) > number(&run["mlx_peak_memory_bytes"]), "{run}");
    assert!(run["mlx_peak_memory_bytes"].as_u64() >= report["model"]["weight_bytes"].as_u64(), "{run}");
}

#[test]
fn bench_figures_are_consistent() {
    let sizes = ["--prompt", "16,40", "--generate", "12", "--batch", "1,2", "--repeats", "3"];
    let report = json(&[&["--shape", &shape(), "--group-size", "32"], &sizes as &[&str]].concat(), &[]);
    assert_eq!(report["lanner"], env!("CARGO_PKG_VERSION"));
    assert_eq!(report["model"]["quantization"], "affine 4-bit, group 32");
    assert_eq!(report["model"]["precision"], "rounded");
    let other = [
        &["--shape", &shape(), "--precision", "int8", "--repeats", "1"],
        &["--prompt", "8", "--generate", "2"] as &[&str],
    ];
    assert_eq!(json(&other.concat(), &[])["model"]["precision"], "int8");
    assert_eq!(report["model"]["shape"], shape());
    let runs = report["runs"].as_array().unwrap();
    let found: Vec<[u64; 4]> = runs
        .iter()
        .map(|run| ["prompt", "generate", "batch", "repeats"].map(|key| run[key].as_u64().unwrap()))
        .collect();
    assert_eq!(found, [[16, 12, 1, 3], [16, 12, 2, 3], [40, 12, 1, 3], [40, 12, 2, 3]]);
    runs.iter().for_each(|run| check_run(run, &report));
    // The work of building a step does not depend on the prompt.
    assert_eq!(runs[0]["nodes_per_token"], runs[2]["nodes_per_token"]);
    assert_eq!(number(&runs[0]["nodes_per_token"]).fract(), 0.0);
}

#[test]
fn bench_with_several_samplings_measures_each() {
    let sizes = ["--prompt", "8", "--generate", "6", "--batch", "2", "--repeats", "1", "--shape", &shape()];
    let kinds = ["greedy", "penalty", "top-logprobs", "random"];
    let report = json(&[&sizes[..], &["--group-size", "32", "--sampling", &kinds.join(",")]].concat(), &[]);
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.iter().map(|run| run["sampling"].as_str().unwrap()).collect::<Vec<_>>(), kinds);
    runs.iter().for_each(|run| check_run(run, &report));
}

#[test]
fn unknown_bench_figures_are_null() {
    let report = json(
        &["--shape", &shape(), "--unquantized", "--prompt", "8", "--generate", "1", "--batch", "1"],
        &[],
    );
    assert_eq!(report["model"]["quantization"], "bfloat16");
    let run = &report["runs"][0];
    for key in
        ["decode_tok_s", "token_ms", "kernel_ms_per_token", "nodes_per_token", "weight_gb_s", "read_fraction"]
    {
        assert!(run[key].is_null(), "{key}: {run}");
    }
    assert!(number(&run["prefill_tok_s"]["median"]) > 0.0);
}

#[test]
fn bench_without_model_measures_the_built_in_one() {
    let (text, talk) = bench(&["--prompt", "8", "--generate", "4", "--batch", "2", "--repeats", "1"], &[]);
    assert!(text.starts_with("merlin: ") && text.contains("decode tok/s"), "{text}");
    let row: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(row[..4], ["8", "4", "2", "greedy"]);
    assert!(
        talk.contains("lanner: warm-up: prompt 8") && talk.contains("lanner: 1 of 1: prompt 8"),
        "{talk}"
    );
}

#[test]
fn threads_come_from_flag_environment_or_config_file() {
    let small = ["--prompt", "4", "--generate", "2", "--batch", "1", "--repeats", "1", "--shape"];
    let shape = shape();
    let args = [&small[..], &[&shape]].concat();
    let threads = |args: &[&str], env: &[(&str, &str)]| json(args, env)["machine"]["threads"].as_u64();
    assert_eq!(threads(&[&args[..], &["--threads", "3"]].concat(), &[("LANNER_THREADS", "2")]), Some(3));
    assert_eq!(threads(&args, &[("LANNER_THREADS", "1")]), Some(1));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    fs::write(&file, "[model]\nthreads = 2\n").unwrap();
    assert_eq!(threads(&[&args[..], &["--config", file.to_str().unwrap()]].concat(), &[]), Some(2));
}

/// Asserts that tags are balanced and `&` and `<` are escaped.
pub(crate) fn check_well_formed(document: &str) {
    let mut open = vec![];
    let mut rest = document;
    while let Some((text, tail)) = rest.split_once('<') {
        let entities = text.split('&').skip(1);
        entities.for_each(|after| {
            assert!(after.split_once(';').is_some_and(|(name, _)| name.len() < 6), "{text}")
        });
        let (tag, tail) = tail.split_once('>').unwrap_or_else(|| panic!("{tail} has no end"));
        rest = tail;
        assert!(!tag.contains('<') && tag.matches('"').count() % 2 == 0, "<{tag}>");
        let name = tag.split([' ', '\n']).next().unwrap();
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "{tag}"),
            None if tag.ends_with('/') || tag.starts_with('!') => {}
            None => open.push(name),
        }
    }
    assert!(open.is_empty() && !rest.contains('>'), "{open:?}");
}

#[test]
fn chart_is_well_formed_and_shows_every_run() {
    let folder = tempfile::tempdir().unwrap();
    // A name that needs escaping.
    let shape = folder.path().join("a&b <c>.json");
    fs::copy(self::shape(), &shape).unwrap();
    let chart = |name: &str| {
        let path = folder.path().join(name);
        let args = ["--prompt", "4,9", "--generate", "3", "--batch", "1,2", "--repeats", "1", "--shape"];
        let to = ["--chart", path.to_str().unwrap()];
        bench(&[&args[..], &[shape.to_str().unwrap()], &to].concat(), &[]);
        fs::read_to_string(path).unwrap()
    };
    let svg = chart("speed.svg");
    check_well_formed(&svg);
    assert!(svg.starts_with("<svg ") && svg.contains("a&amp;b &lt;c&gt;.json"), "{svg}");
    for class in ["prefill", "decode"] {
        assert_eq!(svg.matches(&format!("<rect class=\"{class}\"")).count(), 4, "{svg}");
    }
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    let page = chart("speed.html");
    check_well_formed(&page);
    assert!(
        page.starts_with("<!DOCTYPE html>") && page.contains("<svg ") && page.matches("<tr>").count() == 5
    );
}

/// A small checkpoint with a tokenizer, and a text.
fn model() -> (TempDir, PathBuf) {
    let folder = checkpoint::folder("qwen3_5-hub");
    fs::write(folder.path().join("tokenizer.json"), tokenizer_json()).unwrap();
    let text = folder.path().join("text.txt");
    fs::write(&text, "The falcon waits above the ridge until the wind turns. ".repeat(12)).unwrap();
    (folder, text)
}

#[test]
fn perplexity_counts_every_predicted_token() {
    let (folder, text) = model();
    let args = ["--model", folder.path().to_str().unwrap(), "--perplexity", text.to_str().unwrap()];
    let found = json(&args, &[]);
    // One token per byte; the first token of each of the two chunks is not predicted.
    assert_eq!(found["tokens"], fs::read(&text).unwrap().len() - 2);
    let value = number(&found["perplexity"]);
    assert!(value > 1.0 && value < 1e6, "{found}");
    let (line, _) = bench(&args, &[]);
    assert!(line.starts_with("perplexity of ") && line.contains(&format!(" {value:.4} over ")), "{line}");
}

pub(crate) fn check_failure(args: &[&str], expected: &str) {
    let output = lanner(&[&["bench"], args].concat(), &[]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{args:?}");
    assert!(
        stderr.contains(expected) && !stderr.contains("panicked"),
        "{args:?} said {stderr:?}, not {expected:?}"
    );
}

#[test]
fn wrong_bench_usage_fails_with_one_sentence() {
    check_failure(&["--shape", "qwen9"], "--shape qwen9: it is none of qwen3.5-0.8b, ");
    check_failure(&["--shape", "llama-8b", "--model", "merlin"], "cannot be used with");
    check_failure(&["--shape", "llama-8b", "--bits", "7"], "not 7 bits");
    check_failure(&["--shape", "llama-8b", "--bits", "4", "--unquantized"], "cannot be used with");
    check_failure(&["--bits", "4"], "--shape");
    check_failure(&["--prompt", "0"], "--prompt");
    check_failure(&["--batch", "1,two"], "two");
    check_failure(&["--repeats", "0"], "--repeats");
    check_failure(&["--threads", "0"], "--threads");
    check_failure(&["--batch", "1,9", "--max-batch", "4"], "--batch 9 is more than --max-batch 4");
    check_failure(&["--chart", "speed.png"], "must end in .svg or .html");
    check_failure(&["--speculate", "ngram:99"], "a draft has 0 to 32 tokens");
    check_failure(&["--speculate", "--kernels"], "cannot be used with");
    check_failure(&["--sampling", "mirostat"], "possible values: greedy, penalty, top-logprobs, random");
    check_failure(&["--sampling", "penalty", "--speculate"], "cannot be used with");
    check_failure(&["--texts", "prose"], "--speculate");
    check_failure(
        &["--speculate", "--texts", "poems"],
        "there is no kind `poems`; there are prose, copying, ",
    );
    check_failure(&["--speculate", "--prompt", "8"], "it needs --shape");
    check_failure(&["--speculate", "--scripted", "0.5"], "--shape");
    check_failure(&["--shape", "llama-8b", "--speculate", "--scripted", "1.5"], "between 0 and 1");
    check_failure(
        &["--speculate", "guess", "--texts", "chat", "--generate", "2"],
        "there is no drafter `guess`",
    );
    check_failure(&["--model", "/no/such/folder"], "there is no model folder /no/such/folder");
    check_failure(&["--perplexity", "text.txt", "--prompt", "8"], "cannot be used with");
    check_failure(&["--perplexity", "/no/such/text"], "cannot read /no/such/text");
    let shape = shape();
    let long = ["--shape", &shape, "--prompt", "262144", "--generate", "5", "--batch", "1"];
    check_failure(&long, "262144 tokens and 5 new ones do not fit");
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("config.json");
    fs::write(&broken, "{").unwrap();
    check_failure(&["--shape", broken.to_str().unwrap()], "not JSON");
}

//! `lanner tune` and memory modes from the command line.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use crate::support::{
    client,
    process::{ServerProcess, lanner},
};

/// A home folder, and the path of its config file.
fn home() -> (TempDir, String) {
    let home = tempdir().unwrap();
    let config = home.path().join("config.toml").display().to_string();
    (home, config)
}

/// stdout and stderr of a run that must succeed.
fn tune(args: &[&str], home: &Path) -> (String, String) {
    let env = [("HOME", home.to_str().unwrap()), ("PATH", "/usr/bin:/bin")];
    let output = lanner(&[&["tune", "--quick", "--device", "cpu"], args].concat(), &env);
    let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{args:?}: {stderr}");
    (stdout, stderr)
}

/// Asserts that docs/tune.md names every key of the object, and of those within it.
fn check_documented(value: &Value, page: &str) {
    match value {
        Value::Object(object) => object.iter().for_each(|(key, value)| {
            assert!(page.contains(&format!("`{key}`")), "docs/tune.md does not name `{key}`");
            check_documented(value, page);
        }),
        Value::Array(values) => values.iter().for_each(|value| check_documented(value, page)),
        _ => {}
    }
}

#[test]
fn tune_measures_the_model_and_predicts_what_fits() {
    let (home, config) = home();
    let before = "# mine\n[server]\nport = 1 # one\n\n[model]\nmax-context = 777\n";
    fs::write(&config, before).unwrap();
    let (stdout, _) = tune(&["--json", "--config", &config, "--memory-limit", "3G"], home.path());
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(report["schema"], 1);
    assert_eq!(report["memory"]["limit_bytes"], 3u64 << 30);
    let measured = report["measured"].as_array().unwrap();
    assert_eq!((measured.len(), &measured[0]["model"]), (1, &json!("merlin")));
    for speed in ["prefill_tok_s", "decode_tok_s"] {
        assert!(measured[0][speed]["median"].as_f64().unwrap() > 0.0, "{measured:?}");
    }
    let drafters = measured[0]["drafters"].as_array().unwrap();
    let modes: Vec<&str> = drafters.iter().map(|drafter| drafter["speculate"].as_str().unwrap()).collect();
    for mode in ["ngram", "mtp", "auto"] {
        assert!(modes.contains(&mode), "{modes:?}");
    }
    assert!(drafters.iter().all(|drafter| drafter["identical"] == true), "{drafters:?}");
    let formats = report["calibration"]["formats"].as_array().unwrap();
    assert_eq!(formats.len(), 5, "{formats:?}");
    let rows = report["models"].as_array().unwrap();
    let own = rows.iter().find(|row| row["local"] == true).unwrap();
    assert_eq!((&own["model"], &own["context_length"]), (&json!("merlin"), &json!(777)), "{own:#}");
    assert_eq!(own["weight_bytes"], measured[0]["weight_bytes"], "from the headers and loaded");
    assert_eq!(own["measured"]["decode_tok_s"], measured[0]["decode_tok_s"]["median"]);
    assert!(own["predicted"]["decode_tok_s"].as_f64().unwrap() > 0.0, "{own:#}");
    assert_eq!(report["errors"].as_array().unwrap().len(), 2, "decode and prefill of merlin");
    let others = rows.iter().filter(|row| row["local"] == false).count();
    assert_eq!(others, 13 * 4 + 1, "each model of the catalogue in its formats");
    let large = rows.iter().find(|row| row["model"] == "qwen3.6-35b").unwrap();
    assert_eq!(large["limit"]["fits"], false);
    assert!(large["limit"]["reason"].as_str().unwrap().contains("memory limit"), "{large:#}");
    assert_eq!(report["written"], Value::Null);
    assert_eq!(fs::read_to_string(&config).unwrap(), before, "nothing is written unless asked");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tune.md");
    check_documented(&report, &fs::read_to_string(page).unwrap());
}

#[test]
fn tune_write_merges_settings_and_keeps_the_old_file() {
    let (home, config) = home();
    let before = "# mine\n[server]\napi-key = 'secret' # a key\n";
    fs::write(&config, before).unwrap();
    fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
    let args = ["--write", "--config", &config, "--model", "merlin"];
    let (stdout, stderr) = tune(&args, home.path());
    let after = fs::read_to_string(&config).unwrap();
    assert!(after.starts_with(before) && after.contains("[model]\npath = \"merlin\"\n"), "{after}");
    assert!(stdout.contains("path = \"merlin\"") && stderr.contains("config.toml.bak"), "{stdout}{stderr}");
    let backup = format!("{config}.bak");
    assert_eq!(fs::read_to_string(&backup).unwrap(), before);
    for file in [&config, &backup] {
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600, "{file}");
    }
    // An older copy stays; that keys of the user stay is a unit test of the merge.
    fs::write(&config, "[model]\npath = 'other' # mine\nmax-batch = 3\n").unwrap();
    tune(&[&args as &[&str], &["--replace"]].concat(), home.path());
    let replaced = fs::read_to_string(&config).unwrap();
    assert!(replaced.contains("path = \"merlin\"\n") && replaced.contains("max-batch = 3"), "{replaced}");
    assert_eq!(fs::read_to_string(&backup).unwrap(), before, "the first copy stays");
}

#[test]
fn tune_refuses_what_it_cannot_do() {
    let check = |args: &[&str], part: &str| {
        let output = lanner(&[&["tune", "--quick", "--device", "cpu"], args].concat(), &[]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && stderr.contains(part), "{args:?}: {stderr}");
        assert_eq!(output.stdout, b"", "{args:?}");
    };
    check(&["--model", "owl"], "there is no model `owl`");
    check(&["--replace"], "--write");
    check(&["--write"], "there is no home folder for the config file");
    let (_home, config) = home();
    fs::write(&config, "[model\n").unwrap();
    check(&["--config", &config], "is not valid");
}

#[test]
fn memory_mode_is_a_preset_that_flags_win_over() {
    let check = |args: &[&str], env: &[(&str, &str)], parts: &[&str]| {
        let line = ["run", "--ids", "1 2", "--max-tokens", "1", "--device", "cpu"];
        let output = lanner(&[&line, args].concat(), env);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{args:?}: {stderr}");
        assert!(parts.iter().all(|part| stderr.contains(part)), "{args:?}: {stderr}");
        assert_eq!(parts.is_empty(), !stderr.contains("memory mode"), "{args:?}: {stderr}");
    };
    check(&[], &[], &[]);
    check(&["--memory", "eco"], &[], &["memory mode eco", "limit", "chunks of 128 tokens", "8 requests"]);
    let flags = ["--memory", "eco", "--max-batch", "3", "--memory-limit", "off", "--prefill-chunk", "99"];
    check(&flags, &[], &["no limit", "chunks of 99 tokens", "3 requests"]);
    check(&[], &[("LANNER_MEMORY", "full")], &["memory mode full", "chunks of 1024", "about to swap"]);
    let (_home, config) = home();
    fs::write(&config, "[model]\nmemory = 'eco'\nmax-batch = 5\n").unwrap();
    check(&["--config", &config], &[], &["memory mode eco", "5 requests"]);
    check(&["--config", &config, "--memory", "full"], &[], &["memory mode full", "5 requests"]);
    let output = lanner(&["run", "hi", "--memory", "tiny"], &[]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("full, balanced, eco"), "{stderr}");
}

#[test]
fn answers_are_the_same_in_every_memory_mode() {
    let body = json!({
        "messages": [{ "role": "user", "content": "Tell me of an owl. ".repeat(60) }],
        "max_tokens": 24, "temperature": 0.8, "seed": 5, "logprobs": true,
    });
    let answers = ["full", "balanced", "eco"].map(|mode| {
        let server = ServerProcess::start(&["--memory", mode, "--disk-cache", "off"]);
        let mut twice = [0, 1].map(|_| {
            let reply = client::post(server.address, "/v1/chat/completions", &body);
            assert_eq!(reply.status, 200, "{}", reply.body);
            reply.json()["choices"].clone()
        });
        assert_eq!(twice[0], twice[1], "{mode}, cold and warm");
        twice[0].take()
    });
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[1], answers[2]);
}

#[test]
fn mode_table_of_the_documents_is_that_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/memory.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once("<!-- generated: modes -->\n").unwrap();
    let (written, after) = rest.split_once("<!-- end: modes -->").unwrap();
    let table = lanner::memory::mode_table();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let text = format!("{before}<!-- generated: modes -->\n{table}<!-- end: modes -->{after}");
        fs::write(&path, text).unwrap();
    } else {
        assert_eq!(written, table, "docs/memory.md is stale: run this test with UPDATE_DOCS=1");
    }
}

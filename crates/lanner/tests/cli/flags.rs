//! The command line: refused usage, its error messages, and docs/cli.md, which matches `--help`.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
};

use clap::CommandFactory;
use lanner::cli::Cli;

use crate::support::{document, process::lanner};

/// Asserts that it fails with all of `expected` in its one sentence, and with nothing on stdout.
fn check_failure(args: &[&str], env: &[(&str, &str)], expected: &[&str]) {
    let output = lanner(args, env);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{args:?}");
    assert_eq!(output.stdout, b"", "{args:?}");
    for part in expected {
        assert!(stderr.contains(part), "{args:?}: {stderr:?} lacks {part:?}");
    }
    assert!(!stderr.contains("panicked"), "{stderr}");
}

fn config_file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

#[test]
fn wrong_usage_names_the_flag_and_value() {
    check_failure(&["run"], &[], &["there is no prompt", "lanner chat"]);
    check_failure(&["run", "merlin"], &[], &["there is no prompt"]);
    check_failure(&["run", "unknown", "hi"], &[], &["there is no model `unknown`"]);
    check_failure(&["run", "--ids", "1 2", "merlin", "hi"], &[], &["cannot be used with"]);
    check_failure(&["run", "--ids", "1 two"], &[], &["`two` is not a token id"]);
    check_failure(&["run", "hi", "--temperature", "hot"], &[], &["--temperature", "hot"]);
    check_failure(
        &["run", "hi", "--temperature", "-1"],
        &[],
        &["temperature is -1; it must be between 0 and 100"],
    );
    check_failure(&["serve", "--host", "here"], &[], &["--host", "`here` is no IP address; write localhost"]);
    check_failure(&["serve", "--port", "70000"], &[], &["--port", "70000"]);
    check_failure(&["serve", "--disk-cache-bits", "5"], &[], &["--disk-cache-bits", "5 bits are not 8 or 4"]);
    let nothing = ["--disk-cache-bits: there is no disk cache"];
    check_failure(&["serve", "--disk-cache", "off", "--disk-cache-bits", "8"], &[], &nothing);
    check_failure(&["chat"], &[("LANNER_DISK_CACHE_BITS", "8")], &nothing);
    check_failure(
        &["run", "hi", "--model", "/no/such/folder"],
        &[],
        &["there is no model folder /no/such/folder"],
    );
}

#[test]
fn invalid_model_folder_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    check_failure(&["run", "hi", "--model", path], &[], &["cannot load"]);
    std::fs::write(folder.path().join("chat_template.jinja"), "{% if %}").unwrap();
    check_failure(&["run", "hi", "--model", path], &[], &["the chat template does not parse"]);
}

#[test]
fn port_in_use_fails_with_one_sentence_and_a_hint() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let address = format!("cannot listen on 127.0.0.1:{port}");
    check_failure(&["serve", "--port", &port], &[], &[&address, "hint: another server runs there"]);
}

#[test]
fn flags_override_environment_which_overrides_config_file() {
    let (_folder, path) = config_file("[model]\npath = '/from/file'\n");
    let path = path.to_str().unwrap();
    check_failure(&["run", "hi", "--config", path], &[], &["/from/file"]);
    check_failure(&["run", "hi"], &[("LANNER_CONFIG", path)], &["/from/file"]);
    let env = [("LANNER_CONFIG", path), ("LANNER_MODEL", "/from/env")];
    check_failure(&["run", "hi"], &env, &["/from/env"]);
    check_failure(&["run", "hi", "--model", "/from/flag"], &env, &["/from/flag"]);
}

#[test]
fn default_config_file_is_read() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join(".config/lanner");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.toml"), "[model]\npath = '/from/home'\n").unwrap();
    check_failure(&["run", "hi"], &[("HOME", home.path().to_str().unwrap())], &["/from/home"]);
    let xdg = home.path().join(".config");
    check_failure(&["run", "hi"], &[("XDG_CONFIG_HOME", xdg.to_str().unwrap())], &["/from/home"]);
}

#[test]
fn sampling_flag_out_of_range_is_refused_before_loading() {
    let (_folder, path) = config_file("[sampling]\nmin-p = 2.5\n");
    for (args, expected) in [
        (["--temperature", "1e300"], "temperature is 1e300; it must be between 0 and 100"),
        (["--temperature", "-1"], "temperature is -1; it must be between 0 and 100"),
        (["--top-p", "nan"], "top_p is NaN; it must be above 0 and at most 1"),
        (["--repetition-penalty", "1e-38"], "repetition_penalty is 1e-38; it must be between 0.01 and 100"),
        (["--presence-penalty", "inf"], "presence_penalty is inf; it must be between -100 and 100"),
        (["--frequency-penalty", "-101"], "frequency_penalty is -101; it must be between -100 and 100"),
        (["--config", path.to_str().unwrap()], "min_p is 2.5; it must be between 0 and 1"),
    ] {
        for command in ["run", "chat"] {
            let ask: &[&str] = if command == "run" { &["run", "hi"] } else { &["chat"] };
            check_failure(&[ask, &args, &["--model", "/no/such/model"]].concat(), &[], &[expected]);
        }
    }
}

#[test]
fn invalid_config_file_reports_the_key() {
    for (text, expected) in [
        ("[server]\nprot = 1\n", ["config.toml", "prot"]),
        ("port = 1\n", ["config.toml", "port"]),
        ("[sampling]\ntemperature = 'hot'\n", ["temperature", "hot"]),
        ("[model]\ndevice = 'tpu'\n", ["tpu", "cpu"]),
        ("[cache]\ndisk-cache-bits = 16\n", ["config.toml", "16 bits are not 8 or 4"]),
        ("[server]\nheader-timeout = 0\n", ["config.toml", "header-timeout"]),
        ("[server\n", ["config.toml", "line 1"]),
    ] {
        let (_folder, path) = config_file(text);
        check_failure(&["run", "hi", "--config", path.to_str().unwrap()], &[], &expected);
    }
    check_failure(&["run", "hi", "--config", "/no/config.toml"], &[], &["cannot read", "/no/config.toml"]);
}

/// `UPDATE_DOCS=1 cargo test -p lanner` rewrites the page.
#[test]
fn docs_cli_md_matches_help() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md");
    let mut page = String::from(
        "# Command line\n\nWritten by `UPDATE_DOCS=1 cargo test -p lanner`; do not edit.\n\n\
         A config file:\n\n```toml\n[model]\npath = \"/models/owl\" # the flag is --model\n\n[cache]\nprefix-cache = \"4G\"\ndisk-cache = \"10G\"\n\n[server]\n\
         port = 8080\nallow-host = [\"mac.local\"]\n\n[thinking]\nmax-thinking-tokens = 8192\n\n[models.qwen3-8b] # of [thinking], for one model\nthinking = \"auto\"\n\n\
         [sampling] # of chat and run; the server takes them per request\ntemperature = 0.7\n```\n\nWhat the server answers is in [api.md](api.md).\n",
    );
    let mut root = Cli::command().term_width(100).mut_args(|arg| arg.hide_env_values(true));
    root.build();
    page.push_str(&sections("lanner", &root));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(committed == page, "docs/cli.md is stale: run UPDATE_DOCS=1 cargo test -p lanner");
}

/// The sections of a command and its subcommands.
fn sections(name: &str, command: &clap::Command) -> String {
    let below = command.get_subcommands().filter(|command| command.get_name() != "help");
    let below = below.map(|command| sections(&format!("{name} {}", command.get_name()), command));
    [section(name, command.clone())].into_iter().chain(below).collect()
}

fn section(name: &str, command: clap::Command) -> String {
    let mut command = command.term_width(100).mut_args(|arg| arg.hide_env_values(true));
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    format!("\n## {name}\n\n```text\n{}\n```\n", lines.join("\n").trim_end())
}

#[test]
fn completions_know_every_command_and_are_valid() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = lanner(&["completions", shell], &[]);
        let script = String::from_utf8(output.stdout).unwrap();
        for word in ["launch", "quantize", "max-thinking-tokens", "prefix-cache"] {
            assert!(output.status.success() && script.contains(word), "{shell} does not know {word}");
        }
        let file = folder.path().join(shell);
        std::fs::write(&file, script).unwrap();
        let checked = std::process::Command::new(shell).arg("-n").arg(&file).status();
        assert!(shell != "bash" || checked.unwrap().success());
    }
    check_failure(&["completions", "tcsh"], &[], &["tcsh", "bash, elvish, fish, powershell, zsh"]);
}

#[test]
fn manual_has_a_page_for_each_command() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man/man1");
    let made = lanner(&["man", pages.to_str().unwrap()], &[("LANNER_API_KEY", "s3cr3t")]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let page = |name: &str| std::fs::read_to_string(pages.join(name)).unwrap();
    assert!(page("lanner.1").contains("lanner\\-serve(1)"), "{}", page("lanner.1"));
    assert!(page("lanner-serve.1").contains("LANNER_API_KEY"));
    assert!(page("lanner-history-list.1").contains("CONVERSATIONS"));
    for entry in std::fs::read_dir(&pages).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        assert!(text.contains(".TH lanner") && !text.contains("s3cr3t"), "{text}");
    }
    check_failure(&["man", "/dev/null/man"], &[], &["cannot write /dev/null/man"]);
}

#[test]
fn docs_models_md_lists_the_short_names() {
    let table = lanner::catalog::catalog_table();
    let written = document::part("short names", &table);
    assert!(written == table, "docs/models.md is stale: run this test with UPDATE_DOCS=1");
}

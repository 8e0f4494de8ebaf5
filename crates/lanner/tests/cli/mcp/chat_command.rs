//! `lanner chat --mcp`.

use std::{
    fs,
    io::Write,
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use super::fake::{self, HttpFake};
use crate::support::{process::lanner, wait::output_of};

/// A file of MCP servers.
fn file(entries: &Value) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), json!({ "mcpServers": entries }).to_string()).unwrap();
    file
}

#[test]
fn chat_in_a_pipe_needs_to_know_what_it_may_call() {
    let file = file(&json!({ "fake": fake::entry_of(super::PROCESS, "") }));
    let path = file.path().to_str().unwrap();
    let output = lanner(&["chat", "--mcp", path], &[]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("--mcp-allow SERVER"), "{text}");
    let output = lanner(&["chat", "--mcp", path, "--mcp-allow", "other/read"], &[]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("no server `other`"), "{text}");
}

#[test]
fn invalid_file_of_servers_is_named() {
    let file = file(&json!({ "fake": { "args": [] } }));
    let output = lanner(&["serve", "--port", "0", "--mcp", file.path().to_str().unwrap()], &[]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("mcpServers.fake needs a `command` or a `url`"), "{text}");
    let output = lanner(&["chat", "--mcp", "/no/such/file"], &[]);
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("cannot read the file of MCP servers /no/such/file")
    );
}

#[test]
fn chat_in_a_pipe_offers_and_calls_allowed_tools() {
    let fake = HttpFake::start("");
    let file = file(&json!({ "fake": fake.entry() }));
    let mut command = Command::new(env!("CARGO_BIN_EXE_lanner"));
    command.env_clear().args([
        "chat",
        "--device",
        "cpu",
        "--no-history",
        "--mcp",
        file.path().to_str().unwrap(),
    ]);
    command.args(["--mcp-allow", "*", "--temperature", "0", "--max-tokens", "40", "--no-think"]);
    let mut chat =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    chat.stdin.take().unwrap().write_all(b"Use the echo tool to repeat: owls.\n").unwrap();
    let output = output_of(chat).unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("(5 tools of MCP servers)"), "{text}");
    let heads = fake.heads.lock().unwrap();
    assert!(heads.iter().any(|head| head.starts_with("delete ")), "the session is ended: {heads:?}");
}

#[test]
fn server_that_talks_on_stdout_costs_few_lines_and_its_end_none() {
    let file = file(&json!({ "fake": fake::entry_of(super::PROCESS, "garbage") }));
    let mut command = Command::new(env!("CARGO_BIN_EXE_lanner"));
    let path = file.path().to_str().unwrap();
    command.env_clear().args(["chat", "--device", "cpu", "--no-history", "--mcp", path]);
    command.args(["--mcp-allow", "*", "--max-tokens", "4"]);
    let mut chat =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    chat.stdin.take().unwrap().write_all(b"hi\n").unwrap();
    let output = output_of(chat).unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("(5 tools of MCP servers)"), "{text}");
    assert_eq!(text.matches("not JSON on stdout").count(), 10, "{text}");
    assert_eq!(text.matches("they are not logged").count(), 1, "{text}");
    assert!(!text.contains("MCP server ended"), "{text}");
}

#[test]
fn server_that_fails_is_told_and_left_out() {
    let file = file(&json!({ "gone": { "command": "/no/such/program" } }));
    let mut command = Command::new(env!("CARGO_BIN_EXE_lanner"));
    command.env_clear().args([
        "chat",
        "--device",
        "cpu",
        "--no-history",
        "--mcp",
        file.path().to_str().unwrap(),
    ]);
    command.args(["--mcp-allow", "gone", "--max-tokens", "4"]);
    let mut chat =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    chat.stdin.take().unwrap().write_all(b"hi\nhi\n").unwrap();
    let output = output_of(chat).unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(text.matches("`gone` cannot be started").count(), 1, "{text}");
    assert!(output.status.success(), "{text}");
}

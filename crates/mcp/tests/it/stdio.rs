//! A server over stdio, and its process.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use lanner_mcp::{CallParams, Cancel, Limits, McpError, Options, ServerList, Servers};
use serde_json::{Value, json};

use crate::fake;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn servers(entries: Value, limits: Limits) -> Servers {
    let text = json!({ "mcpServers": entries }).to_string();
    let list = ServerList::parse(&text, |_| None).unwrap();
    Servers::new(list, &Options { limits, proxy: None })
}

pub(crate) fn one(mode: &str, limits: Limits) -> Servers {
    servers(json!({ "fake": fake::entry(mode) }), limits)
}

/// Calls a tool of the first server.
pub(crate) fn call(servers: &Servers, tool: &str, arguments: Value) -> Result<String, McpError> {
    let cancel = Cancel::default();
    let params = CallParams { tool, arguments: &arguments, deadline: None, cancel: &cancel };
    servers.all()[0].call(params).map(|result| result.text)
}

pub(crate) fn names(servers: &Servers) -> Result<Vec<String>, McpError> {
    let list = servers.all()[0].tools(&Cancel::default())?;
    Ok(list.tools.iter().map(|tool| tool.name.clone()).collect())
}

#[test]
fn tools_are_listed_and_called() {
    let servers = one("", Limits::default());
    assert_eq!(names(&servers).unwrap(), ["echo", "fail", "slow", "big", "grow"]);
    assert_eq!(call(&servers, "echo", json!({ "text": "hé\n" })).unwrap(), "hé\n");
    let failed =
        CallParams { tool: "fail", arguments: &json!({}), deadline: None, cancel: &Cancel::default() };
    let failed = servers.all()[0].call(failed).unwrap();
    assert!(failed.is_error && failed.text == "it failed, as it should");
    let error = call(&servers, "nothing", json!({})).unwrap_err();
    assert!(matches!(&error, McpError::Refused { code: -32602, .. }), "{error}");
}

#[test]
fn pages_of_tools_are_joined() {
    let names = names(&one("pages", Limits::default())).unwrap();
    assert_eq!(names[..3], ["page_0", "page_1", "echo"]);
}

#[test]
fn changed_tools_are_listed_again() {
    let servers = one("", Limits::default());
    assert_eq!(names(&servers).unwrap().len(), 5);
    call(&servers, "grow", json!({})).unwrap();
    assert_eq!(names(&servers).unwrap().last().unwrap(), "grown");
}

#[test]
fn server_without_handshake_is_asked_statelessly() {
    let servers = one("stateless", Limits::default());
    assert_eq!(names(&servers).unwrap().len(), 5);
    assert_eq!(call(&servers, "echo", json!({ "text": "x" })).unwrap(), "x");
}

#[test]
fn slow_call_times_out_and_the_next_one_works() {
    let limits = Limits { call: Duration::from_millis(300), ..Limits::default() };
    let servers = one("", limits);
    names(&servers).unwrap();
    let error = call(&servers, "slow", json!({ "ms": 2000 })).unwrap_err();
    assert!(matches!(error, McpError::Timeout { .. }), "{error}");
    let started = Instant::now();
    // The fake server does one thing at a time.
    while call(&servers, "echo", json!({ "text": "x" })).is_err() {
        assert!(started.elapsed() < PATIENCE);
    }
}

#[test]
fn cancelled_call_ends_at_once() {
    let servers = one("", Limits::default());
    names(&servers).unwrap();
    let (cancel, started) = (Cancel::default(), Instant::now());
    let result = thread::scope(|scope| {
        let arguments = json!({ "ms": 40_000 });
        let own = &cancel;
        let server = &servers.all()[0];
        let call = scope.spawn(move || {
            server.call(CallParams { tool: "slow", arguments: &arguments, deadline: None, cancel: own })
        });
        thread::sleep(Duration::from_millis(100));
        cancel.cancel();
        call.join().unwrap()
    });
    assert!(matches!(result, Err(McpError::Cancelled { .. })), "{result:?}");
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
}

#[test]
fn result_beyond_the_limit_is_shortened() {
    let servers = one("", Limits { result_bytes: 1000, ..Limits::default() });
    let text = call(&servers, "big", json!({ "bytes": 1_000_000 })).unwrap();
    assert!(text.len() <= 1000 && text.contains("bytes left out"), "{text}");
}

/// Short times, so that tests wait less.
fn hasty() -> Limits {
    Limits { stop: Duration::from_millis(100), ..Limits::default() }
}

/// A file that a process writes its id into.
fn id_file(test: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("lanner-mcp-{}-{test}", std::process::id()));
    let _ = fs::remove_file(&path);
    path
}

/// The id in the file, once it is there.
fn id_in(file: &Path) -> String {
    let started = Instant::now();
    loop {
        let id = fs::read_to_string(file).unwrap_or_default();
        if !id.is_empty() {
            return id;
        }
        assert!(started.elapsed() < PATIENCE, "{} is not written", file.display());
        thread::sleep(Duration::from_millis(10));
    }
}

fn wait_for_end(id: &str) {
    let started = Instant::now();
    // A process that has ended and that nothing has waited for is a zombie.
    let runs = || {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    };
    while runs() {
        assert!(started.elapsed() < PATIENCE, "{id} runs on");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn processes_end_with_the_client() {
    let servers = one("grandchild", hasty());
    let id = call(&servers, "echo", json!({})).unwrap();
    drop(servers);
    wait_for_end(&id);

    let servers = one("stays", hasty());
    call(&servers, "echo", json!({})).unwrap();
    drop(servers);
}

#[test]
fn server_that_still_starts_ends_with_the_client() {
    let (mut entry, file) = (fake::entry("silent"), id_file("starting"));
    entry["env"][fake::ID_FILE] = json!(file);
    let servers = servers(json!({ "fake": entry }), hasty());
    let started = Instant::now();
    let error = thread::scope(|scope| {
        let names = scope.spawn(|| names(&servers));
        let id = id_in(&file);
        servers.stop();
        wait_for_end(&id);
        names.join().unwrap().unwrap_err()
    });
    assert!(error.to_string().contains("it was stopped"), "{error}");
    assert!(started.elapsed() < Limits::default().start, "{:?}", started.elapsed());
    assert!(names(&servers).unwrap_err().to_string().contains("it was stopped"), "it is not started again");
}

#[test]
fn process_that_leaves_its_group_and_ignores_sigterm_is_killed() {
    let script = "setpgrp(0, getpgrp(getppid())) or die; $SIG{TERM} = 'IGNORE';\
                  open(F, '>', $ARGV[0]); print F $$; close(F); sleep(300)";
    let file = id_file("escape");
    let entry = json!({ "command": "perl", "args": ["-e", script, file] });
    if std::process::Command::new("perl").arg("-v").output().is_err() {
        eprintln!("skipped: there is no perl");
        return;
    }
    let servers = servers(json!({ "fake": entry }), Limits { start: Duration::from_secs(3), ..hasty() });
    let started = Instant::now();
    let error = names(&servers).unwrap_err();
    assert!(matches!(error, McpError::Timeout { .. }), "{error}");
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    wait_for_end(&id_in(&file));
}

#[test]
fn missing_program_is_named() {
    let servers = servers(json!({ "gone": { "command": "/no/such/program" } }), Limits::default());
    let error = names(&servers).unwrap_err().to_string();
    assert!(error.starts_with("the MCP server `gone` cannot be started: `/no/such/program`"), "{error}");
}

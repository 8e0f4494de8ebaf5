//! Servers that crash, hang, flood or lie.

use std::time::{Duration, Instant};

use lanner_mcp::{Cancel, Limits, McpError};
use serde_json::json;

use crate::stdio::{call, names, one};

fn limits() -> Limits {
    Limits { message_bytes: 1 << 20, unsolicited_bytes: 4 << 20, ..Limits::default() }
}

#[test]
fn crash_is_told_then_restarted_once_then_left_alone() {
    let servers = one("crash", limits());
    let errors: Vec<McpError> = (0..3).map(|_| call(&servers, "echo", json!({})).unwrap_err()).collect();
    for error in &errors[..2] {
        assert!(error.to_string().contains("its process ended with exit status: 7"), "{error}");
    }
    assert!(
        matches!(&errors[2], McpError::Resting { reason, .. } if reason.contains("exit status: 7")),
        "{errors:?}"
    );
}

#[test]
fn process_that_ends_at_once_is_a_failed_start() {
    let servers = one("dies", limits());
    let error = names(&servers).unwrap_err();
    assert!(
        matches!(&error, McpError::Start { reason, .. } if reason.contains("exit status: 3")),
        "{error:?}"
    );
}

#[test]
fn silent_server_times_out() {
    let servers = one("silent", Limits { start: Duration::from_millis(400), ..limits() });
    let error = names(&servers).unwrap_err();
    assert!(matches!(&error, McpError::Timeout { method, .. } if method == "initialize"), "{error:?}");
}

#[test]
fn endless_output_ends_the_server() {
    for (mode, expected) in [
        ("endless", "a message has more than 1048576 bytes"),
        ("flood", "bytes that answer nothing"),
        ("blank_lines", "bytes that answer nothing"),
        ("short_lines", "bytes that answer nothing"),
    ] {
        let servers = one(mode, limits());
        names(&servers).unwrap();
        let error = call(&servers, "echo", json!({})).unwrap_err().to_string();
        assert!(error.contains(expected), "{mode}: {error}");
    }
}

#[test]
fn invalid_json_costs_only_the_call() {
    let servers = one("garbage", limits());
    // The lines of garbage are skipped; then comes the answer.
    assert_eq!(names(&servers).unwrap().len(), 5);
}

#[test]
fn huge_message_ends_the_server_and_the_next_call_starts_it() {
    let servers = one("", limits());
    let error = call(&servers, "big", json!({ "bytes": 3 << 20 })).unwrap_err().to_string();
    assert!(error.contains("a message has more than 1048576 bytes"), "{error}");
    assert_eq!(call(&servers, "echo", json!({ "text": "again" })).unwrap(), "again");
}

#[test]
fn hundred_thousand_tools_are_cut() {
    let servers = one("hundred_thousand", Limits { message_bytes: 8 << 20, ..limits() });
    let list = servers.all()[0].tools(&Cancel::default()).unwrap();
    assert_eq!((list.tools.len(), list.is_cut), (Limits::default().tools, true));
    // Over a smaller limit of messages, the list is an error.
    let error = names(&one("hundred_thousand", limits())).unwrap_err();
    assert!(matches!(error, McpError::Closed { .. }), "{error:?}");
}

#[test]
fn endless_pages_are_cut() {
    let list = one("endless_pages", limits()).all()[0].tools(&Cancel::default()).unwrap();
    assert_eq!((list.tools.len(), list.is_cut), (0, true));
}

#[test]
fn unknown_version_is_refused() {
    let error = names(&one("future", limits())).unwrap_err().to_string();
    assert!(error.contains("it chose version `2099-01-01`"), "{error}");
}

#[test]
fn server_that_does_not_read_is_an_error() {
    let servers = one("deaf", Limits { start: Duration::from_millis(500), ..limits() });
    let started = Instant::now();
    assert!(names(&servers).is_err());
    assert!(started.elapsed() < Duration::from_secs(60));
}

#[test]
fn stderr_without_end_does_not_stop_the_server() {
    let servers = one("chatty", limits());
    assert_eq!(call(&servers, "echo", json!({ "text": "still here" })).unwrap(), "still here");
}

//! A server over streamable HTTP.

use std::{thread, time::Duration};

use lanner_mcp::{Limits, McpError, Servers};
use serde_json::json;

use crate::{
    fake::HttpFake,
    stdio::{call, names, servers},
};

fn connect(fake: &HttpFake) -> Servers {
    servers(json!({ "web": fake.entry() }), Limits::default())
}

#[test]
fn tools_are_called_over_json_and_over_events() {
    for mode in ["", "sse"] {
        let fake = HttpFake::start(mode);
        let servers = connect(&fake);
        assert_eq!(names(&servers).unwrap().len(), 5, "{mode}");
        assert_eq!(call(&servers, "echo", json!({ "text": "é" })).unwrap(), "é");
        call(&servers, "grow", json!({})).unwrap();
        assert_eq!(names(&servers).unwrap().len(), 6, "{mode}: the change is in the answer's events");
        drop(servers);
        let heads = fake.heads.lock().unwrap();
        let of_call = heads.iter().rfind(|head| head.starts_with("post ")).unwrap();
        for header in [
            "mcp-session-id: session-1",
            "mcp-protocol-version: 2025-06-18",
            "authorization: bearer secret-value",
        ] {
            assert!(of_call.contains(header), "{of_call}");
        }
        assert!(heads.iter().any(|head| head.starts_with("delete ")), "the session is ended");
        let methods = fake.fake.methods.lock().unwrap();
        assert_eq!(methods[..3], ["initialize", "notifications/initialized", "tools/list"]);
    }
}

#[test]
fn expired_session_is_replaced() {
    let fake = HttpFake::start("expires");
    let servers = connect(&fake);
    names(&servers).unwrap();
    assert_eq!(call(&servers, "echo", json!({ "text": "x" })).unwrap(), "x");
    let methods = fake.fake.methods.lock().unwrap();
    assert_eq!(methods.iter().filter(|method| *method == "initialize").count(), 2);
}

#[test]
fn stateless_server_gets_its_headers() {
    let fake = HttpFake::start("stateless");
    let servers = connect(&fake);
    assert_eq!(call(&servers, "echo", json!({ "text": "x" })).unwrap(), "x");
    let heads = fake.heads.lock().unwrap();
    let last = heads.last().unwrap();
    for header in ["mcp-method: tools/call", "mcp-name: echo", "mcp-protocol-version: 2026-07-28"] {
        assert!(last.contains(header), "{last}");
    }
}

#[test]
fn status_is_told_with_a_hint_and_without_secrets() {
    for (mode, expected) in
        [("unauthorized", "HTTP status 401; give it a token"), ("redirect", "redirects are not followed")]
    {
        let error = names(&connect(&HttpFake::start(mode))).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let gone = servers(
        json!({ "web": { "url": "http://u:password@127.0.0.1:9/mcp?key=secret-value" } }),
        Limits::default(),
    );
    let error = names(&gone).unwrap_err().to_string();
    assert!(error.contains("http://127.0.0.1:9/mcp cannot be reached"), "{error}");
    assert!(!error.contains("secret-value") && !error.contains("password"), "{error}");
}

#[test]
fn error_of_the_server_holds_no_secret() {
    let error = call(&connect(&HttpFake::start("")), "nothing", json!({})).unwrap_err().to_string();
    assert!(error.contains("the token is ***"), "{error}");
    let error = call(&connect(&HttpFake::start("")), "leak", json!({})).unwrap_err().to_string();
    assert!(error.ends_with("y ***"), "a long message is masked before it is cut: {error}");
    let error = names(&connect(&HttpFake::start("leaks"))).unwrap_err().to_string();
    assert!(error.contains("version `a-long-version-with-a-***`"), "{error}");
}

#[test]
fn comments_without_end_end_the_server() {
    let error = call(&connect(&HttpFake::start("comments")), "echo", json!({})).unwrap_err().to_string();
    assert!(error.contains("bytes that answer nothing"), "{error}");
}

#[test]
fn stream_of_notifications_is_reopened_ever_later_and_not_after_a_flood() {
    let opened = |mode: &str| {
        let fake = HttpFake::start(mode);
        let servers = connect(&fake);
        names(&servers).unwrap();
        thread::sleep(Duration::from_millis(2500));
        drop(servers);
        let heads = fake.heads.lock().unwrap();
        heads.iter().filter(|head| head.starts_with("get ")).count()
    };
    // At once, and after 1 s; the next pause takes 2 s.
    assert!(opened("stream_that_ends") <= 2);
    assert_eq!(opened("stream_of_blank_lines"), 1);
}

#[test]
fn endless_event_is_an_error() {
    let servers = connect(&HttpFake::start("endless"));
    let error = call(&servers, "echo", json!({})).unwrap_err();
    assert!(
        matches!(&error, McpError::Closed { reason, .. } if reason.contains("more than 8388608 bytes")),
        "{error:?}"
    );
}

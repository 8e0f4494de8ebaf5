//! `GET /health`: the state of the engine's thread.

use serde_json::Value;

use crate::support::{
    client,
    server::{Setup, TestServer},
};

fn check(server: &TestServer, status: u16, says: &str, activity: &str, reason: Option<&str>) {
    let reply = client::get(server.address, "/health");
    let health = reply.json();
    assert_eq!((reply.status, health["status"].as_str()), (status, Some(says)), "{}", reply.body);
    assert_eq!(health["engine"]["activity"], activity, "{health}");
    match reason {
        Some(reason) => assert!(health["reason"].as_str().unwrap().contains(reason), "{health}"),
        None => assert_eq!(health["reason"], Value::Null),
    }
}

#[test]
fn health_of_an_idle_server_is_ok() {
    let server = Setup::default().says("x");
    check(&server, 200, "ok", "idle", None);
}

#[test]
fn health_of_a_hanging_engine_is_503() {
    let server = Setup::default().stuck();
    check(&server, 503, "stuck", "step", Some("one step for"));
}

#[test]
fn health_of_an_ended_engine_is_503() {
    let server = Setup::default().says("x");
    server.host.registry().default_model().unwrap().engine().stop();
    check(&server, 503, "stopped", "ended", Some("restart the server"));
}

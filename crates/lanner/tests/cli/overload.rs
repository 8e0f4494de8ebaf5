//! A server with a full queue, and requests whose timeout expires.

use std::{
    io::Read,
    time::{Duration, Instant},
};

use engine::Priority;
use serde_json::{Value, json};

use crate::support::{
    client::{self, Reply},
    server::{Setup, TestServer, token},
    wait::wait_until,
};

/// Generates until the client disconnects.
fn endless(capacity: usize) -> TestServer {
    Setup { delay: Duration::from_millis(2), capacity, ..Setup::default() }.script(|_, _| token(65))
}

/// A server that takes this long for a token.
fn slow(delay: Duration) -> TestServer {
    Setup { delay, ..Setup::default() }.script(|_, _| token(65))
}

fn error(reply: &Reply, status: u16, code: &str) {
    assert_eq!(reply.status, status, "{}", reply.body);
    assert_eq!(reply.json()["error"]["code"], code);
}

#[test]
fn full_queue_returns_429_with_retry_after() {
    let server = endless(2);
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }], "stream": true }).to_string();
    let mut streams: Vec<_> = (0..2)
        .map(|_| {
            let headers = "Content-Type: application/json\r\n";
            let mut stream =
                client::open(server.address, "POST /v1/chat/completions", headers, body.as_bytes());
            // The first event comes before the first token.
            stream.read_exact(&mut [0; 1000]).unwrap();
            stream
        })
        .collect();
    for reply in [
        server.chat(&json!({})),
        server.chat(&json!({ "stream": true })),
        server.complete(&json!({ "prompt": "a" })),
        server.complete(&json!({ "prompt": "a", "stream": true, "n": 3 })),
    ] {
        error(&reply, 429, "queue_full");
        let line = reply.head.lines().find_map(|line| line.strip_prefix("retry-after: "));
        let seconds: u64 = line.expect("Retry-After").parse().expect("whole seconds");
        assert!((1..=60).contains(&seconds), "{seconds}");
    }
    assert_eq!(server.health()["running"], 2);
    streams.pop();
    wait_until("a disconnected client's slot is free", || {
        server.complete(&json!({ "prompt": "a", "max_tokens": 1, "n": 3 })).status != 429
    });
}

#[test]
fn refused_or_invalid_requests_take_no_queue_slot() {
    let server = endless(1);
    for wrong in [
        json!({ "prompt": "" }),
        json!({ "prompt": "a", "temperature": -1 }),
        json!({ "prompt": vec![65; 2000] }),
        json!({ "prompt": "a", "n": 99 }),
    ] {
        assert_eq!(server.complete(&wrong).status, 400);
    }
    assert_eq!(server.complete(&json!({ "prompt": "a", "max_tokens": 1 })).status, 200);
}

#[test]
fn request_past_its_timeout_fails() {
    let server = endless(8);
    let request = json!({ "prompt": "a", "max_tokens": 900, "timeout": 0.1 });
    error(&server.complete(&request), 504, "timeout");
    error(&server.chat(&json!({ "timeout": 0.05, "n": 2 })), 504, "timeout");

    // Enough time for some of the 900 tokens, and for all of them on no machine.
    let server = slow(Duration::from_millis(10));
    let begun = Instant::now();
    assert_eq!(server.complete(&json!({ "prompt": "a", "max_tokens": 3 })).status, 200);
    let few = begun.elapsed().as_secs_f64();
    let mut stream = request;
    stream["timeout"] = (10.0 * few).clamp(1.0, 6.0).into();
    stream["stream"] = true.into();
    let reply = server.complete(&stream);
    assert_eq!(reply.status, 200);
    assert!(!reply.is_done());
    let events = reply.events();
    assert!(events.len() > 1, "what was generated in time was sent");
    assert_eq!(events.last().unwrap()["error"]["code"], "timeout");
    assert_eq!(server.health()["running"], 0);
    for never in [json!(60), json!(1e9)] {
        let request = json!({ "prompt": "a", "max_tokens": 3, "timeout": never });
        assert_eq!(server.complete(&request).status, 200);
    }
}

#[test]
fn priorities_and_deadlines_reach_the_engine() {
    let server = Setup::default().says("x");
    for (value, priority) in [
        (json!("interactive"), Priority::Interactive),
        (json!("normal"), Priority::Normal),
        (json!("background"), Priority::Background),
        (Value::Null, Priority::Normal),
    ] {
        assert_eq!(server.chat(&json!({ "priority": value })).status, 200);
        assert_eq!(server.last_request().priority, priority);
        assert_eq!(server.last_request().deadline, None);
        assert_eq!(server.complete(&json!({ "prompt": "a", "priority": value, "timeout": 900 })).status, 200);
        assert_eq!(server.last_request().priority, priority);
        let left = server.last_request().deadline.expect("a deadline") - Instant::now();
        assert!(left > Duration::from_secs(600) && left < Duration::from_secs(900), "{left:?}");
    }
    let requests = server.num_requests();
    for (name, value) in [
        ("priority", json!("urgent")),
        ("priority", json!(1)),
        ("timeout", json!(0)),
        ("timeout", json!(-1)),
        ("timeout", json!("1s")),
    ] {
        for reply in
            [server.chat(&json!({ name: value })), server.complete(&json!({ "prompt": "a", name: value }))]
        {
            assert_eq!(
                (reply.status, &reply.json()["error"]["param"]),
                (400, &json!(name)),
                "{}",
                reply.body
            );
        }
    }
    assert_eq!(server.num_requests(), requests);
}

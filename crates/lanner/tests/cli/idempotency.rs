//! Repeated requests with an idempotency key.

use std::{
    io::Read,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use engine::scripted::Step;
use serde_json::{Value, json};

use crate::support::{
    client::{self, Reply},
    server::{IM_END, Setup, TestServer, token, tokens},
    wait::wait_until,
};

/// Every generation has another text.
fn counting(delay: Duration) -> TestServer {
    let generations = Arc::new(AtomicUsize::new(0));
    Setup { delay, ..Setup::default() }.script(move |_, n| {
        let count = if n == 0 { generations.fetch_add(1, Ordering::Relaxed) + 1 } else { 0 };
        match n {
            0 => token(u32::try_from(b'0' as usize + count).unwrap()),
            _ => token(tokens(" owls fly").get(n - 1).copied().unwrap_or(IM_END)),
        }
    })
}

fn replayed(reply: &Reply) -> bool {
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.head.lines().any(|line| line == "idempotent-replayed: true")
}

fn with(body: &Value, fields: Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

#[test]
fn repeated_idempotency_key_returns_the_same_answer() {
    let server = counting(Duration::ZERO);
    let chat = json!({
        "messages": [{ "role": "user", "content": "hi" }],
        "seed": 7, "n": 2, "logprobs": true, "top_logprobs": 2, "idempotency_key": "chat",
    });
    let completion = json!({
        "prompt": ["a", "b"], "temperature": 0, "echo": true, "logprobs": 1, "return_token_ids": true,
        "stop": "fl", "max_tokens": 30, "idempotency_key": "completion", "cache_ttl_ms": 60_000,
    });
    for (path, body) in [("/v1/chat/completions", &chat), ("/v1/completions", &completion)] {
        let requests = server.num_requests();
        let post = |fields| client::post(server.address, path, &with(body, fields));
        let first = post(json!({}));
        assert!(!replayed(&first));
        for _ in 0..2 {
            let again = post(json!({}));
            assert!(replayed(&again));
            assert_eq!(again.body, first.body);
        }
        // The same answer in the other form; fields that do not change the answer may differ.
        let usage =
            json!({ "stream": true, "stream_options": { "include_usage": true }, "priority": "background" });
        let stream = post(usage.clone());
        assert!(replayed(&stream) && stream.is_done());
        assert_eq!(post(usage).body, stream.body);
        let last = &stream.events()[stream.events().len() - 1];
        assert_eq!(last["usage"], first.json()["usage"]);
        assert!(stream.events().iter().all(|event| event["id"] == first.json()["id"]));
        assert!(stream.events().iter().all(|event| event["created"] == first.json()["created"]));
        let choices = first.json()["choices"].as_array().unwrap().len();
        assert_eq!(server.num_requests(), requests + choices, "generated once");
    }
    assert_eq!(server.health()["running"], 0);
}

#[test]
fn repeated_idempotency_key_returns_the_same_stream_events() {
    let server = counting(Duration::ZERO);
    let body = json!({ "prompt": "a", "seed": 1, "stream": true, "max_tokens": 30, "idempotency_key": "k" });
    let first = server.complete(&body);
    let again = server.complete(&body);
    assert!(!replayed(&first) && replayed(&again));
    assert_eq!(again.body, first.body);
    let whole = server.complete(&with(&body, json!({ "stream": false })));
    assert_eq!(whole.json()["choices"][0]["text"], "1 owls fly");
    assert_eq!(server.num_requests(), 1);
}

#[test]
fn concurrent_requests_with_one_idempotency_key_generate_once() {
    let server = counting(Duration::from_millis(20));
    let address = server.address;
    let requests: Vec<_> = (0..6)
        .map(|i| {
            let body =
                json!({ "prompt": "a", "temperature": 0, "stream": i % 2 == 1, "idempotency_key": "k" });
            thread::spawn(move || client::post(address, "/v1/completions", &body))
        })
        .collect();
    let replies: Vec<Reply> = requests.into_iter().map(|request| request.join().unwrap()).collect();
    assert_eq!(server.num_requests(), 1);
    assert_eq!(replies.iter().filter(|reply| !replayed(reply)).count(), 1);
    let ids: Vec<Value> =
        [&replies[0], &replies[2], &replies[4]].map(|reply| reply.json()["id"].clone()).into();
    assert!(ids.iter().all(|id| *id == ids[0]) && replies[1].events()[0]["id"] == ids[0], "{ids:?}");
}

#[test]
fn waiting_duplicate_takes_over_after_a_disconnect() {
    // The first request must still run when the second has timed out.
    let server = counting(Duration::from_millis(200));
    let body = json!({ "prompt": "a", "temperature": 0, "idempotency_key": "k" });
    let text = body.to_string();
    let leaving = client::open(
        server.address,
        "POST /v1/completions",
        "Content-Type: application/json\r\n",
        text.as_bytes(),
    );
    wait_until("the request arrives", || server.num_requests() == 1);
    let hurried = server.complete(&with(&body, json!({ "timeout": 0.02 })));
    assert_eq!((hurried.status, &hurried.json()["error"]["code"]), (504, &json!("timeout")));
    let address = server.address;
    let waiting = thread::spawn(move || client::post(address, "/v1/completions", &body));
    thread::sleep(Duration::from_millis(30));
    drop(leaving);
    let reply = waiting.join().unwrap();
    assert!(!replayed(&reply));
    assert_eq!(reply.json()["choices"][0]["text"], "2 owls fly");
    assert_eq!(server.num_requests(), 2);
}

#[test]
fn idempotency_key_with_another_body_is_refused() {
    let server = counting(Duration::ZERO);
    let body = json!({ "prompt": "a", "temperature": 0, "idempotency_key": "k" });
    assert_eq!(server.complete(&body).status, 200);
    for reply in [
        server.complete(&with(&body, json!({ "prompt": "b" }))),
        server.complete(&with(&body, json!({ "max_tokens": 2 }))),
        server.complete(&with(&body, json!({ "stop": "x", "stream": true }))),
        server.chat(&json!({ "temperature": 0, "idempotency_key": "k" })),
    ] {
        assert_eq!(reply.status, 400, "{}", reply.body);
        let error = &reply.json()["error"];
        assert_eq!(
            (&error["type"], &error["code"]),
            (&json!("idempotency_error"), &json!("idempotency_key_reused"))
        );
    }
    assert_eq!(server.num_requests(), 1);
    assert!(replayed(&server.complete(&body)));
}

#[test]
fn failed_or_cancelled_answer_is_not_replayed() {
    let failures = Arc::new(AtomicUsize::new(0));
    let server = Setup { delay: Duration::from_millis(5), ..Setup::default() }.script(move |_, n| match n {
        0..3 => token(65),
        3 if failures.fetch_add(1, Ordering::Relaxed) < 2 => Step::Fail("on purpose".into()),
        _ => token(IM_END),
    });
    let body = json!({ "prompt": "a", "temperature": 0, "idempotency_key": "k" });
    assert_eq!(server.complete(&body).status, 500);
    assert!(!server.complete(&with(&body, json!({ "stream": true }))).is_done());
    assert!(!replayed(&server.complete(&body)));
    assert!(replayed(&server.complete(&body)));

    let server = counting(Duration::from_millis(10));
    let text = with(&body, json!({ "stream": true })).to_string();
    let headers = "Content-Type: application/json\r\n";
    let mut stream = client::open(server.address, "POST /v1/completions", headers, text.as_bytes());
    stream.read_exact(&mut [0; 300]).unwrap();
    drop(stream);
    let reply = server.complete(&body);
    assert!(!replayed(&reply));
    assert_eq!(reply.json()["choices"][0]["text"], "2 owls fly");
}

#[test]
fn idempotency_key_without_seed_or_out_of_bounds_is_refused() {
    let server = counting(Duration::ZERO);
    for (fields, param) in [
        (json!({ "idempotency_key": "k" }), "idempotency_key"),
        (json!({ "idempotency_key": "", "seed": 1 }), "idempotency_key"),
        (json!({ "idempotency_key": "k".repeat(129), "seed": 1 }), "idempotency_key"),
        (json!({ "idempotency_key": "k", "seed": 1, "cache_ttl_ms": 60_001 }), "cache_ttl_ms"),
        (json!({ "idempotency_key": "k", "seed": 1, "cache_ttl_ms": -1 }), "cache_ttl_ms"),
        (json!({ "cache_ttl_ms": 5 }), "cache_ttl_ms"),
    ] {
        for reply in [server.chat(&fields), server.complete(&with(&json!({ "prompt": "a" }), fields.clone()))]
        {
            assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)), "{fields}");
        }
    }
    assert_eq!(server.num_requests(), 0);
    // Not stored.
    let body = json!({ "seed": 1, "idempotency_key": "k", "cache_ttl_ms": 0 });
    assert!(!replayed(&server.chat(&body)));
    assert!(!replayed(&server.chat(&body)));
}

#[test]
fn field_order_does_not_change_the_idempotency_match() {
    let server = counting(Duration::ZERO);
    let post = |body: &str| client::post_raw(server.address, "/v1/chat/completions", body.as_bytes());
    let first = post(
        r#"{"idempotency_key":"k","seed":7,"messages":[{"role":"user","content":"hi"}],"logit_bias":{"5":1,"6":2}}"#,
    );
    assert!(!replayed(&first));
    for again in [
        r#"{"messages":[{"content":"hi","role":"user"}],"logit_bias":{"6":2,"5":1},"idempotency_key":"k","seed":7}"#,
        r#"{"logit_bias": {"6": 2, "5": 1}, "messages": [{"content": "hi", "role": "user"}], "n": null,
            "idempotency_key": "k", "stream": false, "seed": 7}"#,
    ] {
        let again = post(again);
        assert!(replayed(&again) && again.body == first.body);
    }
    assert_eq!(server.num_requests(), 1);
    // The order of a list matters.
    let two = |first: &str, second: &str| {
        let body = json!({ "prompt": [first, second], "seed": 7, "idempotency_key": "list" });
        server.complete(&body).status
    };
    assert_eq!((two("a", "b"), two("b", "a")), (200, 400));
}

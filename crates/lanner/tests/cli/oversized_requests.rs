//! Oversized requests, and their cost for others.

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::support::{
    client::{self, Reply},
    process::ServerProcess,
    server::Setup,
    wait::{Done, wait_until},
};

/// Maximum megabytes for all hostile requests together.
const MOST: f64 = 400.0;

fn messages(count: usize) -> String {
    let message = r#"{"role":"user","content":"x"}"#;
    format!(r#"{{"messages":[{}],"max_tokens":1}}"#, vec![message; count].join(","))
}

#[test]
fn half_a_million_messages_cost_little_memory_and_delay_no_other_request() {
    let server = ServerProcess::start(&["--disk-cache", "off", "--prefix-cache", "1M"]);
    let small = json!({ "prompt": "The owl", "max_tokens": 2, "temperature": 0 });
    server.complete(&small);
    let alone = (0..5).map(|_| {
        let begun = Instant::now();
        server.complete(&small);
        begun.elapsed()
    });
    let alone = alone.max().unwrap();
    let before = server.peak_memory();
    let many = messages(500_000);
    assert!(many.len() > 14 << 20);
    let done = Done::default();
    thread::scope(|scope| {
        let ends = done.on_drop();
        let hostile: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let mut reply = None;
                    // 503 while others are read, which takes long on a busy machine.
                    wait_until("there is room for the request", || {
                        let post =
                            || client::post_raw(server.address, "/v1/chat/completions", many.as_bytes());
                        reply.insert(post()).status != 503
                    });
                    reply.unwrap()
                })
            })
            .collect();
        let beside = scope.spawn(|| {
            let mut slowest = Duration::ZERO;
            while !done.is_set() || slowest.is_zero() {
                let begun = Instant::now();
                server.complete(&small);
                slowest = slowest.max(begun.elapsed());
            }
            slowest
        });
        let begun = Instant::now();
        for reply in hostile {
            let reply = reply.join().unwrap();
            assert_eq!(
                (reply.status, &reply.json()["error"]["param"]),
                (400, &json!("messages")),
                "{}",
                reply.body
            );
        }
        let hostile = begun.elapsed();
        drop(ends);
        let slowest = beside.join().unwrap();
        eprintln!("the slowest small request took {slowest:?} of {hostile:?}");
        // One that waited for the large bodies would take almost as long as all of them.
        assert!(slowest < hostile / 2 + 3 * alone, "{slowest:?} of {hostile:?}, {alone:?} alone");
    });
    let grown = server.peak_memory().zip(before).map(|(after, before)| after - before);
    eprintln!("eight of half a million messages took {grown:?} MB");
    assert!(grown.is_none_or(|grown| grown < MOST), "{grown:?} MB");
}

#[test]
fn largest_accepted_bodies_stay_within_the_memory_bound() {
    let server = ServerProcess::start(&["--disk-cache", "off", "--prefix-cache", "1M"]);
    let before = server.peak_memory();
    let text = "x ".repeat(4 << 20);
    let ids = vec!["7"; 1_000_000].join(",");
    let objects = |count: usize| vec![r#"{"a":{}}"#; count].join(",");
    let tool = |i: usize| format!(r#"{{"type":"function","function":{{"name":"f{i}"}}}}"#);
    let tools = format!("[{}]", (0..999).map(tool).collect::<Vec<_>>().join(","));
    let kwargs = format!("{{\"x\":[{}]}}", objects(30_000));
    let message = format!(r#"{{"role":"user","content":"{}"}}"#, "x ".repeat(50_000));
    for (path, body) in [
        ("/v1/chat/completions", messages(9_999)),
        (
            "/v1/chat/completions",
            format!(r#"{{"messages":[{message}],"tools":{tools},"chat_template_kwargs":{kwargs}}}"#),
        ),
        ("/v1/chat/completions", json!({ "messages": [{ "role": "user", "content": text }] }).to_string()),
        ("/v1/completions", json!({ "prompt": text }).to_string()),
        ("/v1/completions", format!(r#"{{"prompt": [{ids}], "n": 16}}"#)),
        (
            "/v1/completions",
            format!(r#"{{"prompt": [{ids}], "echo": true, "seed": 1, "idempotency_key": "k"}}"#),
        ),
    ] {
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let reply = client::post_raw(server.address, path, body.as_bytes());
                    assert_eq!(reply.status, 400, "{}", reply.body);
                    assert_eq!(reply.json()["error"]["code"], "context_length_exceeded", "{}", reply.body);
                });
            }
        });
        eprintln!("{path} {} bytes: {:?} MB at most so far", body.len(), server.peak_memory());
    }
    let grown = server.peak_memory().zip(before).map(|(after, before)| after - before);
    assert!(grown.is_none_or(|grown| grown < 2.0 * MOST), "{grown:?} MB");
}

#[test]
fn excessive_counts_are_refused_by_field_name() {
    let server = Setup::default().says("x");
    let tools: Vec<Value> =
        (0..1001).map(|i| json!({ "type": "function", "function": { "name": i } })).collect();
    let parts = vec![json!({ "type": "text", "text": "x" }); 60_000];
    for (reply, param, message) in [
        (
            client::post_raw(server.address, "/v1/chat/completions", messages(10_001).as_bytes()),
            json!("messages"),
            "10000",
        ),
        (server.chat(&json!({ "tools": tools })), json!("tools"), "1000"),
        (
            server.chat(&json!({ "messages": [{ "role": "user", "content": parts }] })),
            Value::Null,
            "100000 values",
        ),
        (server.chat(&json!({ "stop": vec!["x"; 100] })), json!("stop"), "at most 16"),
        (server.complete(&json!({ "prompt": vec!["x"; 500] })), json!("prompt"), "at most 128"),
    ] {
        let error = &reply.json()["error"];
        assert_eq!((reply.status, &error["param"]), (400, &param), "{}", reply.body);
        assert!(error["message"].as_str().unwrap().contains(message), "{}", reply.body);
    }
    assert_eq!(server.num_requests(), 0);
}

#[test]
fn errors_quote_a_bounded_part_of_the_request() {
    let server = Setup::default().says("x");
    let long = "y".repeat(100_000);
    let path = &long[..50_000];
    let replies: [Reply; 8] = [
        server.chat(&json!({ "temperature": long })),
        server.chat(&json!({ "model": long })),
        server.chat(&json!({ "priority": long })),
        server.chat(&json!({ "tool_choice": long })),
        server.chat(&json!({ "speculation": { "drafter": long } })),
        server.chat(&json!({ "logit_bias": { &long: 1 } })),
        server.chat(&json!({ "chat_template_kwargs": long, "stream": long })),
        client::get(server.address, &format!("/v1/{path}")),
    ];
    for reply in replies {
        assert!((400..500).contains(&reply.status), "{}", reply.status);
        assert!(reply.body.len() < 1200, "{} bytes: {:.300}", reply.body.len(), reply.body);
    }
}

#[test]
fn prompt_of_another_shape_is_refused() {
    let server = Setup::default().says("x");
    for (prompt, prompts) in
        [(json!("a"), 1), (json!(["a", "b"]), 2), (json!([65, 66]), 1), (json!([[65], [66, 67]]), 2)]
    {
        let reply = server.complete(&json!({ "prompt": prompt }));
        assert_eq!(reply.json()["choices"].as_array().unwrap().len(), prompts, "{prompt}");
    }
    for prompt in [
        json!([]),
        json!([[]]),
        json!({}),
        json!(true),
        json!(7),
        json!(-1),
        json!([1.5]),
        json!(["a", 1]),
        json!([1, "a"]),
        json!([[1], 2]),
        json!([["a"]]),
        json!([[[1]]]),
        json!([4_294_967_296u64]),
        json!([null]),
    ] {
        let reply = server.complete(&json!({ "prompt": prompt }));
        assert_eq!(
            (reply.status, &reply.json()["error"]["param"]),
            (400, &json!("prompt")),
            "{prompt}: {}",
            reply.body
        );
    }
}

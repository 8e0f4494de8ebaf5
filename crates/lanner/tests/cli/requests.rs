//! Common to requests of all routes: a canonical path, an id, and a way to cancel it.

use std::{
    io::{BufRead, BufReader},
    time::Duration,
};

use serde_json::{Value, json};

use crate::support::{
    client::{self, Reply},
    server::{Setup, token},
    wait::wait_until,
};

fn header<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
    let lines = reply.head.lines().filter_map(|line| line.split_once(": "));
    lines.filter(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
}

#[test]
fn base_url_may_lack_v1_or_end_with_a_slash() {
    let server = Setup::default().says("Hello");
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    for path in [
        "/v1/chat/completions",
        "/chat/completions",
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1/v1/chat/completions?x=1",
    ] {
        let reply = client::post(server.address, path, &body);
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
        assert_eq!(reply.json()["choices"][0]["message"]["content"], "Hello", "{path}");
    }
    for path in ["/models", "/v1/models/", "/models/owl", "/v1/health", "/v1/version", "/stats"] {
        assert_eq!(client::get(server.address, path).status, 200, "{path}");
    }
    assert_eq!(client::get(server.address, "/").body, "Lanner is running");
}

#[test]
fn alias_of_a_path_requires_the_key_too() {
    let server = Setup { api_key: Some("k"), ..Setup::default() }.says("x");
    for path in ["/models", "//v1/models", "/version", "/v1/stats", "/metrics/", "/v1/metrics", "/api/tags"] {
        let reply = client::get(server.address, path);
        assert_eq!(reply.status, 401, "{path}");
    }
    for path in ["/", "/health", "/v1/health/"] {
        assert_eq!(client::get(server.address, path).status, 200, "{path}");
    }
    let with = |header: &str| client::request(server.address, "GET /v1/models", header, b"").status;
    assert_eq!(with("x-api-key: k\r\n"), 200);
    assert_eq!(with("x-api-key: wrong\r\n"), 401);
    assert_eq!(with("Authorization: Bearer k\r\n"), 200);
}

#[test]
fn every_response_has_a_request_id() {
    let server = Setup { body_limit: 1000, ..Setup::default() }.says("x");
    let chat = r#"{"messages": [{"role": "user", "content": "hi"}]}"#;
    let large = "x".repeat(2000);
    for (line, body, status) in [
        ("POST /v1/chat/completions", chat, 200),
        ("POST /v1/chat/completions", "{", 400),
        ("POST /v1/chat/completions", &large[..], 413),
        ("GET /nothing", "", 404),
        ("PUT /health", "", 405),
        ("GET /health", "", 200),
    ] {
        let send = |headers: &str| {
            let headers = format!("Content-Type: application/json\r\n{headers}");
            client::request(server.address, line, &headers, body.as_bytes())
        };
        let [one, other] = [send(""), send("")];
        assert_eq!(one.status, status, "{line}");
        let id = header(&one, "x-request-id").unwrap();
        assert!(id.starts_with("req_") && id.len() == 20, "{line}: {id}");
        assert_ne!(Some(id), header(&other, "x-request-id"), "{line}");
        assert_eq!(header(&send("X-Request-Id: my-id.7\r\n"), "x-request-id"), Some("my-id.7"), "{line}");
        // An id that would be another header, or is longer than any real one, is replaced.
        let long = format!("X-Request-Id: {}\r\n", "a".repeat(129));
        assert!(header(&send(&long), "x-request-id").unwrap().starts_with("req_"), "{line}");
    }
}

/// A server whose answers take ten seconds.
fn slow() -> Setup {
    Setup { delay: Duration::from_millis(20), ..Setup::default() }
}

#[test]
fn request_is_cancelled_by_its_id_from_another_connection() {
    let server = slow().script(|_, _| token(65));
    let cancel = |id: &str| client::request(server.address, &format!("DELETE /v1/requests/{id}"), "", b"");
    let unknown = cancel("req_0");
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (404, &json!("request_not_found")));

    let headers = "Content-Type: application/json\r\nX-Request-Id: mine\r\n";
    let body = br#"{"prompt": "a", "max_tokens": 500, "stream": true}"#;
    let stream = client::open(server.address, "POST /v1/completions", headers, body);
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with("data: ")));
    assert_eq!(cancel("mine").json(), json!({ "id": "mine", "object": "request", "cancelled": 1 }));
    let rest: Vec<String> = lines.collect();
    assert!(rest.iter().any(|line| line.contains(r#""finish_reason":"abort""#)), "{rest:?}");
    assert_eq!(cancel("mine").status, 404, "it has ended");
}

#[test]
fn request_is_cancelled_by_the_id_of_its_answer() {
    let server = slow().script(|_, _| token(65));
    let headers = "Content-Type: application/json\r\n";
    let body = br#"{"prompt": "a", "max_tokens": 500, "stream": true}"#;
    let stream = client::open(server.address, "POST /v1/completions", headers, body);
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let first = lines.find_map(|line| Some(line.strip_prefix("data: ")?.to_owned())).unwrap();
    let chunk: Value = serde_json::from_str(&first).unwrap();
    let line = format!("DELETE /v1/requests/{}", chunk["id"].as_str().unwrap());
    assert_eq!(client::request(server.address, &line, "", b"").status, 200);
    assert!(lines.any(|line| line.contains("abort")));
    wait_until("it has ended", || server.health()["running"] == 0);
}

#[test]
fn stats_count_requests_and_tokens() {
    let server = Setup::default().says("Hello");
    assert_eq!(server.chat(&json!({})).status, 200);
    assert_eq!(server.chat(&json!({ "n": 99 })).status, 400);
    let stats = client::get(server.address, "/v1/stats").json();
    assert_eq!(stats["requests"]["answered"], 1, "{stats}");
    assert_eq!(stats["requests"]["invalid"], 1, "{stats}");
    assert_eq!(stats["tokens"]["generated"], 6, "{stats}");
    assert!(stats["mean_time_to_first_token_s"].is_number(), "{stats}");
}

#[test]
fn prompt_progress_and_timings_are_streamed_as_in_llama_server() {
    let server = Setup::default().says("Hi");
    let reply = server.chat(&json!({ "stream": true, "return_progress": true }));
    let chunks = reply.events();
    let progress = &chunks.iter().find(|chunk| chunk.get("prompt_progress").is_some()).unwrap();
    let total = server.last_request().prompt.len();
    let prompt_progress = &progress["prompt_progress"];
    assert_eq!((&prompt_progress["total"], &prompt_progress["processed"]), (&json!(total), &json!(0)));
    assert_eq!(progress["choices"], json!([]));
    let timed: Vec<&Value> = chunks.iter().filter(|chunk| chunk.get("timings").is_some()).collect();
    assert_eq!(timed.len(), 1);
    assert_eq!(timed[0]["choices"][0]["finish_reason"], "stop");
    assert_eq!(timed[0]["timings"]["prompt_n"], total);
    let plain = server.chat(&json!({ "stream": true })).events();
    assert!(plain.iter().all(|chunk| chunk.get("prompt_progress").is_none()));
    let refused = server.chat(&json!({ "return_progress": true }));
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("return_progress")));
}

#[test]
fn long_prompt_reports_its_progress() {
    let server = Setup::default().merlin();
    let body = json!({ "prompt": "The owl hunts at night. ".repeat(300), "max_tokens": 1, "stream": true,
                       "return_progress": true });
    let chunks = server.complete(&body).events();
    let processed: Vec<u64> =
        chunks.iter().filter_map(|chunk| chunk.pointer("/prompt_progress/processed")?.as_u64()).collect();
    assert!(processed.len() > 2 && processed.is_sorted() && processed[0] == 0, "{processed:?}");
}

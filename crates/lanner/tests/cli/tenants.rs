//! Clients that must not learn of each other's texts, nor use more than their share: `cache_salt`
//! and several API keys.

use std::{io::Read, time::Duration};

use engine::CacheSalt;
use serde_json::{Value, json};

use crate::support::{
    client::{self, Reply},
    server::{Setup, TestServer, token},
};

const KEYS: &str = "# users\nann:key-of-ann\nbob:key-of-bob\n";

fn keyed() -> Setup {
    Setup { api_keys: KEYS, ..Setup::default() }
}

/// Sends a body with an API key; `line` is method and path.
fn send(server: &TestServer, key: &str, line: &str, body: &Value) -> Reply {
    let headers = format!("Content-Type: application/json\r\nAuthorization: Bearer {key}\r\n");
    let body = if body.is_null() { String::new() } else { body.to_string() };
    client::request(server.address, line, &headers, body.as_bytes())
}

/// A request in each protocol that generates, with `cache_salt` if it is a text.
fn requests(salt: Option<&str>) -> Vec<(&'static str, Value)> {
    let messages = json!([{ "role": "user", "content": "hi" }]);
    let with = |mut body: Value| {
        salt.into_iter().for_each(|salt| body["cache_salt"] = salt.into());
        body
    };
    vec![
        ("POST /v1/chat/completions", with(json!({ "messages": messages }))),
        ("POST /v1/completions", with(json!({ "prompt": "hi" }))),
        ("POST /v1/responses", with(json!({ "input": "hi" }))),
        ("POST /v1/messages", with(json!({ "messages": messages, "max_tokens": 9 }))),
        ("POST /api/chat", with(json!({ "messages": messages, "stream": false }))),
        ("POST /api/generate", with(json!({ "prompt": "hi", "stream": false }))),
    ]
}

/// The salt with which the engine gets each of them.
fn salts(server: &TestServer, key: &str, salt: Option<&str>) -> Vec<Option<CacheSalt>> {
    let ask = |(line, body): (&str, Value)| {
        let reply = send(server, key, line, &body);
        assert_eq!(reply.status, 200, "{line}: {}", reply.body);
        server.last_request().cache_salt
    };
    requests(salt).into_iter().map(ask).collect()
}

/// The salt, which is the same in all protocols.
fn salt(server: &TestServer, key: &str, salt: Option<&str>) -> Option<CacheSalt> {
    let all = salts(server, key, salt);
    assert!(all.iter().all(|other| *other == all[0]), "{all:?}");
    all[0]
}

#[test]
fn cache_salt_reaches_the_engine_in_every_protocol() {
    let server = Setup::default().says("x");
    assert_eq!(salt(&server, "none", None), None);
    let [a, b] = ["a", "b"].map(|given| salt(&server, "none", Some(given)));
    assert!(a.is_some() && b.is_some() && a != b);
    assert_eq!(salt(&server, "other", Some("a")), a, "without keys all clients are the same");
    for (line, mut body) in requests(None) {
        body["cache_salt"] = "".into();
        let reply = send(&server, "none", line, &body);
        assert_eq!(reply.status, 400, "{line}: {}", reply.body);
        assert!(reply.body.contains("cache_salt must have 1 to 512 bytes"), "{}", reply.body);
    }
}

#[test]
fn several_keys_have_salts_of_their_own() {
    let server = keyed().says("x");
    let own = |key, given| salt(&server, key, given);
    let all = [
        own("key-of-ann", None),
        own("key-of-bob", None),
        own("key-of-ann", Some("s")),
        own("key-of-bob", Some("s")),
    ];
    for (i, salt) in all.iter().enumerate() {
        assert!(salt.is_some());
        assert_eq!(all.iter().position(|other| other == salt), Some(i));
    }
    assert_eq!(own("key-of-ann", None), all[0]);
    let shared = Setup { share_prefixes: true, ..keyed() }.says("x");
    assert_eq!(salt(&shared, "key-of-ann", None), None);
    assert_eq!(salt(&shared, "key-of-ann", Some("s")), salt(&shared, "key-of-bob", Some("s")));
    let single = Setup { api_key: Some("k"), ..Setup::default() }.says("x");
    assert_eq!(salt(&single, "k", None), None);
}

/// Prompt tokens that were reused.
fn cached(reply: &Reply) -> u64 {
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[test]
fn prefix_of_another_key_or_salt_is_not_reused_and_not_reported() {
    let server = keyed().merlin();
    let text = "Merlin is a small falcon of the northern hemisphere. ".repeat(4);
    let ask = |key: &str, salt: Option<&str>| {
        let mut body = json!({ "prompt": text, "max_tokens": 1, "temperature": 0 });
        salt.into_iter().for_each(|salt| body["cache_salt"] = salt.into());
        send(&server, key, "POST /v1/completions", &body)
    };
    for (key, salt) in [
        ("key-of-ann", None),
        ("key-of-bob", None),
        ("key-of-ann", Some("s")),
        ("key-of-bob", Some("s")),
        ("key-of-ann", Some("t")),
    ] {
        let first = ask(key, salt);
        assert_eq!(cached(&first), 0, "{key} {salt:?}: {}", first.body);
        let report = &first.json()["usage"]["lanner"]["cache"];
        assert_eq!(report["reusable_tokens"].as_u64().unwrap_or(0), 0, "{report}");
        assert!(report["miss"].is_null(), "{report}");
        assert!(cached(&ask(key, salt)) > 20, "{key} {salt:?}");
    }
}

#[test]
fn idempotency_key_of_another_key_or_salt_is_another_key() {
    let server = keyed().says("x");
    let ask = |key: &str, salt: Option<&str>, prompt: &str| {
        let mut body = json!({ "prompt": prompt, "seed": 1, "idempotency_key": "same" });
        salt.into_iter().for_each(|salt| body["cache_salt"] = salt.into());
        let reply = send(&server, key, "POST /v1/completions", &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.head.contains("idempotent-replayed")
    };
    for (key, salt, prompt) in
        [("key-of-ann", None, "a"), ("key-of-bob", None, "b"), ("key-of-ann", Some("s"), "c")]
    {
        assert!(!ask(key, salt, prompt), "{key} {salt:?}");
        assert!(ask(key, salt, prompt), "{key} {salt:?}");
    }
}

#[test]
fn stored_response_is_there_for_its_key_and_salt_only() {
    let server = keyed().says("x");
    let made =
        send(&server, "key-of-ann", "POST /v1/responses", &json!({ "input": "hi", "cache_salt": "s" }));
    let id = made.json()["id"].as_str().unwrap().to_owned();
    let item = made.json()["output"][0]["id"].clone();
    let status = |key: &str, line: String| send(&server, key, &line, &Value::Null).status;
    for key in ["key-of-bob", "key-of-ann"] {
        let expected = if key == "key-of-ann" { 200 } else { 404 };
        assert_eq!(status(key, format!("GET /v1/responses/{id}")), expected, "{key}");
        assert_eq!(status(key, format!("GET /v1/responses/{id}/input_items")), expected, "{key}");
    }
    assert_eq!(status("key-of-bob", format!("POST /v1/responses/{id}/cancel")), 404);
    let go_on = |key: &str, salt: Option<&str>, body: Value| {
        let mut body = body;
        salt.into_iter().for_each(|salt| body["cache_salt"] = salt.into());
        send(&server, key, "POST /v1/responses", &body).status
    };
    let next = json!({ "input": "go on", "previous_response_id": id });
    let reference = json!({ "input": [{ "type": "item_reference", "id": item }] });
    for (key, salt, expected) in [
        ("key-of-bob", Some("s"), 400),
        ("key-of-ann", Some("t"), 400),
        ("key-of-ann", None, 400),
        ("key-of-ann", Some("s"), 200),
    ] {
        assert_eq!(go_on(key, salt, next.clone()), expected, "{key} {salt:?}");
        assert_eq!(go_on(key, salt, reference.clone()), expected, "{key} {salt:?}");
    }
    assert_eq!(status("key-of-bob", format!("DELETE /v1/responses/{id}")), 404);
    assert_eq!(status("key-of-ann", format!("DELETE /v1/responses/{id}")), 200);
}

#[test]
fn running_request_is_cancelled_by_its_own_key_only() {
    let server = Setup { delay: Duration::from_millis(20), ..keyed() }.script(|_, _| token(97));
    let headers =
        "Content-Type: application/json\r\nAuthorization: Bearer key-of-ann\r\nx-request-id: mine\r\n";
    let body = json!({ "prompt": "a", "max_tokens": 900, "stream": true }).to_string();
    let mut stream = client::open(server.address, "POST /v1/completions", headers, body.as_bytes());
    stream.read_exact(&mut [0; 20]).unwrap();
    let cancel = |key| send(&server, key, "DELETE /v1/requests/mine", &Value::Null).status;
    assert_eq!(cancel("key-of-bob"), 404);
    assert_eq!(cancel("key-of-ann"), 200);
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("abort"), "{rest}");
}

#[test]
fn every_key_is_accepted_and_no_other() {
    let server = Setup { api_key: Some("flag"), ..keyed() }.says("x");
    let status = |key| send(&server, key, "GET /v1/models", &Value::Null).status;
    for key in ["flag", "key-of-ann", "key-of-bob"] {
        assert_eq!(status(key), 200, "{key}");
    }
    for key in ["", "ann", "ann:key-of-ann", "key-of-an", "key-of-anna", "key-of-eve"] {
        assert_eq!(status(key), 401, "{key}");
    }
}

/// Asserts that the reply is a 429 in the shape of its protocol.
fn assert_limited(line: &str, reply: &Reply) {
    assert_eq!(reply.status, 429, "{line}: {}", reply.body);
    assert!(reply.head.to_ascii_lowercase().contains("retry-after: "), "{line}: {}", reply.head);
    let body = reply.json();
    match line {
        "POST /v1/messages" => {
            assert_eq!(
                (&body["type"], &body["error"]["type"]),
                (&json!("error"), &json!("rate_limit_error"))
            );
        }
        _ if line.starts_with("POST /api") => assert!(body["error"].is_string(), "{body}"),
        _ => assert_eq!(body["error"]["code"], "rate_limit_exceeded"),
    }
}

#[test]
fn key_at_its_limit_gets_429_in_every_protocol_and_others_continue() {
    let keys = "ann:key-of-ann rpm_limit=1\nbob:key-of-bob\neve:key-of-eve tpm_limit=2\n";
    let server = Setup { api_keys: keys, ..Setup::default() }.says("x");
    for key in ["key-of-ann", "key-of-eve"] {
        let first = send(&server, key, "POST /v1/completions", &json!({ "prompt": "hi" }));
        assert_eq!(first.status, 200, "{}", first.body);
        for (line, body) in requests(None) {
            assert_limited(line, &send(&server, key, line, &body));
        }
        // Routes that generate nothing have no limit.
        assert_eq!(send(&server, key, "POST /tokenize", &json!({ "prompt": "hi" })).status, 200);
    }
    assert!((0..9).all(|_| {
        send(&server, "key-of-bob", "POST /v1/completions", &json!({ "prompt": "hi" })).status == 200
    }));
}

#[test]
fn requests_at_a_time_are_limited_until_one_ends() {
    let keys = "ann:key-of-ann max_parallel_requests=1\nbob:key-of-bob";
    let server = Setup { api_keys: keys, delay: Duration::from_millis(20), ..Setup::default() }
        .script(|_, _| token(97));
    let headers = "Content-Type: application/json\r\nAuthorization: Bearer key-of-ann\r\n";
    let body = json!({ "prompt": "a", "max_tokens": 900, "stream": true }).to_string();
    let mut stream = client::open(server.address, "POST /v1/completions", headers, body.as_bytes());
    stream.read_exact(&mut [0; 20]).unwrap();
    let ask = |key| send(&server, key, "POST /v1/completions", &json!({ "prompt": "a", "max_tokens": 1 }));
    assert_limited("POST /v1/completions", &ask("key-of-ann"));
    assert_eq!(ask("key-of-bob").status, 200);
    drop(stream);
    let ended = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        ask("key-of-ann").status == 200
    });
    assert!(ended, "the limit counts a request that was cancelled");
}

//! Errors: OpenAI error objects, with a status that distinguishes client faults from server faults.

use serde_json::{Value, json};

use crate::support::{
    client::{self, Reply},
    server::{CONTEXT, Setup, TestServer},
};

/// Asserts an error object and returns its message.
fn check(reply: &Reply, status: u16, param: Value, code: Value) -> String {
    assert_eq!(reply.status, status, "{}", reply.body);
    let body = reply.json();
    let error = body["error"].as_object().unwrap_or_else(|| panic!("no error object: {body}"));
    assert_eq!(error.keys().collect::<Vec<_>>(), ["message", "type", "param", "code"]);
    assert_eq!((&error["param"], &error["code"]), (&param, &code), "{body}");
    let r#type = if status >= 500 { "server_error" } else { "invalid_request_error" };
    assert_eq!(error["type"], r#type);
    let message = error["message"].as_str().unwrap();
    assert!(!message.contains("panicked") && !message.contains(".rs:"), "{message}");
    message.to_owned()
}

// Long: one row per field.
#[test]
fn invalid_chat_field_is_named() {
    let server = Setup::default().says("x");
    let unsupported = json!("unsupported_parameter");
    for (request, param, code) in [
        (json!({ "messages": [] }), "messages", Value::Null),
        (
            json!({ "messages": [{ "role": "user", "content": "x" }], "stop": "x".repeat(1025) }),
            "stop",
            Value::Null,
        ),
        (json!({ "messages": "hi" }), "messages", Value::Null),
        (json!({ "messages": [{ "content": "no role" }] }), "messages", Value::Null),
        (json!({ "messages": [{ "role": "user", "content": 7 }] }), "messages", Value::Null),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": "file:///etc/passwd" } }] }] }),
            "messages[0].content[0].image_url.url",
            json!("invalid_image"),
        ),
        (
            json!({ "continue_final_message": true, "add_generation_prompt": true }),
            "continue_final_message",
            Value::Null,
        ),
        (json!({ "temperature": "hot" }), "temperature", Value::Null),
        (json!({ "temperature": -1 }), "temperature", Value::Null),
        (json!({ "top_p": 0 }), "top_p", Value::Null),
        (json!({ "top_p": 1.5 }), "top_p", Value::Null),
        (json!({ "min_p": 2 }), "min_p", Value::Null),
        (json!({ "repetition_penalty": 0 }), "repetition_penalty", Value::Null),
        (json!({ "max_tokens": 0 }), "max_tokens", Value::Null),
        (json!({ "max_tokens": -3 }), "max_tokens", Value::Null),
        (json!({ "max_completion_tokens": 1.5 }), "max_completion_tokens", Value::Null),
        (json!({ "speculation": "mpt" }), "speculation", Value::Null),
        (json!({ "speculation": "ngram:many" }), "speculation", Value::Null),
        (json!({ "speculation": { "drafter": "mpt" } }), "speculation", Value::Null),
        (json!({ "speculation": { "drafter": "ngram", "depth": 33 } }), "speculation", Value::Null),
        (json!({ "speculation": { "depth": 3 } }), "speculation", Value::Null),
        (json!({ "speculation": 3 }), "speculation", Value::Null),
        (json!({ "n": 0 }), "n", Value::Null),
        (json!({ "n": 17 }), "n", Value::Null),
        (json!({ "logprobs": 3 }), "logprobs", Value::Null),
        (json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs", Value::Null),
        (json!({ "top_logprobs": 2 }), "top_logprobs", Value::Null),
        (json!({ "stop": "" }), "stop", Value::Null),
        (json!({ "stop": ["a", 3] }), "stop", Value::Null),
        (json!({ "stop": vec!["a"; 17] }), "stop", Value::Null),
        (json!({ "logit_bias": { "a": 1 } }), "logit_bias", Value::Null),
        (json!({ "stream_options": { "include_usage": true } }), "stream_options", Value::Null),
        (
            json!({ "stream": true, "stream_options": { "include_usage": "yes" } }),
            "stream_options.include_usage",
            Value::Null,
        ),
        (json!({ "functions": [], "tools": [] }), "functions", Value::Null),
        (json!({ "function_call": "maybe" }), "function_call", Value::Null),
        (json!({ "audio": {} }), "audio", unsupported.clone()),
        (json!({ "modalities": ["text", "audio"] }), "modalities", unsupported.clone()),
        (json!({ "web_search_options": {} }), "web_search_options", unsupported.clone()),
        (json!({ "min_tokens": 1 }), "min_tokens", unsupported.clone()),
        (json!({ "allowed_token_ids": [5] }), "allowed_token_ids", unsupported.clone()),
        (json!({ "bad_words": ["owl"] }), "bad_words", unsupported.clone()),
        (json!({ "use_beam_search": true }), "use_beam_search", unsupported.clone()),
        (json!({ "include_stop_str_in_output": true }), "include_stop_str_in_output", unsupported.clone()),
        (json!({ "truncate_prompt_tokens": 5 }), "truncate_prompt_tokens", unsupported.clone()),
        (json!({ "tool_choice": "required" }), "tool_choice", Value::Null),
        (json!({ "tool_choice": { "type": "function" } }), "tool_choice", Value::Null),
        (json!({ "verbosity": "terse" }), "verbosity", Value::Null),
        (json!({ "service_tier": "flex" }), "service_tier", unsupported),
        (json!({ "service_tier": "best" }), "service_tier", Value::Null),
        (json!({ "service_tier": 1 }), "service_tier", Value::Null),
        (json!({ "user": 7 }), "user", Value::Null),
        (json!({ "safety_identifier": [] }), "safety_identifier", Value::Null),
        (json!({ "prompt_cache_key": {} }), "prompt_cache_key", Value::Null),
        (json!({ "prompt_cache_retention": "1y" }), "prompt_cache_retention", Value::Null),
        (json!({ "store": "yes" }), "store", Value::Null),
        (json!({ "metadata": { "a": 1 } }), "metadata", Value::Null),
        (json!({ "metadata": { "a": "b".repeat(513) } }), "metadata", Value::Null),
        (json!({ "prediction": { "type": "x", "content": "a" } }), "prediction", Value::Null),
        (json!({ "prediction": { "type": "content", "content": 7 } }), "prediction.content", Value::Null),
        (
            json!({ "prediction": { "type": "content", "content": [{ "type": "image", "text": "a" }] } }),
            "prediction",
            Value::Null,
        ),
    ] {
        let reply = server.chat(&request);
        check(&reply, 400, param.into(), code);
    }
    assert_eq!(server.num_requests(), 0);
    let without_effect = json!({ "min_tokens": 0, "allowed_token_ids": null, "bad_words": [],
        "use_beam_search": false, "include_stop_str_in_output": false });
    assert_eq!(server.chat(&without_effect).status, 200);
}

#[test]
fn number_out_of_range_reports_field_value_and_range() {
    let server = Setup::default().says("x");
    for (field, value, expected) in [
        ("temperature", "1e300", "temperature is 1e300; it must be between 0 and 100"),
        ("temperature", "-0.5", "temperature is -0.5; it must be between 0 and 100"),
        ("top_p", "0", "top_p is 0; it must be above 0 and at most 1"),
        ("min_p", "1e39", "min_p is 1e39; it must be between 0 and 1"),
        ("repetition_penalty", "1e-38", "repetition_penalty is 1e-38; it must be between 0.01 and 100"),
        ("presence_penalty", "-1e300", "presence_penalty is -1e300; it must be between -100 and 100"),
        ("frequency_penalty", "100.5", "frequency_penalty is 100.5; it must be between -100 and 100"),
        (
            "logit_bias",
            r#"{"5":1e300}"#,
            "logit_bias of token 5 is 1e300; it must be between -10000 and 10000",
        ),
        ("logit_bias", r#"{"5":1,"05":1}"#, "logit_bias names token 5 twice"),
        ("top_k", "-2", "top_k is -2; it must be 0 or more, or -1 for all tokens"),
        ("timeout", "1e300", "timeout is 1e300; it must be above 0 and at most 1000000000 seconds"),
    ] {
        for (path, prompt) in [
            ("/v1/completions", r#""prompt":"a""#),
            ("/v1/chat/completions", r#""messages":[{"role":"user","content":"a"}]"#),
        ] {
            let body = format!("{{{prompt},\"{field}\":{value}}}");
            let reply = client::post_raw(server.address, path, body.as_bytes());
            assert_eq!(check(&reply, 400, field.into(), Value::Null), expected);
        }
    }
    assert_eq!(server.num_requests(), 0);
    let edges = json!({ "prompt": "a", "temperature": 100, "repetition_penalty": 0.01, "top_k": -1,
                        "logit_bias": { "5": -10_000, "6": 10_000 }, "presence_penalty": -100 });
    assert_eq!(server.complete(&edges).status, 200);
}

#[test]
fn long_value_of_the_wrong_type_is_truncated_in_the_error() {
    let server = Setup::default().says("x");
    let reply = server.chat(&json!({ "temperature": "\u{1F985}".repeat(30_000) }));
    let message = check(&reply, 400, "temperature".into(), Value::Null);
    assert!(message.len() < 1_100 && message.contains("temperature"), "{message}");
    assert!(
        message.contains("expected a number"),
        "the end, which names the expected type, is kept: {message}"
    );
}

#[test]
fn invalid_completion_field_is_named() {
    let server = Setup::default().says("x");
    for (request, param) in [
        (json!({ "prompt": [] }), "prompt"),
        (json!({ "prompt": "" }), "prompt"),
        (json!({ "prompt": [[]] }), "prompt"),
        (json!({ "prompt": 5 }), "prompt"),
        (json!({ "prompt": [-1] }), "prompt"),
        (json!({ "prompt": [1, "a"] }), "prompt"),
        (json!({ "prompt": vec!["a"; 129] }), "prompt"),
        (json!({ "prompt": "a", "max_tokens": 0 }), "max_tokens"),
        (json!({ "prompt": "a", "logprobs": true }), "logprobs"),
        (json!({ "prompt": "a", "logprobs": 21 }), "logprobs"),
    ] {
        check(&server.complete(&request), 400, param.into(), Value::Null);
    }
    for (request, param) in [
        (json!({ "prompt": "a", "suffix": "b" }), "suffix"),
        (json!({ "prompt": "a", "best_of": 2 }), "best_of"),
    ] {
        check(&server.complete(&request), 400, param.into(), "unsupported_parameter".into());
    }
    for request in [json!({ "prompt": [260] }), json!({ "prompt": "a", "logit_bias": { "260": 1 } })] {
        let message = check(&server.complete(&request), 400, Value::Null, Value::Null);
        assert!(message.contains("260"), "{message}");
    }
    assert_eq!(server.complete(&json!({ "prompt": "a", "best_of": 2, "n": 2 })).status, 200);
    let message = check(&server.complete(&json!({})), 400, Value::Null, Value::Null);
    assert!(message.contains("prompt"), "{message}");
}

#[test]
fn prompt_longer_than_the_context_reports_both_lengths() {
    let server = Setup::default().says("x");
    for stream in [false, true] {
        let request = json!({ "prompt": vec![65; CONTEXT + 9], "stream": stream });
        let message =
            check(&server.complete(&request), 400, "prompt".into(), "context_length_exceeded".into());
        // langchain-openai looks for "prompt is too long" in the message.
        let phrase = "This model's maximum context length is 1000 tokens. However, your prompt is too long: it has 1009 tokens";
        assert!(message.starts_with(phrase), "{message}");
    }
    let request = json!({ "messages": [{ "role": "user", "content": "x".repeat(CONTEXT) }] });
    check(&server.chat(&request), 400, "messages".into(), "context_length_exceeded".into());

    // Far too long: refused before tokenising.
    let request = json!({ "messages": [{ "role": "user", "content": "x".repeat(1 << 20) }] });
    let message = check(&server.chat(&request), 400, "messages".into(), "context_length_exceeded".into());
    let (_, most) = message.split_once("bytes, of which the context holds at most ").expect("the most bytes");
    let most: usize = most.split(';').next().expect("a number").parse().expect("a number");
    // A token has many bytes, so this need not fit, but more cannot.
    assert!((CONTEXT..1 << 20).contains(&most) && most.is_multiple_of(CONTEXT), "{message}");
}

#[test]
fn unknown_model_route_or_method_is_refused() {
    let server = Setup::default().says("x");
    let unknown = server.chat(&json!({ "model": "gpt-4" }));
    check(&unknown, 404, "model".into(), "model_not_found".into());
    for name in ["owl", "default"] {
        assert_eq!(server.chat(&json!({ "model": name })).status, 200);
        let described = client::get(server.address, &format!("/v1/models/{name}")).json();
        assert_eq!((&described["id"], &described["object"]), (&json!("owl"), &json!("model")));
        assert_eq!(described["max_model_len"], CONTEXT);
    }
    check(&client::get(server.address, "/v1/models/a/b"), 404, "model".into(), "model_not_found".into());
    check(&client::get(server.address, "/v1/models/%ff"), 400, "model".into(), Value::Null);
    check(&client::get(server.address, "/v1/nothing"), 404, Value::Null, "unknown_url".into());
    check(&client::get(server.address, "/nothing"), 404, Value::Null, "unknown_url".into());
    check(&client::get(server.address, "/v1/completions"), 405, Value::Null, "method_not_allowed".into());

    let list = client::get(server.address, "/v1/models").json();
    assert_eq!((&list["object"], &list["data"][0]["id"]), (&json!("list"), &json!("owl")));
    assert!(list["data"][0]["created"].is_u64() && list["data"][0]["owned_by"].is_string());
}

#[test]
fn unreadable_body_is_refused_and_the_server_continues() {
    let server = Setup::default().says("x");
    let post = |body: &[u8]| client::post_raw(server.address, "/v1/chat/completions", body);
    let garbage: Vec<u8> = (0..1u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let deep = format!("{{\"messages\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    for body in
        [&garbage, b"{\"messages\": [" as &[u8], b"", b"[]", b"null", b"{} {}", b"\xFF\xFE", deep.as_bytes()]
    {
        let reply = post(body);
        assert_eq!(reply.status, 400, "{}", reply.body);
        assert!(reply.json()["error"]["message"].as_str().unwrap().len() < 300);
    }
    let large = json!({ "messages": [{ "role": "user", "content": "x".repeat(3 << 20) }] }).to_string();
    check(&post(large.as_bytes()), 413, Value::Null, "request_too_large".into());
    let plain = client::request(
        server.address,
        "POST /v1/chat/completions",
        "Content-Type: text/plain\r\n",
        br#"{"messages": []}"#,
    );
    check(&plain, 415, Value::Null, Value::Null);
    assert_eq!(server.chat(&json!({})).status, 200);
}

#[test]
fn body_without_content_type_is_read_unless_a_browser_sent_it() {
    let server = Setup::default().says("x");
    let body = br#"{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}"#;
    let ask = |path: &str, headers: &str| {
        client::request(server.address, &format!("POST {path}"), headers, body).status
    };
    for path in ["/v1/chat/completions", "/api/chat", "/v1/messages"] {
        assert_eq!(ask(path, ""), 200, "{path}");
        // Pages that the server answers need the type all the same.
        let own_page = "Origin: http://localhost\r\n";
        let page = "Sec-Fetch-Site: cross-site\r\n";
        for headers in [own_page, page, "Content-Type: text/plain\r\n", "Content-Type: \r\n"] {
            let status = ask(path, headers);
            assert!([400, 415].contains(&status), "{path} {headers}: {status}");
        }
    }
}

#[test]
fn api_key_is_required_on_all_routes_but_health() {
    let server = Setup { api_key: Some("secret"), ..Setup::default() }.says("x");
    let get =
        |path: &str, headers: &str| client::request(server.address, &format!("GET {path}"), headers, b"");
    for headers in [
        "",
        "Authorization: Bearer wrong\r\n",
        "Authorization: Basic secret\r\n",
        "Authorization: secret\r\n",
    ] {
        check(&get("/v1/models", headers), 401, Value::Null, "invalid_api_key".into());
        check(&get("/v1/nothing", headers), 401, Value::Null, "invalid_api_key".into());
    }
    assert_eq!(get("/v1/models", "Authorization: Bearer secret\r\n").status, 200);
    assert_eq!(get("/v1/models", "authorization: bearer secret\r\n").status, 200);
    assert_eq!(get("/health", "").status, 200);
}

#[test]
fn foreign_host_is_refused_on_loopback() {
    let server = Setup { allowed_hosts: vec!["mac.local".into()], ..Setup::default() }.says("x");
    let get = |host: &str| client::request(server.address, "GET /health", &format!("Host: {host}\r\n"), b"");
    for host in
        ["evil.example", "evil.example:11436", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1"]
    {
        check(&get(host), 403, Value::Null, "host_not_allowed".into());
    }
    for host in ["localhost", "LocalHost:80", "127.0.0.1:1", "[::1]:80", "mac.local", "mac.local:11436"] {
        assert_eq!(get(host).status, 200, "{host}");
    }
    let reply = client::request(server.address, "GET /health", "Origin: http://localhost:80\r\n", b"");
    assert!(!reply.head.to_lowercase().contains("access-control"), "{}", reply.head);
}

#[test]
fn failing_engine_gives_500_or_an_error_event() {
    fn failing() -> TestServer {
        Setup::default().script(|_, n| match n {
            0..3 => crate::support::server::token(65),
            _ => engine::scripted::Step::Fail("a kernel gave up".into()),
        })
    }
    let server = failing();
    let message = check(&server.chat(&json!({})), 500, Value::Null, Value::Null);
    assert!(message.contains("a kernel gave up"));

    let reply = server.chat(&json!({ "stream": true }));
    assert_eq!(reply.status, 200);
    assert!(!reply.is_done());
    let events = reply.events();
    assert_eq!(events[3]["choices"][0]["delta"]["content"], "A");
    assert_eq!(events[4]["error"]["type"], "server_error");
    assert_eq!(events.len(), 5);
}

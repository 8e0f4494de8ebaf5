//! `/tokenize`, `/detokenize`, `/tokenizer_info` and `/apply-template`.

use serde_json::{Value, json};

use crate::support::{
    client,
    server::{CONTEXT, IM_END, Setup, TestServer, tokens},
};

fn post(server: &TestServer, path: &str, body: Value) -> Value {
    let reply = client::post(server.address, path, &body);
    assert_eq!(reply.status, 200, "{body}: {}", reply.body);
    reply.json()
}

#[test]
fn tokenize_takes_the_fields_of_both_servers() {
    let server = Setup::default().says("x");
    let ids = tokens("hé<|im_end|>");
    for field in ["content", "prompt"] {
        let answer = post(&server, "/tokenize", json!({ field: "hé<|im_end|>" }));
        assert_eq!(answer, json!({ "tokens": ids, "count": 4, "max_model_len": CONTEXT }));
    }
    let answer = post(&server, "/v1/tokenize", json!({ "content": "hé", "with_pieces": true }));
    let pieces =
        json!([{ "id": 104, "piece": "h" }, { "id": 195, "piece": [195] }, { "id": 169, "piece": [169] }]);
    assert_eq!(answer["tokens"], pieces);
    let answer = post(&server, "/tokenize", json!({ "prompt": "h<|im_end|>", "return_token_strs": true }));
    assert_eq!(answer["token_strs"], json!(["h", "<|im_end|>"]));
    // Longer than the context: it is only counted.
    assert_eq!(post(&server, "/tokenize", json!({ "content": "x".repeat(5000) }))["count"], 5000);
}

#[test]
fn tokenize_of_messages_counts_the_prompt_of_a_chat() {
    let server = Setup::default().says("x");
    let messages = json!([{ "role": "user", "content": "hi" }]);
    server.chat(&json!({ "messages": messages }));
    let chat = server.last_request().prompt;
    assert_eq!(post(&server, "/tokenize", json!({ "messages": messages }))["tokens"], json!(chat));
    let prompt = post(&server, "/apply-template", json!({ "messages": messages }));
    assert_eq!(prompt, json!({ "prompt": server.last_prompt() }));
    let body = json!({ "messages": messages, "add_generation_prompt": false });
    let prompt = post(&server, "/apply-template", body);
    assert_eq!(prompt, json!({ "prompt": "<|im_start|>user\nhi<|im_end|>\n" }));
}

#[test]
fn special_tokens_of_merlin_stand_around_a_prompt_only() {
    let server = Setup::default().merlin();
    let count = |body: Value| post(&server, "/tokenize", body)["count"].as_u64().unwrap();
    let plain = count(json!({ "content": "The owl" }));
    assert_eq!(plain, count(json!({ "prompt": "The owl", "add_special_tokens": false })));
    assert_eq!(
        count(json!({ "content": "The owl", "add_special": true })),
        count(json!({ "prompt": "The owl" }))
    );
    let info = client::get(server.address, "/tokenizer_info").json();
    assert!(info["vocab_size"].as_u64().unwrap() > 1000 && info["chat_template"].is_string(), "{info}");
}

#[test]
fn detokenize_undoes_tokenize() {
    let server = Setup::default().says("x");
    let text = "hé 🦅<|im_end|>";
    let ids = post(&server, "/tokenize", json!({ "content": text }))["tokens"].take();
    assert_eq!(
        post(&server, "/detokenize", json!({ "tokens": ids })),
        json!({ "content": text, "prompt": text })
    );
    let info = client::get(server.address, "/tokenizer_info").json();
    assert_eq!((&info["vocab_size"], &info["eos_token_ids"]), (&json!(260), &json!([IM_END])));
}

#[test]
fn invalid_request_is_refused_by_field() {
    let server = Setup::default().says("x");
    for (path, body, param) in [
        ("/tokenize", json!({}), "content"),
        ("/tokenize", json!({ "content": "a", "prompt": "b" }), "content"),
        ("/tokenize", json!({ "content": 7 }), "content"),
        ("/tokenize", json!({ "content": "a", "parse_special": false }), "parse_special: false"),
        ("/tokenize", json!({ "messages": [] }), "messages"),
        ("/detokenize", json!({ "tokens": [260] }), "tokens"),
        ("/detokenize", json!({ "tokens": [-1] }), "tokens[0]"),
        ("/apply-template", json!({ "messages": [7] }), "messages"),
    ] {
        let reply = client::post(server.address, path, &body);
        assert_eq!(reply.status, 400, "{path} {body}: {}", reply.body);
        assert_eq!(reply.json()["error"]["param"], param, "{path} {body}: {}", reply.body);
    }
    for path in ["/tokenize", "/detokenize", "/apply-template"] {
        let body = json!({ "model": "gpt-4", "content": "a", "tokens": [1], "messages": [{ "role": "user", "content": "a" }] });
        let body = match path {
            "/tokenize" => json!({ "model": "gpt-4", "content": "a" }),
            _ => body,
        };
        assert_eq!(client::post(server.address, path, &body).status, 404, "{path}");
    }
}

//! `/openapi.json` and `/docs`: real answers against the document.

mod conformance;

use ::store::Store;
use serde_json::{Value, json};

use self::conformance::Document;
use crate::support::{
    client,
    server::{Setup, TestServer},
};

/// Operations that this test does not have answered: downloads need a hub, and cancelling needs a
/// request that runs.
const UNANSWERED: [&str; 4] =
    ["POST /api/pull", "POST /v1/models/pull", "POST /v1/responses/{id}/cancel", "DELETE /v1/requests/{id}"];

fn user() -> Value {
    json!([{ "role": "user", "content": "Name a bird." }])
}

fn conversation() -> Value {
    let question =
        json!({ "id": "m1", "parent": null, "role": "user", "text": "Name a bird.", "created": 1 });
    let answer = json!({ "id": "m2", "parent": "m1", "role": "assistant", "text": "Owl.", "created": 2, "model": "merlin" });
    json!({ "leaf": "m2", "messages": { "m1": question, "m2": answer }, "settings": { "system": "x" } })
}

/// An operation, a request of it, and its body.
type Sample = (&'static str, String, Value);

fn same(operation: &'static str, body: Value) -> Sample {
    (operation, operation.to_owned(), body)
}

/// Requests of OpenAI's routes that are answered with 200.
fn openai() -> Vec<Sample> {
    let tools =
        json!([{ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } }]);
    vec![
        same(
            "POST /v1/chat/completions",
            json!({ "messages": user(), "max_tokens": 4, "logprobs": true, "top_logprobs": 2 }),
        ),
        same(
            "POST /v1/chat/completions",
            json!({ "messages": user(), "max_tokens": 99, "tools": tools, "tool_choice": "required", "seed": 1 }),
        ),
        same(
            "POST /v1/completions",
            json!({ "prompt": "The owl", "max_tokens": 4, "logprobs": 2, "return_token_ids": true }),
        ),
        same(
            "POST /v1/completions",
            json!({ "prompt": [[5, 6], [7]], "max_tokens": 0, "echo": true, "logprobs": 1 }),
        ),
        same("POST /v1/embeddings", json!({ "input": ["The owl", "a"], "dimensions": 4 })),
        same("POST /v1/embeddings", json!({ "input": [5, 6], "encoding_format": "base64" })),
        same("POST /v1/rerank", json!({ "query": "owls", "documents": ["a", { "text": "b" }] })),
        same("POST /v2/rerank", json!({ "query": "owls", "documents": ["a"], "return_documents": false })),
        same(
            "POST /v1/responses",
            json!({ "input": "Name a bird.", "max_output_tokens": 4, "include": ["message.output_text.logprobs"] }),
        ),
    ]
}

/// Requests of all other routes that are answered with 200.
fn others(response: &str) -> Vec<Sample> {
    let claude = json!([{ "name": "f", "input_schema": { "type": "object" } }]);
    let stored = |operation: &'static str| (operation, operation.replace("{id}", response), Value::Null);
    let options = json!({ "num_predict": 4 });
    vec![
        stored("GET /v1/responses/{id}/input_items"),
        stored("GET /v1/responses/{id}"),
        stored("DELETE /v1/responses/{id}"),
        same("POST /v1/messages", json!({ "messages": user(), "max_tokens": 4 })),
        same(
            "POST /v1/messages",
            json!({ "messages": user(), "max_tokens": 99, "tools": claude, "tool_choice": { "type": "any" } }),
        ),
        same("POST /v1/messages/count_tokens", json!({ "messages": user() })),
        same(
            "POST /api/chat",
            json!({ "messages": user(), "options": options, "logprobs": true, "stream": false }),
        ),
        same("POST /api/chat", json!({ "messages": [], "stream": false })),
        same("POST /api/generate", json!({ "prompt": "The owl", "options": options, "stream": false })),
        same("POST /api/embed", json!({ "input": ["a", "b"] })),
        same("POST /api/embeddings", json!({ "prompt": "a" })),
        same("GET /api/tags", Value::Null),
        same("GET /api/ps", Value::Null),
        same("POST /api/show", json!({ "model": "default" })),
        same("GET /api/version", Value::Null),
        same(
            "POST /tokenize",
            json!({ "content": "The owl \u{1F989}", "with_pieces": true, "return_token_strs": true }),
        ),
        same("POST /tokenize", json!({ "messages": user() })),
        same("POST /detokenize", json!({ "tokens": [5, 6] })),
        same("POST /apply-template", json!({ "messages": user() })),
        same("GET /tokenizer_info", Value::Null),
        same("GET /v1/models", Value::Null),
        ("GET /v1/models/{id}", "GET /v1/models/default".into(), Value::Null),
        same("GET /health", Value::Null),
        same("GET /v1/mcp", Value::Null),
        same("GET /v1/stats", Value::Null),
        same("GET /version", Value::Null),
        ("PUT /v1/history/{id}", "PUT /v1/history/c1".into(), conversation()),
        ("GET /v1/history/{id}", "GET /v1/history/c1".into(), Value::Null),
        same("GET /v1/history", Value::Null),
        ("GET /v1/history", "GET /v1/history?search=bird&limit=1".into(), Value::Null),
        ("DELETE /v1/history/{id}", "DELETE /v1/history/c1".into(), Value::Null),
        same("GET /v1/stats/history", Value::Null),
        ("GET /v1/stats/history", "GET /v1/stats/history?by=day&days=7".into(), Value::Null),
        same("GET /v1/cache", Value::Null),
        same("DELETE /v1/cache", Value::Null),
        same("GET /openapi.json", Value::Null),
        same("POST /v1/models/unload", json!({ "model": "merlin" })),
        // It is on disk now.
        same("GET /v1/models", Value::Null),
        same("POST /v1/models/load", json!({ "model": "merlin" })),
    ]
}

fn send(server: &TestServer, line: &str, body: &Value) -> client::Reply {
    match body {
        Value::Null => client::request(server.address, line, "", b""),
        body => client::request(
            server.address,
            line,
            "Content-Type: application/json\r\n",
            body.to_string().as_bytes(),
        ),
    }
}

#[test]
fn answers_have_the_shapes_of_the_document() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store.db")).unwrap().store;
    let server = Setup { store: Some(store), ..Setup::default() }.merlin();
    let document = Document(client::get(server.address, "/openapi.json").json());
    let body = json!({ "input": "Name a bird.", "max_output_tokens": 2 });
    let stored = client::post(server.address, "/v1/responses", &body).json();
    let mut left = document.json_operations();
    left.retain(|operation| !UNANSWERED.contains(&&**operation));
    for (operation, line, body) in openai().into_iter().chain(others(stored["id"].as_str().unwrap())) {
        let reply = send(&server, &line, &body);
        assert_eq!(reply.status, 200, "{line} {body}: {}", reply.body);
        document.check_answer(operation, 200, &reply.json());
        left.retain(|one| one != operation);
        if document.item_schema(operation).is_some() {
            let mut streamed = body.clone();
            streamed["stream"] = true.into();
            let reply = send(&server, &line, &streamed);
            let lines = reply.body.lines().map(|line| line.strip_prefix("data: ").unwrap_or(line));
            let items: Vec<Value> = lines.filter_map(|line| serde_json::from_str(line).ok()).collect();
            assert!(!items.is_empty(), "{line}: {}", reply.body);
            items.iter().for_each(|item| document.check_item(operation, item));
        }
    }
    assert!(left.is_empty(), "no answer was checked of {left:?}");
}

#[test]
fn errors_have_the_shapes_of_the_document() {
    let server = Setup::default().says("x");
    let document = Document(client::get(server.address, "/openapi.json").json());
    let mut checked = 0;
    for operation in document.operations() {
        let line = operation.replace(['{', '}'], "");
        for body in ["", "{}", "[1]", r#"{"model": "none", "messages": 7, "input": {}, "prompt": {}}"#] {
            let headers = if body.is_empty() { "" } else { "Content-Type: application/json\r\n" };
            let reply = client::request(server.address, &line, headers, body.as_bytes());
            if reply.status != 200 && !line.starts_with("HEAD") {
                document.check_answer(&operation, reply.status, &reply.json());
                checked += 1;
            }
        }
    }
    assert!(checked > 60, "{checked}");
}

#[test]
fn document_and_page_need_no_key() {
    let server = Setup { api_key: Some("secret"), ..Setup::default() }.says("x");
    let document = client::get(server.address, "/openapi.json");
    assert_eq!((document.status, document.json()["openapi"].as_str()), (200, Some("3.1.0")));
    assert!(!document.body.contains("secret") && !document.body.contains("\"owl\""));
    assert_eq!(client::get(server.address, "/docs").status, 200);
    assert_eq!(client::get(server.address, "/v1/stats").status, 401);
}

#[test]
fn page_refers_to_no_other_host_and_allows_only_its_own_script() {
    let server = Setup::default().says("x");
    let page = client::get(server.address, "/docs");
    let head = page.head.to_ascii_lowercase();
    assert!(head.contains("content-type: text/html"), "{head}");
    let policy = head.lines().find(|line| line.starts_with("content-security-policy: ")).unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    assert_eq!(policy.matches("'sha256-").count(), 2, "{policy}");
    for outside in ["http:", "https:", "src=", "href=\"", "@import", "url(", " style=", " onclick="] {
        assert!(!page.body.contains(outside), "{outside}");
    }
    assert!(page.body.len() < 20_000, "{} bytes", page.body.len());
}

//! Fields that constrain an answer, on both routes and with the built-in model.

use serde_json::{Value, json};

use crate::support::server::{IM_END, Setup, token, tokens};

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": { "name": { "type": "string", "maxLength": 12 }, "age": { "type": "integer" } },
        "required": ["name", "age"],
        "additionalProperties": false,
    })
}

/// Every field that constrains an answer, with a valid value.
fn fields() -> Vec<Value> {
    let gbnf = "root ::= \"yes\" | \"no\"";
    vec![
        json!({ "response_format": { "type": "json_object" } }),
        json!({ "response_format": { "type": "json_object", "schema": schema() } }),
        json!({ "response_format": { "type": "json_schema", "json_schema":
            { "name": "person", "strict": true, "schema": schema() } } }),
        json!({ "guided_json": schema() }),
        json!({ "guided_json": schema().to_string() }),
        json!({ "guided_regex": "[0-9]{3}" }),
        json!({ "guided_choice": ["yes", "no"] }),
        json!({ "guided_grammar": gbnf }),
        json!({ "guided_grammar": "start: \"yes\" | \"no\"" }),
        json!({ "structured_outputs": { "json": schema() } }),
        json!({ "structured_outputs": { "regex": "a+" } }),
        json!({ "structured_outputs": { "choice": ["a"] } }),
        json!({ "structured_outputs": { "grammar": gbnf } }),
        json!({ "structured_outputs": { "json_object": true } }),
        json!({ "grammar": gbnf }),
        json!({ "json_schema": schema() }),
        json!({ "format": "json" }),
        json!({ "format": schema() }),
    ]
}

fn with(base: &Value, more: &Value) -> Value {
    let mut body = base.clone();
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn every_field_constrains_the_engine() {
    let server = Setup::default().says("x");
    for field in fields() {
        assert_eq!(server.chat(&field).status, 200, "{field}");
        assert!(server.last_request().constraint.is_some(), "{field}");
        assert_eq!(server.complete(&with(&json!({ "prompt": "a" }), &field)).status, 200, "{field}");
        assert!(server.last_request().constraint.is_some(), "{field}");
    }
    for field in [
        json!({ "response_format": { "type": "text" } }),
        json!({ "response_format": null, "grammar": "", "format": "" }),
        json!({ "structured_outputs": {} }),
    ] {
        // Thinking has a constraint of its own.
        let body = with(&field, &json!({ "enable_thinking": false }));
        assert_eq!(server.chat(&body).status, 200, "{field}");
        assert!(server.last_request().constraint.is_none(), "{field}");
    }
}

#[test]
fn unusable_constraint_is_400_that_names_it() {
    let server = Setup::default().says("x");
    let format = |schema: Value| json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": schema } } });
    for (field, param, part) in [
        (format(json!({ "not": {} })), "response_format", "`not`"),
        (format(json!({ "type": "array", "uniqueItems": true })), "response_format", "`uniqueItems` at #"),
        (
            format(json!({ "type": "object", "properties": { "a": { "if": {} } } })),
            "response_format",
            "`if` at #/properties/a",
        ),
        (format(json!({ "$ref": "other.json" })), "response_format", "`$ref`"),
        (format(json!(3)), "response_format.json_schema.schema", "JSON Schema"),
        (
            json!({ "response_format": { "type": "json_schema" } }),
            "response_format.json_schema.schema",
            "needs",
        ),
        (json!({ "response_format": { "type": "xml" } }), "response_format.type", "xml"),
        (json!({ "response_format": { "type": "text", "schema": {} } }), "response_format", "schema"),
        (json!({ "guided_json": "{" }), "guided_json", "not valid JSON"),
        (json!({ "guided_regex": "a(" }), "guided_regex", ""),
        (json!({ "guided_choice": [] }), "guided_choice", "no choice"),
        (json!({ "grammar": "root ::= (" }), "grammar", ""),
        (json!({ "guided_grammar": "nothing" }), "guided_grammar", ""),
        (json!({ "structured_outputs": { "regex": "a", "choice": ["b"] } }), "structured_outputs", "one"),
        (json!({ "structured_outputs": { "structural_tag": {} } }), "structured_outputs.structural_tag", ""),
        (json!({ "guided_whitespace_pattern": " " }), "guided_whitespace_pattern", ""),
        (json!({ "guided_regex": "a", "grammar": "root ::= \"a\"" }), "grammar", "exclude each other"),
        (json!({ "guided_regex": "a", "ignore_eos": true }), "ignore_eos", "exclude each other"),
        (json!({ "stop_token_ids": vec![1; 129] }), "stop_token_ids", "128"),
    ] {
        let requests = server.num_requests();
        for reply in [server.chat(&field), server.complete(&with(&json!({ "prompt": "a" }), &field))] {
            let error = reply.json()["error"].clone();
            assert_eq!((reply.status, &error["param"]), (400, &json!(param)), "{field}: {error}");
            assert!(error["message"].as_str().unwrap().contains(part), "{field}: {error}");
        }
        assert_eq!(server.num_requests(), requests, "{field}");
    }
}

#[test]
fn stop_token_ends_the_answer() {
    let server = Setup::default().script(|_, n| token(tokens("abcabc").get(n).copied().unwrap_or(IM_END)));
    let answer = server.complete(&json!({ "prompt": "x", "stop_token_ids": [u32::from(b'c')] })).json();
    assert_eq!(answer["choices"][0]["text"], "ab");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(server.last_request().stop_token_ids, [u32::from(b'c')]);
}

/// Whether a whole answer matches what `field` asks for.
fn matches(field: &Value, text: &str) -> bool {
    let is_person = || {
        let value: Value = serde_json::from_str(text).unwrap_or_default();
        value["name"].as_str().is_some_and(|name| name.chars().count() <= 12) && value["age"].is_number()
    };
    match field.to_string() {
        field if field.contains("\"age\"") => is_person(),
        field if field.contains("json") => {
            serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object())
        }
        field if field.contains("[0-9]") => text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit()),
        field if field.contains("a+") => !text.is_empty() && text.bytes().all(|byte| byte == b'a'),
        field if field.contains("[\"a\"]") => text == "a",
        _ => text == "yes" || text == "no",
    }
}

#[test]
fn merlin_answers_match_at_any_temperature() {
    let server = Setup::default().merlin();
    for (seed, field) in fields().into_iter().enumerate() {
        for (n, stream, speculation) in [(2, false, "auto"), (1, true, "ngram:3")] {
            let more = json!({ "temperature": 2, "seed": seed, "max_tokens": 300, "n": n, "stream": stream,
                               "speculation": speculation, "logprobs": true, "enable_thinking": false });
            let reply = server.chat(&with(&field, &more));
            assert_eq!(reply.status, 200, "{field}: {}", reply.body);
            let choices: Vec<(String, Value)> = match stream {
                true => vec![streamed(&reply.body)],
                false => reply.json()["choices"].as_array().unwrap().iter().map(whole).collect(),
            };
            for (text, reason) in choices {
                assert!(reason != "stop" || matches(&field, &text), "{field}: {text}");
            }
        }
    }
}

#[test]
fn grammar_begins_after_merlins_reasoning() {
    let server = Setup::default().merlin();
    let more = json!({ "temperature": 0, "max_tokens": 600, "enable_thinking": true,
                       "messages": [{ "role": "user", "content": "Is the sky blue?" }] });
    let answer = server.chat(&with(&json!({ "guided_choice": ["yes", "no"] }), &more)).json();
    let choice = &answer["choices"][0];
    if choice["finish_reason"] == "stop" {
        assert!(["yes", "no"].contains(&choice["message"]["content"].as_str().unwrap()), "{choice}");
        assert!(!choice["message"]["reasoning_content"].as_str().unwrap_or_default().is_empty(), "{choice}");
    }
}

fn whole(choice: &Value) -> (String, Value) {
    let text = choice["message"]["content"].as_str().unwrap_or_default();
    (text.to_owned(), choice["finish_reason"].clone())
}

/// Content and finish reason of a stream.
fn streamed(body: &str) -> (String, Value) {
    let (mut text, mut reason) = (String::new(), Value::Null);
    for data in body.lines().filter_map(|line| line.strip_prefix("data: {")) {
        let chunk: Value = serde_json::from_str(&format!("{{{data}")).unwrap();
        let choice = &chunk["choices"][0];
        text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        if !choice["finish_reason"].is_null() {
            reason = choice["finish_reason"].clone();
        }
    }
    (text, reason)
}

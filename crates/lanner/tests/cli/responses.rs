//! `POST /v1/responses` and the stored responses, field by field.

use std::{io::Read, time::Duration};

use serde_json::{Value, json};

use crate::support::{
    client::{self, Reply},
    server::{CONTEXT, Setup, TestServer},
};

fn ask(server: &TestServer, body: &Value) -> Reply {
    client::post(server.address, "/v1/responses", body)
}

fn get(server: &TestServer, path: &str) -> Reply {
    client::get(server.address, &format!("/v1/responses/{path}"))
}

fn text(response: &Value) -> String {
    let items = response["output"].as_array().unwrap().iter().filter(|item| item["type"] == "message");
    items.map(|item| item["content"][0]["text"].as_str().unwrap()).collect()
}

/// The names of server-sent events, which their data repeats.
fn names(reply: &Reply) -> Vec<String> {
    let events = reply.events();
    let names: Vec<String> =
        reply.body.lines().filter_map(|line| line.strip_prefix("event: ")).map(str::to_owned).collect();
    assert_eq!(names, events.iter().map(|event| event["type"].as_str().unwrap()).collect::<Vec<_>>());
    let numbers: Vec<u64> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
    names
}

#[test]
fn response_has_openai_shape() {
    let server = Setup::default().says("Hello");
    let mut answer =
        ask(&server, &json!({ "model": "owl", "input": "hi", "instructions": "Be brief." })).json();
    let id = answer["id"].take();
    assert!(id.as_str().unwrap().starts_with("resp_"));
    assert!(answer["completed_at"].take().as_u64() >= answer["created_at"].take().as_u64());
    let item = answer["output"][0]["id"].take();
    assert!(item.as_str().unwrap().starts_with("msg_"), "{item}");
    answer["usage"].as_object_mut().unwrap().remove("lanner").expect("details");
    assert_eq!(
        answer,
        json!({
            "id": null, "object": "response", "created_at": null, "completed_at": null,
            "status": "completed", "background": false, "error": null, "incomplete_details": null,
            "model": "owl",
            "output": [{ "type": "message", "id": null, "status": "completed", "role": "assistant",
                "content": [{ "type": "output_text", "text": "Hello", "annotations": [], "logprobs": [] }] }],
            "usage": {
                "input_tokens": server.last_request().prompt.len(),
                "input_tokens_details": { "cached_tokens": 0 },
                "output_tokens": 6,
                "output_tokens_details": { "reasoning_tokens": 0 },
                "total_tokens": server.last_request().prompt.len() + 6,
            },
            "instructions": "Be brief.", "max_output_tokens": null, "max_tool_calls": null, "metadata": {},
            "parallel_tool_calls": true, "previous_response_id": null, "prompt_cache_key": null,
            "reasoning": { "effort": null, "summary": null }, "safety_identifier": null,
            "service_tier": "default", "store": true, "temperature": 0.7,
            "text": { "format": { "type": "text" }, "verbosity": "medium" }, "tool_choice": "auto",
            "tools": [], "top_logprobs": 0, "top_p": 1.0, "truncation": "disabled", "user": null,
        })
    );
    let prompt = server.last_prompt();
    assert!(prompt.starts_with("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi"), "{prompt}");
}

#[test]
fn events_come_in_openai_order_with_sequence_numbers() {
    let server = Setup { template: THINKING, ..Setup::default() }.says("<think>Hm.</think>\n\nHi!");
    let reply = ask(&server, &json!({ "input": "hi", "stream": true }));
    assert!(!reply.body.contains("[DONE]"));
    let mut names = names(&reply);
    names.dedup();
    assert_eq!(
        names,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.reasoning_text.delta",
            "response.reasoning_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let events = reply.events();
    let joined = |name: &str| -> String {
        let deltas = events.iter().filter(|event| event["type"] == name);
        deltas.map(|event| event["delta"].as_str().unwrap()).collect()
    };
    assert_eq!(joined("response.reasoning_text.delta"), "Hm.");
    assert_eq!(joined("response.output_text.delta"), "Hi!");
    let last = &events.last().unwrap()["response"];
    let done = events.iter().filter(|event| event["type"] == "response.output_item.done");
    let done: Vec<&Value> = done.map(|event| &event["item"]).collect();
    assert_eq!(&json!(done), &last["output"]);
    assert_eq!(get(&server, last["id"].as_str().unwrap()).json(), *last);
}

/// `TEMPLATE` of a model that reasons: it mentions the markers.
const THINKING: &str = crate::support::server::TEMPLATE;

#[test]
fn stream_ends_with_the_response_of_a_blocking_request() {
    for said in ["", " ", "plain", "<think>x</think>é🦅", "<think>endless"] {
        let server = Setup::default().says(said);
        for request in [
            json!({ "input": "a" }),
            json!({ "input": "a", "max_output_tokens": 3 }),
            json!({ "input": "a", "stop": "ai", "temperature": 0, "seed": 7 }),
            json!({ "input": "a", "include": ["message.output_text.logprobs"], "top_logprobs": 2 }),
        ] {
            let whole = ask(&server, &request).json();
            let mut streamed = request.clone();
            streamed["stream"] = true.into();
            let reply = ask(&server, &streamed);
            names(&reply);
            let mut last = reply.events().pop().unwrap()["response"].take();
            // These differ between two answers.
            for key in ["id", "created_at", "completed_at"] {
                last[key] = whole[key].clone();
            }
            let items = last["output"].as_array_mut().unwrap();
            items
                .iter_mut()
                .enumerate()
                .for_each(|(at, item)| item["id"] = whole["output"][at]["id"].clone());
            assert_eq!(last, whole, "{said:?} {request}");
        }
    }
}

#[test]
fn logprobs_are_those_of_the_text() {
    let server = Setup::default().says("ab");
    let body = json!({ "input": "x", "include": ["message.output_text.logprobs"], "top_logprobs": 1 });
    let answer = ask(&server, &body).json();
    let logprobs = &answer["output"][0]["content"][0]["logprobs"];
    assert_eq!(logprobs[0]["token"], "a");
    assert_eq!(
        (&logprobs[1]["logprob"], &logprobs[1]["top_logprobs"][0]["token"]),
        (&json!(-0.5), &json!("b"))
    );
}

#[test]
fn answer_at_the_token_limit_is_incomplete() {
    let server = Setup::default().says("abcdef");
    let answer = ask(&server, &json!({ "input": "x", "max_output_tokens": 3 })).json();
    assert_eq!(answer["status"], "incomplete");
    assert_eq!(answer["incomplete_details"], json!({ "reason": "max_output_tokens" }));
    assert_eq!(answer["output"][0]["status"], "incomplete");
    assert_eq!(text(&answer), "abc");
    let streamed = ask(&server, &json!({ "input": "x", "max_output_tokens": 3, "stream": true }));
    assert_eq!(names(&streamed).last().unwrap(), "response.incomplete");
}

#[test]
fn previous_response_is_continued_without_its_instructions() {
    let server = Setup::default().says("Hello");
    let first = ask(&server, &json!({ "input": "one", "instructions": "First." })).json();
    let second = ask(
        &server,
        &json!({ "input": "two", "instructions": "Second.", "previous_response_id": first["id"] }),
    );
    let expected = "<|im_start|>system\nSecond.<|im_end|>\n<|im_start|>user\none<|im_end|>\n\
        <|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(server.last_prompt(), expected);
    let third = json!({ "input": "three", "previous_response_id": second.json()["id"], "store": false });
    let third = ask(&server, &third).json();
    assert!(server.last_prompt().contains("user\none<") && server.last_prompt().contains("user\ntwo<"));
    // Not stored.
    let id = third["id"].as_str().unwrap();
    assert_eq!(get(&server, id).status, 404);
    let reply = ask(&server, &json!({ "input": "four", "previous_response_id": id }));
    let error = reply.json()["error"].take();
    assert_eq!((reply.status, &error["code"]), (400, &json!("previous_response_not_found")));
    assert_eq!(error["param"], "previous_response_id");
}

#[test]
fn stored_response_is_read_and_deleted() {
    let server = Setup::default().says("Hello");
    let answer = ask(&server, &json!({ "input": "hi", "metadata": { "a": "b" } })).json();
    let id = answer["id"].as_str().unwrap();
    assert_eq!(get(&server, id).json(), answer);
    assert_eq!(answer["metadata"], json!({ "a": "b" }));
    let delete = || client::request(server.address, &format!("DELETE /v1/responses/{id}"), "", b"");
    assert_eq!(delete().json(), json!({ "id": id, "object": "response", "deleted": true }));
    for reply in [delete(), get(&server, id), get(&server, &format!("{id}/input_items"))] {
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (404, &json!("response_not_found")));
    }
}

#[test]
fn input_items_are_listed_in_pages() {
    let server = Setup::default().says("Hello");
    let input: Vec<Value> = (0..5).map(|i| json!({ "role": "user", "content": format!("m{i}") })).collect();
    let answer = ask(&server, &json!({ "input": input })).json();
    let id = answer["id"].as_str().unwrap();
    let page = |query: &str| get(&server, &format!("{id}/input_items{query}")).json();
    let texts = |page: &Value| -> Vec<String> {
        let items = page["data"].as_array().unwrap().iter();
        items.map(|item| item["content"][0]["text"].as_str().unwrap().to_owned()).collect()
    };
    let all = page("");
    assert_eq!(texts(&all), ["m4", "m3", "m2", "m1", "m0"]);
    assert_eq!((&all["object"], &all["has_more"]), (&json!("list"), &json!(false)));
    assert_eq!(all["data"][0]["type"], "message");
    assert_eq!(all["data"][0]["content"][0]["type"], "input_text");
    let first = page("?order=asc&limit=2");
    assert_eq!((texts(&first), &first["has_more"]), (vec!["m0".into(), "m1".into()], &json!(true)));
    let after = first["last_id"].as_str().unwrap();
    assert_eq!(texts(&page(&format!("?order=asc&limit=9&after={after}"))), ["m2", "m3", "m4"]);
    for query in ["?limit=0", "?limit=101", "?limit=x", "?order=up", "?after=nothing"] {
        assert_eq!(get(&server, &format!("{id}/input_items{query}")).status, 400, "{query}");
    }
}

#[test]
fn item_reference_is_replaced_by_its_item() {
    let server = Setup::default().says("Hello");
    let first = ask(&server, &json!({ "input": "one" })).json();
    let reference = json!({ "type": "item_reference", "id": first["output"][0]["id"] });
    let input =
        json!([{ "role": "user", "content": "one" }, reference, { "role": "user", "content": "two" }]);
    ask(&server, &json!({ "input": input }));
    assert!(server.last_prompt().contains("assistant\nHello<|im_end|>\n<|im_start|>user\ntwo"));
    let reply = ask(&server, &json!({ "input": [{ "type": "item_reference", "id": "msg_0" }] }));
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("input[0].id")));
}

#[test]
fn reasoning_comes_back_encoded_and_is_given_to_the_template() {
    let template = "{%- for m in messages %}{{ m.role }}:{{ m.reasoning_content }}|{{ m.content }}\n{% endfor %}\
        {%- if add_generation_prompt %}assistant:{% endif %}{# <think> #}";
    let server = Setup { template, ..Setup::default() }.says("<think>Because.</think>Yes");
    let body = json!({ "input": "one", "store": false, "include": ["reasoning.encrypted_content"] });
    let mut answer = ask(&server, &body).json();
    let mut items = answer["output"].take();
    assert_eq!(items[0]["content"][0], json!({ "type": "reasoning_text", "text": "Because." }));
    // Some clients drop the text and keep what is encoded.
    items[0].as_object_mut().unwrap().remove("content");
    let mut input = vec![json!({ "role": "user", "content": "one" })];
    input.extend(items.as_array().unwrap().iter().cloned());
    input.push(json!({ "role": "user", "content": "two" }));
    ask(&server, &json!({ "input": input, "store": false }));
    assert!(server.last_prompt().contains("assistant:Because.|Yes\n"), "{}", server.last_prompt());
}

#[test]
fn bad_response_request_is_400_that_names_the_field() {
    let server = Setup::default().says("x");
    for (body, param) in [
        (json!({}), json!("input")),
        (json!({ "input": [] }), json!("input")),
        (json!({ "input": 7 }), json!("input")),
        (json!({ "input": [{ "role": "user" }] }), json!("input[0].content")),
        (json!({ "input": "x".repeat(2 * CONTEXT) }), json!("input")),
        (json!({ "input": "a", "max_output_tokens": 0 }), json!("max_output_tokens")),
        (json!({ "input": "a", "max_tokens": 9 }), json!("max_tokens")),
        (json!({ "input": "a", "n": 2 }), json!("n")),
        (json!({ "input": "a", "temperature": -1 }), json!("temperature")),
        (json!({ "input": "a", "background": true }), json!("background")),
        (json!({ "input": "a", "conversation": "conv_1" }), json!("conversation")),
        (json!({ "input": "a", "prompt": { "id": "p" } }), json!("prompt")),
        (json!({ "input": "a", "include": ["owls"] }), json!("include")),
        (json!({ "input": "a", "metadata": { "a": 7 } }), json!("metadata")),
        (json!({ "input": "a", "text": { "verbosity": "terse" } }), json!("text.verbosity")),
        (json!({ "input": "a", "truncation": "some" }), json!("truncation")),
        (json!({ "input": "a", "top_logprobs": 21 }), json!("top_logprobs")),
        (json!({ "input": "a", "tools": [{ "type": "mcp" }] }), json!("tools[0].server_label")),
        (json!({ "input": "a", "tools": [{ "type": "function" }] }), json!("tools[0].name")),
        // A tool that is not offered counts.
        (
            json!({ "input": "a", "tools": [{ "type": "web_search" }, { "type": "function", "name": "a b" }] }),
            json!("tools[1].name"),
        ),
        (json!({ "input": "a", "tool_choice": { "type": "file_search" } }), json!("tool_choice")),
    ] {
        let reply = ask(&server, &body);
        let shown: String = body.to_string().chars().take(80).collect();
        assert_eq!(reply.status, 400, "{shown}: {}", reply.body);
        assert_eq!(reply.json()["error"]["param"], param, "{shown}: {}", reply.body);
    }
    let other = ask(&server, &json!({ "input": "a", "model": "gpt-4" }));
    assert_eq!((other.status, &other.json()["error"]["code"]), (404, &json!("model_not_found")));
}

#[test]
fn response_in_progress_is_read_and_cancelled() {
    // It is cancelled long before its end.
    let server = Setup { delay: Duration::from_millis(200), ..Setup::default() }.says(ENDLESS);
    let body = json!({ "input": "a", "stream": true }).to_string();
    let headers = "Content-Type: application/json\r\n";
    let mut stream = client::open(server.address, "POST /v1/responses", headers, body.as_bytes());
    let mut seen = String::new();
    while !seen.contains("output_text.delta") {
        let mut bytes = [0; 4096];
        let read = stream.read(&mut bytes).unwrap();
        assert!(read > 0, "the stream ended after {seen}");
        seen.push_str(&String::from_utf8_lossy(&bytes[..read]));
    }
    let at = seen.find("resp_").unwrap();
    let id: String = seen[at..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    assert_eq!(get(&server, &id).json()["status"], "in_progress");
    let cancel = || client::request(server.address, &format!("POST /v1/responses/{id}/cancel"), "", b"");
    let cancelled = cancel();
    assert_eq!((cancelled.status, &cancelled.json()["status"]), (200, &json!("cancelled")));
    stream.read_to_string(&mut seen).unwrap();
    assert!(seen.contains("\"status\":\"cancelled\""), "{seen}");
    assert_eq!(get(&server, &id).json()["status"], "cancelled");
    assert_eq!(cancel().status, 400);
    assert_eq!(client::request(server.address, "POST /v1/responses/resp_0/cancel", "", b"").status, 404);
}

const ENDLESS: &str =
    "owls hunt at night and sleep by day; owls hunt at night and sleep by day; owls hunt at night";

/// Sends 20 turns, each built from its number and the previous response; returns the share of
/// reusable tokens that were reused.
fn session(server: &TestServer, turn: impl Fn(usize, &Value) -> Value) -> f64 {
    let mut response = Value::Null;
    for n in 0..20 {
        let reply = ask(server, &turn(n, &response));
        assert_eq!(reply.status, 200, "{}", reply.body);
        response = reply.json();
    }
    let stats = client::get(server.address, "/v1/cache").json();
    let count = |name: &str| stats[name].as_f64().unwrap();
    assert!(count("reusable_tokens") > 1000.0, "{stats}");
    count("reused_tokens") / count("reusable_tokens")
}

/// Instructions as long as a coding agent's, in proportion to the tokens that a turn adds.
fn instructions() -> String {
    let rule = |n: usize| format!("Rule {n}: add the numbers with care and answer with the sum alone. ");
    (1..40).map(rule).collect()
}

#[test]
fn session_of_20_turns_reuses_the_prefix() {
    let server = Setup::default().merlin();
    let share = session(&server, |n, last| {
        json!({ "input": format!("What is {n} + {n}?"), "instructions": instructions(),
            "previous_response_id": last["id"], "max_output_tokens": 24, "temperature": 0 })
    });
    assert!(share >= 0.99, "{share} of what is reusable is reused");
}

#[test]
fn session_that_sends_its_items_again_reuses_the_prefix() {
    let server = Setup::default().merlin();
    let items = std::cell::RefCell::new(vec![]);
    let share = session(&server, |n, last| {
        let mut items = items.borrow_mut();
        items.extend(last["output"].as_array().into_iter().flatten().cloned());
        items.push(json!({ "role": "user", "content": format!("What is {n} + {n}?") }));
        json!({ "input": *items, "instructions": instructions(), "store": false,
            "max_output_tokens": 24, "temperature": 0 })
    });
    assert!(share >= 0.99, "{share} of what is reusable is reused");
}

#[test]
fn text_format_constrains_the_answer() {
    let server = Setup::default().merlin();
    let schema = json!({ "type": "object", "properties": { "ok": { "type": "boolean" } }, "required": ["ok"],
        "additionalProperties": false });
    let format = json!({ "type": "json_schema", "name": "a", "strict": true, "schema": schema });
    for seed in 0..3 {
        let body = json!({ "input": "Is the sky blue?", "text": { "format": format }, "temperature": 2, "seed": seed });
        let answer = ask(&server, &body).json();
        let value: Value = serde_json::from_str(&text(&answer)).unwrap();
        assert!(value["ok"].is_boolean(), "{answer}");
        assert_eq!(answer["text"]["format"], format);
    }
    let both = json!({ "input": "x", "text": { "format": format }, "response_format": { "type": "text" } });
    assert_eq!(ask(&server, &both).status, 400);
}

#[test]
fn required_tool_is_called_with_valid_arguments() {
    let server = Setup::default().merlin();
    let parameters = json!({ "type": "object", "properties": { "city": { "type": "string", "maxLength": 12 } },
        "required": ["city"], "additionalProperties": false });
    let tools = json!([{ "type": "function", "name": "get_weather", "parameters": parameters }]);
    let mut body = json!({ "input": "What is the weather in Oslo?", "tools": tools, "tool_choice": "required",
        "parallel_tool_calls": false, "temperature": 0 });
    let answer = ask(&server, &body).json();
    let calls: Vec<&Value> =
        answer["output"].as_array().unwrap().iter().filter(|item| item["type"] == "function_call").collect();
    let [call] = calls[..] else { panic!("{answer}") };
    assert_eq!(call["name"], "get_weather");
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["city"].is_string(), "{call}");
    body["stream"] = json!(true);
    let streamed = ask(&server, &body);
    let deltas: String = streamed
        .events()
        .iter()
        .filter(|event| event["type"] == "response.function_call_arguments.delta")
        .map(|event| event["delta"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(deltas, call["arguments"].as_str().unwrap());
    let result = json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "rain, 4 C" });
    let next =
        json!({ "input": [result], "previous_response_id": answer["id"], "tools": tools, "temperature": 0 });
    assert_eq!(ask(&server, &next).json()["status"], "completed");
}

/// The grammar of a patch with short lines.
const PATCH: &str = r#"
start: "*** Begin Patch" LF file "*** End Patch" LF?
file: "*** Update File: " /[a-z]{1,8}\.rs/ LF "@@" LF line~1..3
line: ("+" | "-" | " ") /(.{0,12})/ LF
%import common.LF
"#;

#[test]
fn custom_tool_with_a_grammar_gets_an_input_that_matches() {
    let server = Setup::default().merlin();
    for (syntax, definition) in [("lark", PATCH), ("regex", "[*]{3} (Begin|End) Patch\\n")] {
        let format = json!({ "type": "grammar", "syntax": syntax, "definition": definition });
        let tool = json!({ "type": "custom", "name": "apply_patch", "description": "Edits files.", "format": format });
        for seed in 0..4 {
            let body = json!({ "input": "Fix the test.", "tools": [tool], "seed": seed, "temperature": 2,
                "tool_choice": { "type": "custom", "name": "apply_patch" }, "stream": true });
            let reply = ask(&server, &body);
            assert_eq!(reply.status, 200, "{}", reply.body);
            let events = reply.events();
            let of = |name: &str| events.iter().filter(|event| event["type"] == name).collect::<Vec<_>>();
            let [done] = of("response.custom_tool_call_input.done")[..] else { panic!("{}", reply.body) };
            let input = done["input"].as_str().unwrap();
            check_patch(input, syntax);
            let deltas = of("response.custom_tool_call_input.delta");
            let joined: String = deltas.iter().map(|event| event["delta"].as_str().unwrap()).collect();
            assert_eq!(joined, input);
            assert!(deltas.len() > 1 || syntax == "regex", "it is streamed: {}", reply.body);
            let response = &events.last().unwrap()["response"];
            let items = response["output"].as_array().unwrap();
            let call = items.iter().find(|item| item["type"] == "custom_tool_call").unwrap();
            assert_eq!((&call["input"], &call["name"]), (&json!(input), &json!("apply_patch")));
            assert_eq!(response["tools"], json!([tool]), "as the client sent it");
        }
    }
}

fn check_patch(input: &str, syntax: &str) {
    let lines: Vec<&str> = input.lines().collect();
    if syntax == "regex" {
        return assert!(["*** Begin Patch\n", "*** End Patch\n"].contains(&input), "{input:?}");
    }
    let [begin, file, place, changes @ .., end] = &lines[..] else { panic!("{input:?}") };
    assert_eq!([*begin, *place, *end], ["*** Begin Patch", "@@", "*** End Patch"], "{input:?}");
    assert!(file.starts_with("*** Update File: ") && file.ends_with(".rs"), "{input:?}");
    assert!((1..=3).contains(&changes.len()), "{input:?}");
    assert!(changes.iter().all(|line| line.starts_with(['+', '-', ' '])), "{input:?}");
}

#[test]
fn stored_items_beyond_the_limits_are_400_and_unknown_fields_are_dropped() {
    let server = Setup::default().says("Hello");
    // The template does not show the identity of a call, so the prompt stays short.
    let call = json!({ "type": "function_call", "id": "a", "call_id": "c".repeat(900_000), "name": "f",
        "arguments": "{}", "junk": "j".repeat(900_000) });
    let input = json!([{ "role": "user", "content": "hi" }, call]);
    let reply = ask(&server, &json!({ "input": input }));
    assert_eq!(reply.status, 200, "{:.300}", reply.body);
    let items = get(&server, &format!("{}/input_items", reply.json()["id"].as_str().unwrap()));
    assert!(items.body.len() < 1_000_000, "an unknown field is stored: {} bytes", items.body.len());
    let reference = json!({ "type": "item_reference", "id": "a" });
    let mut input = vec![reference; 6];
    input.insert(0, json!({ "role": "user", "content": "hi" }));
    assert_eq!(ask(&server, &json!({ "input": input, "store": false })).status, 200);
    for count in [10, 3333] {
        let reference = json!({ "type": "item_reference", "id": "a" });
        let reply = ask(&server, &json!({ "input": vec![reference; count] }));
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("input")), "{count}");
    }
    // A chain counts as its items do.
    let first = ask(&server, &json!({ "input": input })).json();
    let next = ask(&server, &json!({ "input": input[..5], "previous_response_id": first["id"] }));
    assert_eq!((next.status, &next.json()["error"]["param"]), (400, &json!("input")));
}

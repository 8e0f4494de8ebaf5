//! Tool calls over `POST /v1/chat/completions`.

use serde_json::{Value, json};

use crate::support::{client, server::Setup};

const CALL: &str = "<think>\nhm <tool_call>\n</think>\n\nI look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";

fn weather() -> Value {
    let city = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    json!([{ "type": "function", "function": { "name": "get_weather", "parameters": city } }])
}

#[test]
fn tool_call_becomes_message_tool_calls() {
    let server = Setup::default().says(CALL);
    let answer = server.chat(&json!({ "tools": weather() })).json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "I look.");
    assert_eq!(choice["message"]["reasoning_content"], "hm <tool_call>");
    let call = &choice["message"]["tool_calls"][0];
    assert!(call["id"].as_str().unwrap().starts_with("call_"), "{call}");
    assert_eq!(call["type"], "function");
    assert_eq!(call["function"], json!({ "name": "get_weather", "arguments": "{\"city\": \"Oslo\"}" }));

    let answer = server.chat(&json!({ "tools": weather(), "tool_choice": "none" })).json();
    assert!(answer["choices"][0]["message"]["content"].as_str().unwrap().contains("<tool_call>"));
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
}

#[test]
fn call_without_text_has_null_content() {
    let server = Setup::default().says("<tool_call>{\"name\": \"get_weather\"}</tool_call>");
    let answer = server.chat(&json!({ "tools": weather() })).json();
    assert_eq!(answer["choices"][0]["message"]["content"], Value::Null);
    assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], "{}");
}

#[test]
fn tool_call_streams_as_deltas() {
    let server = Setup::default().says(CALL);
    let reply = server.chat(&json!({ "tools": weather(), "stream": true }));
    assert!(reply.is_done());
    let events = reply.events();
    let deltas: Vec<&Value> = events.iter().map(|event| &event["choices"][0]["delta"]).collect();
    let calls: Vec<&Value> = deltas.iter().filter_map(|delta| delta.get("tool_calls")).collect();
    let first = &calls[0][0];
    assert_eq!((&first["index"], &first["type"]), (&json!(0), &json!("function")));
    assert_eq!(first["function"], json!({ "name": "get_weather", "arguments": "" }));
    let arguments: String =
        calls[1..].iter().map(|call| call[0]["function"]["arguments"].as_str().unwrap()).collect();
    assert_eq!(arguments, "{\"city\": \"Oslo\"}");
    assert!(calls[1..].iter().all(|call| call[0].get("id").is_none() && call[0]["index"] == 0));
    let content: String = deltas.iter().filter_map(|delta| delta["content"].as_str()).collect();
    assert_eq!(content, "I look.");
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[test]
fn invalid_tools_are_refused_by_field() {
    let server = Setup::default().says("x");
    let tool = |function: Value| json!([{ "type": "function", "function": function }]);
    let twice = [tool(json!({ "name": "f" })), tool(json!({ "name": "f" }))];
    let custom = |custom: Value| json!({ "type": "custom", "custom": custom });
    let twice: Vec<&Value> = twice.iter().flat_map(|tools| tools.as_array().unwrap()).collect();
    for (body, param) in [
        (json!({ "tools": [7] }), "tools[0].type"),
        (json!({ "tools": [{ "type": "retrieval" }] }), "tools[0].type"),
        (json!({ "tools": [{ "type": "function" }] }), "tools[0].function"),
        (json!({ "tools": tool(json!({})) }), "tools[0].function.name"),
        (json!({ "tools": tool(json!({ "name": "a b" })) }), "tools[0].function.name"),
        (json!({ "tools": tool(json!({ "name": "a".repeat(129) })) }), "tools[0].function.name"),
        (json!({ "tools": tool(json!({ "name": "f", "parameters": [] })) }), "tools[0].function.parameters"),
        (json!({ "tools": twice }), "tools[1].function.name"),
        (json!({ "tools": [custom(json!(null))] }), "tools[0].custom.name"),
        (json!({ "tools": [custom(json!({ "name": "a b" }))] }), "tools[0].custom.name"),
        (json!({ "tools": [twice[0], custom(json!({ "name": "f" }))] }), "tools[1].custom.name"),
        (
            json!({ "tools": [custom(json!({ "name": "f", "format": { "type": "xml" } }))] }),
            "tools[0].custom.format",
        ),
        (
            json!({ "tools": weather(), "tool_choice": { "type": "custom", "custom": { "name": "g" } } }),
            "tool_choice",
        ),
        (json!({ "tools": weather(), "tool_choice": "maybe" }), "tool_choice"),
        (
            json!({ "tools": weather(), "tool_choice": { "type": "function", "function": { "name": "g" } } }),
            "tool_choice",
        ),
        (
            json!({ "tools": weather(), "tool_choice": { "type": "allowed_tools", "allowed_tools": {} } }),
            "tool_choice",
        ),
    ] {
        let reply = server.chat(&body);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)), "{}", reply.body);
    }
    let plain = Setup { template: "{{ messages[0].content }}", ..Setup::default() }.says("x");
    let reply = plain.chat(&json!({ "tools": weather() }));
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("tools")), "{}", reply.body);
    assert_eq!(plain.num_requests() + server.num_requests(), 0);
}

const PATCH: &str = "<tool_call>\n{\"name\": \"apply_patch\", \"arguments\": {\"input\": \"*** Begin\\n+\\u00e9\"}}\n</tool_call>";

#[test]
fn custom_tool_is_called_with_an_input() {
    let template = "{#- <tool_call> -#}{% for m in messages %}{{ m.content }}{% if m.tool_calls %}\
        {{ m.tool_calls | tojson }}{% endif %}\n{% endfor %}";
    let server = Setup { template, ..Setup::default() }.says(PATCH);
    let custom = json!({ "type": "custom", "custom": { "name": "apply_patch" } });
    let tools = json!([weather()[0], custom]);
    let answer = server.chat(&json!({ "tools": tools })).json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let call = &choice["message"]["tool_calls"][0];
    assert!(call["id"].as_str().unwrap().starts_with("call_"), "{call}");
    assert_eq!((&call["type"], &call["function"]), (&json!("custom"), &Value::Null));
    assert_eq!(call["custom"], json!({ "name": "apply_patch", "input": "*** Begin\n+é" }));

    let reply = server.chat(&json!({ "tools": tools, "tool_choice": custom, "stream": true }));
    let events = reply.events();
    let deltas = events.iter().filter_map(|event| event["choices"][0]["delta"]["tool_calls"].as_array());
    let [begin, more @ ..] = &deltas.flatten().collect::<Vec<_>>()[..] else { panic!("{}", reply.body) };
    assert_eq!((&begin["type"], &begin["id"].is_string()), (&json!("custom"), &true));
    assert_eq!(begin["custom"], json!({ "name": "apply_patch", "input": "" }));
    let input: String = more.iter().map(|delta| delta["custom"]["input"].as_str().unwrap()).collect();
    assert_eq!(input, "*** Begin\n+é");
    assert!(more.len() > 1 && more.iter().all(|delta| delta.get("function").is_none()), "{}", reply.body);

    // Calls of earlier turns reach the template as those of a function of one text.
    let turns = json!([{ "role": "user", "content": "x" },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": call["id"], "content": "Done" }]);
    assert_eq!(server.chat(&json!({ "messages": turns, "tools": tools })).status, 200);
    let prompt = server.last_prompt();
    assert!(prompt.contains("\"function\"") && prompt.contains("apply_patch"), "{prompt}");
    assert!(prompt.contains("input") && prompt.contains("*** Begin"), "{prompt}");
    assert!(!prompt.contains("\"custom\""), "{prompt}");
}

#[test]
fn input_of_a_custom_tool_matches_its_grammar() {
    let server = Setup::default().merlin();
    let grammar =
        json!({ "syntax": "lark", "definition": "start: (\"+\" /[a-z]{1,8}/ LF)~1..3\n%import common.LF" });
    let custom = json!({ "name": "add", "format": { "type": "grammar", "grammar": grammar } });
    for seed in 0..4 {
        let body = json!({ "tools": [{ "type": "custom", "custom": custom }], "tool_choice": "required",
            "parallel_tool_calls": false, "seed": seed, "temperature": 2 });
        let reply = server.chat(&body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        let call = reply.json()["choices"][0]["message"]["tool_calls"][0].take();
        let input = call["custom"]["input"].as_str().unwrap_or_else(|| panic!("{}", reply.body));
        let lines: Vec<&str> = input.lines().collect();
        let is_word = |line: &str| line.len() < 9 && line.chars().all(|c| c.is_ascii_lowercase());
        let matches = |line: &&str| line.strip_prefix('+').is_some_and(is_word);
        assert!((1..=3).contains(&lines.len()) && lines.iter().all(matches), "{input:?}");
    }
}

/// Tools with strings, numbers and choices.
fn many() -> Value {
    let tool = |name: &str, properties: Value, required: Value| {
        let parameters = json!({ "type": "object", "properties": properties, "required": required });
        json!({ "type": "function", "function": { "name": name, "parameters": parameters } })
    };
    json!([
        tool("get_weather", json!({ "city": { "type": "string", "maxLength": 20 } }), json!(["city"])),
        tool(
            "set_timer",
            json!({ "minutes": { "type": "integer", "minimum": 1, "maximum": 90 }, "loud": { "type": "boolean" } }),
            json!(["minutes"]),
        ),
        tool("paint", json!({ "color": { "enum": ["red", "green"] } }), json!(["color"])),
    ])
}

/// Panics if the arguments of a call are not valid.
fn check_arguments(call: &Value) {
    let function = &call["function"];
    let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
    let known =
        |names: &[&str]| arguments.as_object().unwrap().keys().all(|key| names.contains(&key.as_str()));
    let valid = match function["name"].as_str().unwrap() {
        "get_weather" => known(&["city"]) && arguments["city"].as_str().unwrap().chars().count() <= 20,
        "set_timer" => {
            let loud = arguments.get("loud").is_none_or(Value::is_boolean);
            known(&["minutes", "loud"]) && loud && (1..=90).contains(&arguments["minutes"].as_i64().unwrap())
        }
        "paint" => known(&["color"]) && ["red", "green"].contains(&arguments["color"].as_str().unwrap()),
        other => panic!("{other}"),
    };
    assert!(valid, "{call}");
}

#[test]
fn merlin_at_temperature_two_writes_only_valid_calls() {
    let requests: u64 = std::env::var("LANNER_TOOL_CALLS").map_or(8, |count| count.parse().unwrap());
    let server = Setup::default().merlin();
    let mut calls = 0;
    for seed in 0..requests {
        let body = json!({ "tools": many(), "tool_choice": "required", "temperature": 2, "seed": seed,
                           "parallel_tool_calls": seed % 2 == 0 });
        let reply = server.chat(&body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        let choice = &reply.json()["choices"][0];
        assert_eq!(
            (&choice["finish_reason"], &choice["message"]["content"]),
            (&json!("tool_calls"), &Value::Null),
            "{choice}"
        );
        let found = choice["message"]["tool_calls"].as_array().unwrap();
        assert!(seed % 2 == 0 || found.len() == 1, "{choice}");
        found.iter().for_each(check_arguments);
        calls += found.len();
    }
    eprintln!("{calls} calls of {requests} requests are valid");
}

#[test]
fn merlin_calls_the_tool_that_the_question_needs() {
    let server = Setup::default().merlin();
    let messages = json!([{ "role": "user", "content": "What is the weather in Oslo?" }]);
    let named = json!({ "type": "function", "function": { "name": "paint" } });
    for (choice, name) in [(json!("auto"), "get_weather"), (named, "paint")] {
        for speculation in ["off", "auto"] {
            let body = json!({ "tools": many(), "tool_choice": choice, "temperature": 0, "messages": messages,
                               "speculation": speculation, "n": 2, "logprobs": true });
            let answer = server.chat(&body).json();
            for answer in answer["choices"].as_array().unwrap() {
                assert_eq!(answer["finish_reason"], "tool_calls", "{answer}");
                let call = &answer["message"]["tool_calls"][0];
                assert_eq!(call["function"]["name"], name, "{answer}");
                check_arguments(call);
                assert!(!answer["logprobs"]["content"].as_array().unwrap().is_empty());
            }
        }
    }
}

#[test]
fn deprecated_functions_are_answered_in_kind() {
    let server = Setup::default().merlin();
    let functions: Vec<Value> =
        many().as_array().unwrap().iter().map(|tool| tool["function"].clone()).collect();
    let body = json!({ "functions": functions, "function_call": { "name": "set_timer" }, "temperature": 0 });
    let answer = server.chat(&body).json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "function_call", "{answer}");
    check_arguments(&json!({ "function": choice["message"]["function_call"] }));
    assert!(choice["message"].get("tool_calls").is_none());
    let mut body = body;
    body["stream"] = json!(true);
    let events = server.chat(&body).events();
    let streamed: String = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["function_call"]["arguments"].as_str())
        .collect();
    assert_eq!(streamed, choice["message"]["function_call"]["arguments"].as_str().unwrap());
}

#[test]
fn answer_with_tools_and_format_is_a_call_or_in_the_format() {
    let server = Setup::default().merlin();
    let format = json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": {
        "type": "object", "properties": { "ok": { "type": "boolean" } }, "required": ["ok"],
        "additionalProperties": false } } });
    for seed in 0..4 {
        let body = json!({ "tools": many(), "response_format": format, "temperature": 2, "seed": seed });
        let answer = server.chat(&body).json();
        let choice = &answer["choices"][0];
        match choice["message"]["content"].as_str() {
            Some(text) => {
                assert!(serde_json::from_str::<Value>(text).unwrap()["ok"].is_boolean(), "{answer}")
            }
            None => choice["message"]["tool_calls"].as_array().unwrap().iter().for_each(check_arguments),
        }
    }
}

#[test]
fn allowed_tools_are_the_only_ones_called() {
    let server = Setup::default().merlin();
    let allowed = |mode: &str| {
        let tools = json!([{ "type": "function", "function": { "name": "set_timer" } },
                           { "type": "function", "function": { "name": "paint" } }]);
        json!({ "type": "allowed_tools", "allowed_tools": { "mode": mode, "tools": tools } })
    };
    for (mode, seed) in [("required", 1), ("required", 2), ("required", 3), ("auto", 4)] {
        let body = json!({ "tools": many(), "tool_choice": allowed(mode), "temperature": 2, "seed": seed });
        let reply = server.chat(&body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        let message = &reply.json()["choices"][0]["message"];
        let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
        assert!(mode == "auto" || !calls.is_empty(), "{message}");
        for call in &calls {
            assert_ne!(call["function"]["name"], "get_weather", "{message}");
            check_arguments(call);
        }
    }
}

#[test]
fn stop_string_in_arguments_does_not_end_the_call() {
    let server = Setup::default().says(CALL);
    let answer = server.chat(&json!({ "tools": weather(), "stop": ["Oslo", "city"] })).json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"city\": \"Oslo\"}");
    let answer = server.chat(&json!({ "tools": weather(), "stop": "look" })).json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "stop", "{answer}");
    assert_eq!(choice["message"]["content"], "I ");
    assert!(choice["message"].get("tool_calls").is_none(), "{answer}");
}

#[test]
fn streamed_calls_have_the_usage_of_whole_ones() {
    let server = Setup::default().says(CALL);
    let whole = server.chat(&json!({ "tools": weather() })).json()["usage"].clone();
    let options = json!({ "include_usage": true });
    let body = json!({ "tools": weather(), "stream": true, "stream_options": options });
    let last = server.chat(&body).events().pop().unwrap();
    assert_eq!(last["choices"], json!([]));
    for field in ["prompt_tokens", "completion_tokens", "total_tokens"] {
        assert!(whole[field].as_u64().unwrap() > 0, "{whole}");
        assert_eq!(last["usage"][field], whole[field], "{field}");
    }
}

#[test]
fn tool_dialect_of_the_settings_replaces_the_detected_one() {
    const LLAMA: &str = "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Oslo\"}}";
    for (dialect, name, called) in
        [(None, "hermes", false), (Some(chat::tools::Dialect::LlamaJson), "llama-json", true)]
    {
        let mut setup = Setup::default();
        setup.models.tool_dialect = dialect;
        let server = setup.says(LLAMA);
        let models = client::get(server.address, "/v1/models").json();
        assert_eq!(models["data"][0]["tool_dialect"], name, "{models}");
        let answer = server.chat(&json!({ "tools": weather() })).json();
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"] == "tool_calls", called, "{answer}");
        assert_eq!(choice["message"]["content"].as_str(), (!called).then_some(LLAMA), "{answer}");
    }
}

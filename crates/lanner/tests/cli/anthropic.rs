//! `POST /v1/messages` and `POST /v1/messages/count_tokens`, field by field.

use serde_json::{Value, json};

use crate::support::{
    client::{self, Reply},
    server::{CONTEXT, Setup, TEMPLATE, TestServer},
};

const HEADERS: &str = "Content-Type: application/json\r\nanthropic-version: 2023-06-01\r\n\
    anthropic-beta: interleaved-thinking-2025-05-14\r\n";

/// Sends a request; fields that it lacks have usual values.
fn ask(server: &TestServer, body: &Value) -> Reply {
    send(server, "/v1/messages?beta=true", body)
}

fn send(server: &TestServer, path: &str, body: &Value) -> Reply {
    let mut all = json!({ "max_tokens": 100, "messages": [{ "role": "user", "content": "hi" }] });
    for (name, value) in body.as_object().unwrap() {
        all[name] = value.clone();
    }
    client::request(server.address, &format!("POST {path}"), HEADERS, all.to_string().as_bytes())
}

fn weather() -> Value {
    let schema = json!({ "type": "object", "properties": { "city": { "type": "string", "maxLength": 12 } },
        "required": ["city"], "additionalProperties": false });
    json!([{ "name": "get_weather", "description": "The weather of a city", "input_schema": schema }])
}

/// The names of server-sent events, which their data repeats.
fn names(reply: &Reply) -> Vec<String> {
    let events = reply.events();
    let names: Vec<String> =
        reply.body.lines().filter_map(|line| line.strip_prefix("event: ")).map(str::to_owned).collect();
    assert_eq!(names, events.iter().map(|event| event["type"].as_str().unwrap()).collect::<Vec<_>>());
    names
}

/// The message that a client folds from a stream.
fn folded(reply: &Reply) -> Value {
    let mut message = Value::Null;
    let mut json = String::new();
    for mut event in reply.events() {
        let index = event["index"].as_u64().unwrap_or_default() as usize;
        match event["type"].as_str().unwrap() {
            "message_start" => message = event["message"].take(),
            "content_block_start" => {
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!(content.len(), index);
                content.push(event["content_block"].take());
                json.clear();
            }
            "content_block_delta" => {
                let (block, delta) = (&mut message["content"][index], &event["delta"]);
                for name in ["text", "thinking", "signature"] {
                    if let Some(more) = delta[name].as_str() {
                        block[name] = format!("{}{more}", block[name].as_str().unwrap()).into();
                    }
                }
                json += delta["partial_json"].as_str().unwrap_or_default();
            }
            "content_block_stop" if message["content"][index]["type"] == "tool_use" => {
                message["content"][index]["input"] = serde_json::from_str(&json).unwrap();
            }
            "message_delta" => {
                message["stop_reason"] = event["delta"]["stop_reason"].take();
                message["stop_sequence"] = event["delta"]["stop_sequence"].take();
                message["usage"] = event["usage"].take();
            }
            _ => {}
        }
    }
    message
}

#[test]
fn message_has_anthropic_shape() {
    let server = Setup::default().says("Hello");
    let reply =
        ask(&server, &json!({ "model": "owl", "system": "Be brief.", "metadata": { "user_id": "u" } }));
    assert!(reply.head.to_lowercase().contains("\r\nrequest-id: req_"), "{}", reply.head);
    let mut answer = reply.json();
    assert!(answer["id"].take().as_str().unwrap().starts_with("msg_"));
    answer["usage"].as_object_mut().unwrap().remove("lanner").expect("details");
    let prompt = server.last_request().prompt.len();
    assert_eq!(
        answer,
        json!({
            "id": null, "type": "message", "role": "assistant", "model": "owl",
            "content": [{ "type": "text", "text": "Hello" }],
            "stop_reason": "end_turn", "stop_sequence": null,
            "usage": { "input_tokens": prompt, "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0, "output_tokens": 6 },
        })
    );
    // Without `thinking`, none is asked for.
    assert_eq!(
        server.last_prompt(),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n\
            <|im_start|>assistant\n<think>\n\n</think>\n\n"
    );
}

#[test]
fn thinking_of_a_request_reaches_the_template() {
    let server = Setup::default().says("x");
    let off = "assistant\n<think>\n\n</think>\n\n";
    for (thinking, expected) in [
        (json!({ "type": "disabled" }), off),
        (json!({ "type": "adaptive" }), "assistant\n"),
        (json!({ "type": "enabled", "budget_tokens": 1024 }), "assistant\n"),
    ] {
        let reply = ask(&server, &json!({ "thinking": thinking, "max_tokens": 2000 }));
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert!(server.last_prompt().ends_with(expected), "{thinking}");
    }
}

#[test]
fn events_come_in_anthropic_order() {
    let server = Setup::default()
        .says("<think>Hm.</think>\n\nI look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>");
    let body = json!({ "stream": true, "tools": weather(), "thinking": { "type": "adaptive" } });
    let reply = ask(&server, &body);
    let mut names = names(&reply);
    names.dedup();
    let block = ["content_block_start", "content_block_delta", "content_block_stop"];
    let expected =
        [&["message_start", "ping"][..], &block, &block, &block, &["message_delta", "message_stop"]];
    assert_eq!(names, expected.concat());
    let start = &reply.events()[0]["message"];
    assert_eq!((&start["stop_reason"], &start["content"]), (&Value::Null, &json!([])));
    assert_eq!(start["usage"]["input_tokens"], server.last_request().prompt.len());
    let message = folded(&reply);
    let blocks = message["content"].as_array().unwrap();
    assert_eq!((&blocks[0]["type"], &blocks[0]["thinking"]), (&json!("thinking"), &json!("Hm.")));
    assert!(blocks[0]["signature"].as_str().unwrap().len() > 9);
    assert_eq!(blocks[1], json!({ "type": "text", "text": "I look." }));
    assert_eq!((&blocks[2]["type"], &blocks[2]["name"]), (&json!("tool_use"), &json!("get_weather")));
    assert_eq!(blocks[2]["input"], json!({ "city": "Oslo" }));
    assert_eq!(message["stop_reason"], "tool_use");
}

#[test]
fn stream_folds_to_the_message_of_a_blocking_request() {
    for said in ["", "plain", "<think>x</think>\u{e9}\u{1F985}", "<think>endless"] {
        let server = Setup::default().says(said);
        for thinking in [json!({ "type": "adaptive" }), json!({ "type": "adaptive", "display": "omitted" })] {
            let mut body = json!({ "thinking": thinking, "stop_sequences": ["in"] });
            let mut whole = ask(&server, &body).json();
            body["stream"] = true.into();
            let mut streamed = folded(&ask(&server, &body));
            whole["id"] = streamed["id"].take();
            streamed["id"] = whole["id"].clone();
            assert_eq!(streamed, whole, "{said}");
        }
    }
}

#[test]
fn omitted_thinking_comes_back_as_its_signature() {
    let template = "{%- for m in messages %}{{ m.role }}:{{ m.reasoning_content }}|{{ m.content }}\n{% endfor %}\
        {%- if add_generation_prompt %}assistant:{% endif %}{# <think> #}";
    let server = Setup { template, ..Setup::default() }.says("<think>Because.</think>Yes");
    for display in ["omitted", "summarized"] {
        let thinking = json!({ "type": "adaptive", "display": display });
        let mut answer = ask(&server, &json!({ "thinking": thinking })).json();
        let content = answer["content"].take();
        assert_eq!(content[0]["thinking"], if display == "omitted" { "" } else { "Because." });
        let turns = json!([{ "role": "user", "content": "one" }, { "role": "assistant", "content": content },
            { "role": "user", "content": "two" }]);
        ask(&server, &json!({ "messages": turns, "thinking": thinking }));
        assert!(server.last_prompt().contains("assistant:Because.|Yes\n"), "{}", server.last_prompt());
    }
}

#[test]
fn stop_reason_says_why_the_answer_ended() {
    let server = Setup::default().says("owls hunt at night");
    let stop = |body: Value| {
        let answer = ask(&server, &body).json();
        let text = answer["content"][0]["text"].as_str().unwrap().to_owned();
        (text, answer["stop_reason"].clone(), answer["stop_sequence"].clone())
    };
    assert_eq!(stop(json!({})), ("owls hunt at night".into(), json!("end_turn"), Value::Null));
    assert_eq!(stop(json!({ "max_tokens": 4 })), ("owls".into(), json!("max_tokens"), Value::Null));
    let stops = json!({ "stop_sequences": ["never", " at"] });
    assert_eq!(stop(stops), ("owls hunt".into(), json!("stop_sequence"), json!(" at")));
}

#[test]
fn answer_that_fills_the_context_says_so() {
    let server = Setup::default().script(|_, _| crate::support::server::token(65));
    let answer = ask(&server, &json!({ "max_tokens": 64_000 })).json();
    assert_eq!(answer["stop_reason"], "model_context_window_exceeded", "{answer}");
    let usage = &answer["usage"];
    let count = |name: &str| usage[name].as_u64().unwrap() as usize;
    assert!(count("input_tokens") + count("output_tokens") >= CONTEXT - 1, "{usage}");
}

#[test]
fn last_message_of_the_assistant_is_continued() {
    let server = Setup::default().says(" at night");
    let turns = json!([{ "role": "user", "content": "hi" }, { "role": "assistant", "content": "Owls hunt" }]);
    let answer = ask(&server, &json!({ "messages": turns })).json();
    assert_eq!(answer["content"], json!([{ "type": "text", "text": " at night" }]));
    assert!(server.last_prompt().ends_with("assistant\nOwls hunt"), "{}", server.last_prompt());
}

#[test]
fn cached_tokens_are_reported_as_read_and_created() {
    let server = Setup::default().merlin();
    let text = "You know birds of prey, by their cries and by their feathers. ".repeat(20);
    let system = json!([{ "type": "text", "text": text, "cache_control": { "type": "ephemeral" } }]);
    let usage = |system: &Value, question: &str| {
        let messages = json!([{ "role": "user", "content": question }]);
        let body = json!({ "system": system, "messages": messages, "max_tokens": 1, "stream": true });
        let events = ask(&server, &body).events();
        let start = events[0]["message"]["usage"].clone();
        let end = events.iter().find(|event| event["type"] == "message_delta").unwrap()["usage"].clone();
        let count = |usage: &Value| {
            ["cache_read_input_tokens", "cache_creation_input_tokens", "input_tokens"]
                .map(|name| usage[name].as_u64().unwrap())
        };
        assert_eq!(count(&start), count(&end));
        count(&end)
    };
    let [read, created, input] = usage(&system, "Name an owl.");
    assert!(read == 0 && created > 200 && input < 30, "{read} {created} {input}");
    let [again, more, _] = usage(&system, "And a falcon.");
    assert!(again >= created && more == 0, "{again} of {created}, {more}");
    let plain = json!(text.replace("birds", "beasts"));
    let [_, created, input] = usage(&plain, "Name an owl.");
    assert!(created == 0 && input > 200, "nothing is marked: {created} {input}");
}

#[test]
fn count_tokens_counts_the_prompt_of_an_answer() {
    let server = Setup::default().merlin();
    let body = json!({ "system": "Be brief.", "tools": weather(), "messages": [{ "role": "user", "content": "hi" }] });
    let counted = client::post(server.address, "/v1/messages/count_tokens", &body);
    let mut body = body.clone();
    body["max_tokens"] = 1.into();
    assert_eq!(
        counted.json(),
        json!({ "input_tokens": ask(&server, &body).json()["usage"]["input_tokens"] })
    );
    let wrong = client::post(server.address, "/v1/messages/count_tokens", &json!({ "messages": [] }));
    assert_eq!((wrong.status, &wrong.json()["type"]), (400, &json!("error")));
}

#[test]
fn bad_request_is_400_in_anthropic_shape_that_names_the_field() {
    let server = Setup::default().says("x");
    let blocks = |blocks: Value| json!({ "messages": [{ "role": "user", "content": blocks }] });
    let tool = |tool: Value| json!({ "tools": [tool] });
    for (body, field) in [
        (json!({ "max_tokens": null }), "max_tokens"),
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (json!({ "max_tokens": "x" }), "max_tokens"),
        (json!({ "messages": null }), "messages"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": [{ "role": "system", "content": "x" }] }), "messages"),
        (json!({ "system": 7 }), "system"),
        (json!({ "system": [{ "type": "image" }] }), "system[0]"),
        (json!({ "temperature": -1 }), "temperature"),
        (json!({ "top_k": -2 }), "top_k"),
        (json!({ "seed": "x" }), "seed"),
        (json!({ "stop_sequences": [""] }), "stop_sequences"),
        (json!({ "thinking": { "type": "enabled" } }), "thinking.budget_tokens"),
        (json!({ "thinking": { "type": "enabled", "budget_tokens": 1 } }), "thinking.budget_tokens"),
        (json!({ "thinking": { "type": "enabled", "budget_tokens": 1024 } }), "thinking.budget_tokens"),
        (json!({ "thinking": { "type": "owl" } }), "thinking.type"),
        (json!({ "thinking": { "type": "adaptive", "display": "owl" } }), "thinking.display"),
        (json!({ "tool_choice": { "type": "any" } }), "tool_choice"),
        (json!({ "tool_choice": { "type": "tool", "name": "g" }, "tools": weather() }), "tool_choice"),
        (json!({ "container": "c" }), "container"),
        (json!({ "mcp_servers": [{}] }), "mcp_servers"),
        (json!({ "output_config": { "format": { "type": "owl" } } }), "output_config.format"),
        (tool(json!({ "type": "web_search_20250305", "name": "web_search" })), "tools[0]"),
        (tool(json!({ "name": "f" })), "tools[0].input_schema"),
        (tool(json!({ "name": "a b", "input_schema": {} })), "tools[0].name"),
        (blocks(json!([{ "type": "image", "source": {} }])), "messages[0].content[0]"),
        (blocks(json!([{ "type": "document" }])), "messages[0].content[0]"),
    ] {
        let reply = ask(&server, &body);
        let error = reply.json();
        assert_eq!((reply.status, &error["type"]), (400, &json!("error")), "{body}: {error}");
        assert_eq!(error["error"]["type"], "invalid_request_error", "{body}: {error}");
        assert!(error["error"]["message"].as_str().unwrap().contains(field), "{body}: {error}");
        assert!(error["request_id"].as_str().unwrap().starts_with("req_"));
    }
    let long = ask(&server, &blocks(json!("x".repeat(2 * CONTEXT)))).json();
    assert!(long["error"]["message"].as_str().unwrap().starts_with("prompt is too long"), "{long}");
    let other = ask(&server, &json!({ "model": "claude-haiku" }));
    assert_eq!((other.status, &other.json()["error"]["type"]), (404, &json!("not_found_error")));
}

#[test]
fn key_of_anthropic_clients_is_checked() {
    let server = Setup { api_key: Some("secret"), ..Setup::default() }.says("x");
    let body = json!({ "max_tokens": 9, "messages": [{ "role": "user", "content": "hi" }] }).to_string();
    for (key, status) in [("", 401), ("x-api-key: wrong\r\n", 401), ("x-api-key: secret\r\n", 200)] {
        for path in ["/v1/messages", "/v1/messages/count_tokens"] {
            let headers = format!("{HEADERS}{key}");
            let reply = client::request(server.address, &format!("POST {path}"), &headers, body.as_bytes());
            assert_eq!(reply.status, status, "{path} {key}");
            if status == 401 {
                assert_eq!(reply.json()["error"]["type"], "authentication_error");
            }
        }
    }
}

#[test]
fn error_in_a_stream_is_its_last_event() {
    let server = Setup::default().script(|_, n| match n {
        0..3 => crate::support::server::token(65),
        _ => engine::scripted::Step::Fail("a kernel gave up".into()),
    });
    let reply = ask(&server, &json!({ "stream": true }));
    assert_eq!(names(&reply).last().unwrap(), "error");
    let error = &reply.events().pop().unwrap()["error"];
    assert_eq!(error["type"], "api_error");
    assert!(error["message"].as_str().unwrap().contains("a kernel gave up"));
}

#[test]
fn output_format_constrains_the_answer() {
    let server = Setup::default().merlin();
    let schema = json!({ "type": "object", "properties": { "ok": { "type": "boolean" } }, "required": ["ok"],
        "additionalProperties": false });
    let format = json!({ "type": "json_schema", "schema": schema });
    for body in [json!({ "output_config": { "format": format } }), json!({ "output_format": format })] {
        let answer = ask(&server, &body).json();
        let text = answer["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
        assert!(serde_json::from_str::<Value>(text).unwrap()["ok"].is_boolean(), "{text}");
    }
}

#[test]
fn required_tool_is_used_with_valid_input() {
    let server = Setup::default().merlin();
    let question = json!({ "role": "user", "content": "What is the weather in Oslo?" });
    let choice = json!({ "type": "any", "disable_parallel_tool_use": true });
    let mut body =
        json!({ "messages": [question], "tools": weather(), "tool_choice": choice, "temperature": 0 });
    let answer = ask(&server, &body).json();
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
    let [call] = &answer["content"].as_array().unwrap()[..] else { panic!("{answer}") };
    assert_eq!((&call["type"], &call["name"]), (&json!("tool_use"), &json!("get_weather")));
    assert!(call["input"]["city"].is_string(), "{call}");
    body["stream"] = true.into();
    let streamed = folded(&ask(&server, &body));
    assert_eq!(streamed["content"][0]["input"], call["input"]);
    let result = json!({ "type": "tool_result", "tool_use_id": call["id"], "content": [{ "type": "text", "text": "rain, 4 C" }] });
    let turns = json!([question, { "role": "assistant", "content": [call] }, { "role": "user", "content": [result] }]);
    let next = ask(&server, &json!({ "messages": turns, "tools": weather(), "temperature": 0 })).json();
    assert_eq!(next["stop_reason"], "end_turn", "{next}");
    // `tool` asks for one tool, `none` for no call.
    let named = json!({ "tools": weather(), "tool_choice": { "type": "tool", "name": "get_weather" } });
    assert_eq!(ask(&server, &named).json()["stop_reason"], "tool_use");
    let none = json!({ "tools": weather(), "tool_choice": { "type": "none" }, "messages": [question] });
    assert_ne!(ask(&server, &none).json()["stop_reason"], "tool_use");
}

/// The request of Claude Code in turn `n`, with a billing line that is new in every request.
fn agent_request(n: usize, messages: &[Value]) -> Value {
    let marked =
        |text: &str| json!({ "type": "text", "text": text, "cache_control": { "type": "ephemeral" } });
    let billing =
        format!("x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa{n:03};");
    let tools: Vec<Value> = ["Bash", "Read", "Edit", "Grep", "Glob", "Write", "Task", "TodoWrite"]
        .iter()
        .map(|name| {
            let text = json!({ "type": "string", "description": "What to do it with" });
            json!({ "name": name, "description": format!("Runs {name} in the project"),
                "input_schema": { "type": "object", "properties": { "arg": text }, "required": ["arg"] } })
        })
        .collect();
    json!({
        "model": "default",
        "max_tokens": 32,
        "temperature": 0,
        "stream": true,
        "thinking": { "type": "disabled" },
        "metadata": { "user_id": format!("user_{n}") },
        "context_management": { "edits": [{ "type": "clear_thinking_20251015", "keep": "all" }] },
        "output_config": { "effort": "medium" },
        "system": [{ "type": "text", "text": billing }, marked("You are a coding agent."), marked("Be brief.")],
        "tools": tools,
        "messages": messages,
    })
}

#[test]
fn agent_session_of_20_turns_reuses_the_prefix() {
    let server = Setup::default().merlin();
    let mut messages = vec![json!({ "role": "user", "content": [
        { "type": "text", "text": "<system-reminder>\nToday is Monday.\n</system-reminder>" },
        { "type": "text", "text": "Fix the failing test." },
    ] })];
    for n in 0..20 {
        let reply = ask(&server, &agent_request(n, &messages));
        assert_eq!(reply.status, 200, "{}", reply.body);
        let edits = reply.events().iter().find(|event| event["type"] == "message_delta").unwrap()
            ["context_management"]["applied_edits"]
            .clone();
        assert_eq!(edits, json!([]));
        let mut content: Vec<Value> = folded(&reply)["content"].as_array().unwrap().clone();
        content.retain(|block| block["type"] == "text");
        let id = format!("toolu_{n:02}");
        content.push(json!({ "type": "tool_use", "id": id, "name": "Bash", "input": { "arg": format!("cargo test {n}") } }));
        messages.push(json!({ "role": "assistant", "content": content }));
        let result = json!({ "type": "tool_result", "tool_use_id": id, "is_error": n % 3 == 0,
            "content": format!("test {n} failed: left 4, right {n}") });
        let reminder = json!({ "type": "text", "text": "<system-reminder>\nMind the tests.\n</system-reminder>",
            "cache_control": { "type": "ephemeral" } });
        messages.push(json!({ "role": "user", "content": [result, reminder] }));
        if n % 5 == 2 {
            messages.push(json!({ "role": "system", "content": "The file was changed by the user." }));
        }
    }
    let stats = client::get(server.address, "/v1/cache").json();
    let count = |name: &str| stats[name].as_f64().unwrap();
    assert!(count("reusable_tokens") > 5000.0, "{stats}");
    let share = count("reused_tokens") / count("reusable_tokens");
    eprintln!("{share} of {} reusable tokens were reused", count("reusable_tokens"));
    assert!(share >= 0.99, "{share} of what is reusable is reused");
    // The billing line and later system messages change nothing before them.
    assert!(count("reused_tokens") / count("prompt_tokens") > 0.8, "{stats}");
}

#[test]
fn prompt_of_an_agent_has_no_billing_line() {
    assert!(TEMPLATE.contains("tools"));
    let server = Setup::default().says("x");
    let prompts = [1, 2].map(|n| {
        let mut request = agent_request(n, &[json!({ "role": "user", "content": "hi" })]);
        request["tools"] = json!([]);
        assert_eq!(ask(&server, &request).status, 200);
        server.last_prompt()
    });
    assert_eq!(prompts[0], prompts[1]);
    assert!(
        prompts[0].starts_with("<|im_start|>system\nYou are a coding agent.\nBe brief.<|im_end|>"),
        "{}",
        prompts[0]
    );
}

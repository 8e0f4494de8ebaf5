//! Tool calls over `POST /v1/chat/completions`.

use serde_json::{Value, json};

use crate::support::server::Setup;

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

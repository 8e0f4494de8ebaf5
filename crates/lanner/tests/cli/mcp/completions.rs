//! `POST /v1/chat/completions` with tools of MCP servers, which OpenAI's API does not have.

use mcp::Limits;
use serde_json::{Value, json};

use super::{access, fake::HttpFake, server, server_with, tool};
use crate::support::client;

const ECHO: &str =
    "<tool_call>\n{\"name\": \"mcp__fake__echo\", \"arguments\": {\"text\": \"hi\"}}\n</tool_call>";
const BOTH: &str = "<tool_call>\n{\"name\": \"mcp__fake__echo\", \"arguments\": {\"text\": \"hi\"}}\n</tool_call>\n\
    <tool_call>\n{\"name\": \"own\", \"arguments\": {}}\n</tool_call>";

#[test]
fn message_reports_the_calls_that_were_made() {
    let fake = HttpFake::start("");
    let server = server(&fake, &[ECHO, "It said hi."]);
    let answer = server.chat(&json!({ "tools": [tool()] })).json();
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["message"]["content"], &choice["finish_reason"]),
        (&json!("It said hi."), &json!("stop"))
    );
    assert_eq!(choice["message"].get("tool_calls"), None);
    let calls = choice["message"]["mcp_calls"].clone();
    let expected = json!([{ "id": calls[0]["id"], "server_label": "fake", "name": "echo",
        "arguments": "{\"text\": \"hi\"}", "output": "hi", "error": null }]);
    assert_eq!(calls, expected);
    assert_eq!(answer["usage"]["lanner"]["mcp"]["steps"], 2);

    // Sent back, they are what the model wrote and read.
    let messages = json!([{ "role": "user", "content": "hi" }, choice["message"], { "role": "user", "content": "and?" }]);
    assert_eq!(server.chat(&json!({ "messages": messages, "tools": [tool()] })).status, 200);
    let prompt = server.last_prompt();
    assert!(prompt.contains("<|im_start|>tool\nhi<|im_end|>"), "{prompt}");
    assert!(prompt.contains("It said hi."), "{prompt}");

    let events = server.chat(&json!({ "tools": [tool()], "stream": true })).events();
    let streamed: Vec<&Value> =
        events.iter().filter_map(|event| event["choices"][0]["delta"].get("mcp_calls")).collect();
    assert_eq!((streamed.len(), &streamed[0][0]["output"]), (1, &json!("hi")));
    assert!(events.iter().all(|event| event["choices"][0]["delta"].get("tool_calls").is_none()));
}

#[test]
fn calls_of_the_client_end_the_answer() {
    let fake = HttpFake::start("");
    let server = server(&fake, &[BOTH, "Done."]);
    let own = json!({ "type": "function", "function": { "name": "own" } });
    let choice = server.chat(&json!({ "tools": [own, tool()] })).json()["choices"][0].take();
    assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!((calls.len(), &calls[0]["function"]["name"]), (1, &json!("own")));
    assert_eq!(choice["message"]["mcp_calls"][0]["output"], "hi");
    assert_eq!(server.num_requests(), 1);
    let events = server.chat(&json!({ "tools": [own, tool()], "stream": true })).events();
    let indexes: Vec<&Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["tool_calls"].get(0))
        .map(|call| &call["index"])
        .collect();
    assert!(!indexes.is_empty() && indexes.iter().all(|index| **index == 0), "{indexes:?}");
}

#[test]
fn max_tool_calls_limits_the_calls() {
    let fake = HttpFake::start("");
    let server = server(&fake, &[ECHO, ECHO, "Done."]);
    let answer = server.chat(&json!({ "tools": [tool()], "max_tool_calls": 1 })).json();
    let calls = &answer["choices"][0]["message"]["mcp_calls"];
    assert_eq!(calls[0]["output"], "hi", "{answer}");
    assert!(calls[1]["error"].as_str().unwrap().contains("no calls of tools left"), "{answer}");
    assert_eq!(fake.fake.calls.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[test]
fn fields_that_do_not_go_with_mcp_tools_are_refused() {
    let fake = HttpFake::start("");
    let server = server(&fake, &["x"]);
    let approvals = json!([{ "id": "call_1", "approve": true }]);
    for (body, param) in [
        (json!({ "mcp_approvals": approvals }), "mcp_approvals"),
        (json!({ "tools": [tool()], "mcp_approvals": approvals }), "mcp_approvals[0].id"),
        (json!({ "tools": [tool(), tool()] }), "tools[1].server_label"),
        (json!({ "tools": [tool()], "n": 2 }), "n"),
        (json!({ "tools": [tool()], "max_tool_calls": 0 }), "max_tool_calls"),
        (json!({ "tools": [tool()], "ignore_eos": true }), "ignore_eos"),
        (json!({ "tools": [tool()], "idempotency_key": "k", "temperature": 0 }), "idempotency_key"),
        (json!({ "tools": [{ "type": "function" }, tool()] }), "tools[0].function"),
        (
            json!({ "tools": [tool(), { "type": "function", "function": { "name": "a b" } }] }),
            "tools[1].function.name",
        ),
    ] {
        let reply = server.chat(&body);
        assert_eq!(
            (reply.status, &reply.json()["error"]["param"]),
            (400, &json!(param)),
            "{body} {}",
            reply.body
        );
    }
    assert_eq!(server.num_requests(), 0);
}

#[test]
fn call_that_needs_approval_is_the_clients_until_it_is_approved() {
    let fake = HttpFake::start("");
    let server = server(&fake, &[ECHO, "Done."]);
    let tools = json!([{ "type": "mcp", "server_label": "fake" }]);
    let choice = server.chat(&json!({ "tools": tools })).json()["choices"][0].take();
    assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(
        (&call["function"]["name"], choice["message"].get("mcp_calls")),
        (&json!("mcp__fake__echo"), None)
    );
    assert_eq!(fake.fake.calls.load(std::sync::atomic::Ordering::Relaxed), 0);

    let messages = json!([{ "role": "user", "content": "hi" }, choice["message"]]);
    let answer = |approval: Value| {
        let body = json!({ "messages": messages, "tools": tools, "mcp_approvals": [approval] });
        server.chat(&body).json()["choices"][0]["message"].take()
    };
    let approved = answer(json!({ "id": call["id"], "approve": true }));
    assert_eq!(
        (&approved["content"], &approved["mcp_calls"][0]["output"]),
        (&json!("Done."), &json!("hi")),
        "{approved}"
    );
    assert!(server.last_prompt().contains("<|im_start|>tool\nhi<|im_end|>"), "{}", server.last_prompt());
    let refused = answer(json!({ "id": call["id"], "approve": false, "reason": "private" }));
    let error = refused["mcp_calls"][0]["error"].as_str().unwrap();
    assert_eq!(
        (error, &refused["content"]),
        ("The user refused this call: private", &json!("Done.")),
        "{refused}"
    );
    assert_eq!(fake.fake.calls.load(std::sync::atomic::Ordering::Relaxed), 1);

    // The next turn has the call once, with its result.
    let mut messages = messages;
    messages.as_array_mut().unwrap().extend([approved, json!({ "role": "user", "content": "and?" })]);
    assert_eq!(server.chat(&json!({ "messages": messages, "tools": tools })).status, 200);
    let prompt = server.last_prompt();
    let calls = prompt.matches("<tool_call>{\"name\": \"mcp__fake__echo\"").count();
    assert_eq!((calls, prompt.matches("<|im_start|>tool").count()), (1, 1), "{prompt}");
}

#[test]
fn configured_servers_are_listed() {
    let fake = HttpFake::start("");
    let list = client::get(server(&fake, &["x"]).address, "/v1/mcp").json();
    assert_eq!(list, json!({ "object": "list", "data": [{ "server_label": "fake" }] }));
}

#[test]
fn server_that_fails_is_424() {
    let entries = json!({ "fake": { "command": "/no/such/program" } });
    let server = server_with(access(entries, Limits::default()), &["x"]);
    let reply = server.chat(&json!({ "tools": [tool()] }));
    assert_eq!(
        (reply.status, &reply.json()["error"]["code"]),
        (424, &json!("mcp_server_failed")),
        "{}",
        reply.body
    );
    assert_eq!(server.chat(&json!({})).status, 200, "the server lives");
}

//! `POST /v1/responses` with tools of MCP servers.

use mcp::Limits;
use serde_json::{Value, json};

use super::{access, fake, fake::HttpFake, kinds, respond, server, server_with, tool};
use crate::support::{
    client,
    server::{IM_END, Setup, tokens},
};

const ECHO: &str =
    "I ask.<tool_call>\n{\"name\": \"mcp__fake__echo\", \"arguments\": {\"text\": \"hi\"}}\n</tool_call>";

#[test]
fn response_calls_a_tool_and_goes_on_with_its_result() {
    let fake = HttpFake::start("");
    let server = server(&fake, &[ECHO, "It said hi."]);
    let reply = respond(&server, &json!({ "input": "ask", "tools": [tool()] }));
    assert_eq!(reply.status, 200, "{}", reply.body);
    let response = reply.json();
    assert_eq!(kinds(&response), ["mcp_list_tools", "message", "mcp_call", "message"]);
    let [list, before, call, after] = &response["output"].as_array().unwrap()[..] else { panic!() };
    assert_eq!((&list["server_label"], &list["error"]), (&json!("fake"), &Value::Null));
    assert_eq!((list["tools"].as_array().unwrap().len(), &list["tools"][0]["name"]), (5, &json!("echo")));
    assert_eq!(before["content"][0]["text"], "I ask.");
    let expected = json!({ "type": "mcp_call", "id": call["id"], "status": "completed", "server_label": "fake",
        "name": "echo", "arguments": "{\"text\": \"hi\"}", "output": "hi", "error": null, "approval_request_id": null });
    assert_eq!(call, &expected);
    assert_eq!(after["content"][0]["text"], "It said hi.");
    assert_eq!((response["status"].as_str(), server.num_requests()), (Some("completed"), 2));
    // All figures are sums over the steps.
    let usage = &response["usage"];
    assert_eq!(usage["output_tokens"], tokens(ECHO).len() + tokens("It said hi.").len() + 2);
    assert_eq!(usage["lanner"]["mcp"], json!({ "steps": 2, "calls": 1, "result_bytes": 2 }));
}

#[test]
fn second_prompt_begins_with_the_first_and_its_answer() {
    let fake = HttpFake::start("");
    let server = server(&fake, &[ECHO, "Done."]);
    let body = json!({ "input": "ask", "tools": [tool()], "temperature": 0 });
    assert_eq!(respond(&server, &body).status, 200);
    let second = server.last_request().prompt;
    assert_eq!(respond(&server, &body).status, 200);
    let prompts = server.prompts();
    let (first, answer) = (&prompts[0], [&tokens(ECHO)[..], &[IM_END]].concat());
    assert_eq!(second, prompts[1]);
    assert!(second.starts_with(&[&first[..], &answer].concat()), "the tokens of the first step");
    assert_eq!(server.last_prompt().matches("I ask.").count(), 1);
    assert!(server.last_prompt().ends_with("<|im_start|>tool\nhi<|im_end|>\n<|im_start|>assistant\n"));
}

#[test]
fn cached_tokens_of_the_second_step_cover_prompt_and_answer_of_the_first() {
    let fake = HttpFake::start("");
    let servers = access(json!({ "fake": fake.entry() }), Limits::default());
    let server = Setup { mcp: Some(servers), ..Setup::default() }.merlin();
    let body = |approval: &str| {
        let tool = json!({ "type": "mcp", "server_label": "fake", "allowed_tools": ["echo"], "require_approval": approval });
        json!({ "input": "Repeat: owls.", "tools": [tool], "tool_choice": "required", "temperature": 0,
            "parallel_tool_calls": false, "max_tool_calls": 1, "max_output_tokens": 400, "enable_thinking": false })
    };
    let whole = respond(&server, &body("never")).json();
    let usage = &whole["usage"];
    assert!(usage["lanner"]["mcp"]["steps"].as_u64() >= Some(2), "{whole}");
    // With an approval to ask for, the answer ends after the first step, which is the same.
    let step = respond(&server, &body("always")).json();
    assert_eq!(kinds(&step), ["mcp_list_tools", "mcp_approval_request"], "{step}");
    let tokens = |name: &str| step["usage"][name].as_u64().unwrap();
    let (prompt, answer) = (tokens("input_tokens"), tokens("output_tokens"));
    // Nothing was cached for the first step of a fresh server, and the last token of an answer was
    // not read yet.
    let cached = usage["input_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached >= prompt + answer - 1, "{cached} cached of {prompt} and {answer}: {whole}");
}

#[test]
fn stream_has_the_events_of_calls() {
    let fake = HttpFake::start("");
    let server = server(&fake, &[ECHO, "Done."]);
    let reply = respond(&server, &json!({ "input": "ask", "tools": [tool()], "stream": true }));
    let events = reply.events();
    let names: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let mut shown = names.clone();
    shown.retain(|name| {
        !name.ends_with(".delta") && !name.contains("content_part") && !name.contains("output_text")
    });
    assert_eq!(
        shown,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.mcp_list_tools.in_progress",
            "response.mcp_list_tools.completed",
            "response.output_item.done",
            "response.output_item.added",
            "response.output_item.done",
            "response.output_item.added",
            "response.mcp_call.in_progress",
            "response.mcp_call_arguments.done",
            "response.mcp_call.completed",
            "response.output_item.done",
            "response.output_item.added",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let numbers: Vec<usize> = (0..events.len()).collect();
    let sent: Vec<usize> =
        events.iter().map(|event| event["sequence_number"].as_u64().unwrap() as usize).collect();
    assert_eq!(sent, numbers);
    let arguments: String = events
        .iter()
        .filter(|event| event["type"] == "response.mcp_call_arguments.delta")
        .map(|event| event["delta"].as_str().unwrap())
        .collect();
    assert_eq!(arguments, "{\"text\": \"hi\"}");
    let of_call = events.iter().find(|event| event["type"] == "response.mcp_call.completed").unwrap();
    assert_eq!(of_call["output_index"], 2);
}

#[test]
fn call_waits_for_approval_and_is_made_after_it() {
    let fake = HttpFake::start("");
    let server = server(&fake, &[ECHO, "Done."]);
    let asks = json!({ "type": "mcp", "server_label": "fake" });
    let first = respond(&server, &json!({ "input": "ask", "tools": [asks] })).json();
    assert_eq!(kinds(&first), ["mcp_list_tools", "message", "mcp_approval_request"]);
    let request = &first["output"][2];
    assert_eq!((&request["name"], &request["arguments"]), (&json!("echo"), &json!("{\"text\": \"hi\"}")));
    assert_eq!(fake.fake.calls.load(std::sync::atomic::Ordering::Relaxed), 0);

    let answer = |approve: bool| {
        let answer = json!([{ "type": "mcp_approval_response", "approval_request_id": request["id"], "approve": approve,
            "reason": "private" }]);
        respond(&server, &json!({ "input": answer, "previous_response_id": first["id"], "tools": [asks] }))
    };
    let approved = answer(true).json();
    assert_eq!(kinds(&approved), ["mcp_list_tools", "mcp_call", "message"], "{approved}");
    let call = &approved["output"][1];
    assert_eq!((&call["output"], &call["approval_request_id"]), (&json!("hi"), &request["id"]));
    assert!(server.last_prompt().contains("<|im_start|>tool\nhi<|im_end|>"), "{}", server.last_prompt());

    let refused = answer(false).json();
    assert_eq!(kinds(&refused), ["mcp_list_tools", "message"], "{refused}");
    assert!(server.last_prompt().contains("The user refused this call: private"), "{}", server.last_prompt());
    assert_eq!(fake.fake.calls.load(std::sync::atomic::Ordering::Relaxed), 1);

    // The next turn has the call and its result once.
    let next = json!({ "input": "go on", "previous_response_id": approved["id"], "tools": [tool()] });
    assert_eq!(respond(&server, &next).status, 200);
    assert_eq!(
        server.last_prompt().matches("mcp__fake__echo\", \"arguments\"").count(),
        1,
        "{}",
        server.last_prompt()
    );
}

#[test]
fn approval_of_an_unknown_request_is_refused() {
    let fake = HttpFake::start("");
    let server = server(&fake, &["x"]);
    let answer =
        json!([{ "type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": true }]);
    let reply = respond(&server, &json!({ "input": answer, "tools": [tool()] }));
    assert_eq!(
        (reply.status, &reply.json()["error"]["param"]),
        (400, &json!("input[0].approval_request_id"))
    );
    let reply = respond(
        &server,
        &json!({ "input": [{ "type": "mcp_approval_response", "approval_request_id": "a" }] }),
    );
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("input[0].approve")));
}

#[test]
fn servers_that_are_not_configured_are_refused() {
    let fake = HttpFake::start("");
    let server = server(&fake, &["x"]);
    let at = |fields: Value| {
        let mut tool = fields;
        tool["type"] = "mcp".into();
        let reply = respond(&server, &json!({ "input": "a", "tools": [tool] }));
        (reply.status, reply.json()["error"]["param"].as_str().unwrap_or_default().to_owned(), reply.body)
    };
    let (status, param, body) =
        at(json!({ "server_label": "x", "server_url": "http://169.254.169.254/mcp" }));
    assert_eq!((status, &*param), (400, "tools[0].server_url"), "{body}");
    assert!(body.contains("so that requests cannot reach other hosts"), "{body}");
    let (status, param, body) = at(json!({ "server_label": "other" }));
    assert_eq!((status, &*param), (400, "tools[0].server_label"), "{body}");
    assert!(body.contains("the configured ones are fake"), "{body}");
    let (status, param, _) = at(json!({ "server_label": "fake", "allowed_tools": ["nothing"] }));
    assert_eq!((status, &*param), (400, "tools[0].allowed_tools"));
    // The configured one's URL, under any label.
    let url = format!("http://{}/mcp", fake.address);
    let (status, _, body) =
        at(json!({ "server_label": "mine", "server_url": url, "require_approval": "never" }));
    assert_eq!(status, 200, "{body}");
    assert!(server.last_prompt().contains("mcp__mine__echo"));

    let without = Setup::default().says("x");
    let reply = respond(&without, &json!({ "input": "a", "tools": [tool()] }));
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (400, &json!("mcp_disabled")));
}

#[test]
fn tool_choice_may_name_a_server_or_its_tool() {
    let fake = HttpFake::start("");
    let server = server(&fake, &[ECHO, "Done."]);
    for (choice, status) in [
        (json!({ "type": "mcp", "server_label": "fake" }), 200),
        (json!({ "type": "mcp", "server_label": "fake", "name": "echo" }), 200),
        (json!("none"), 200),
        (json!({ "type": "mcp", "server_label": "fake", "name": "nothing" }), 400),
        (json!({ "type": "mcp", "server_label": "other" }), 400),
    ] {
        let reply = respond(&server, &json!({ "input": "a", "tools": [tool()], "tool_choice": choice }));
        assert_eq!(reply.status, status, "{choice} {}", reply.body);
    }
}

#[test]
fn servers_over_stdio_are_called_too() {
    let entries = json!({ "fake": fake::entry_of(super::PROCESS, "") });
    let server = server_with(access(entries, Limits::default()), &[ECHO, "Done."]);
    let response = respond(&server, &json!({ "input": "ask", "tools": [tool()] })).json();
    assert_eq!(kinds(&response), ["mcp_list_tools", "message", "mcp_call", "message"], "{response}");
}

#[test]
fn stored_response_with_calls_is_read_again() {
    let fake = HttpFake::start("");
    let server = server(&fake, &[ECHO, "Done."]);
    let response = respond(&server, &json!({ "input": "ask", "tools": [tool()] })).json();
    let id = response["id"].as_str().unwrap();
    let stored = client::get(server.address, &format!("/v1/responses/{id}")).json();
    assert_eq!(stored["output"], response["output"]);
}

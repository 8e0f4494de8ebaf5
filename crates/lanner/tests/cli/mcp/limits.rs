//! Limits of an answer that calls tools, its end, and servers that fail.

use std::{
    io::Read,
    net::Shutdown,
    time::{Duration, Instant},
};

use mcp::Limits;
use serde_json::{Value, json};

use super::{access, fake, fake::HttpFake, kinds, respond, server, server_with, tool};
use crate::support::{client, wait::wait_until};

const ECHO: &str =
    "<tool_call>\n{\"name\": \"mcp__fake__echo\", \"arguments\": {\"text\": \"hi\"}}\n</tool_call>";
const SLOW: &str =
    "<tool_call>\n{\"name\": \"mcp__fake__slow\", \"arguments\": {\"ms\": 60000}}\n</tool_call>";
const BIG: &str =
    "<tool_call>\n{\"name\": \"mcp__fake__big\", \"arguments\": {\"bytes\": 60000}}\n</tool_call>";

fn outputs(response: &Value) -> Vec<String> {
    let calls = response["output"].as_array().unwrap().iter().filter(|item| item["type"] == "mcp_call");
    calls.map(|call| call["output"].as_str().or(call["error"].as_str()).unwrap().to_owned()).collect()
}

#[test]
fn model_that_only_calls_is_stopped() {
    let fake = HttpFake::start("");
    let server = server(&fake, &[ECHO]);
    let response = respond(&server, &json!({ "input": "a", "tools": [tool()], "max_tool_calls": 3 })).json();
    // It is told once that nothing is left, and then the answer ends.
    let outputs = outputs(&response);
    assert_eq!(outputs[..3], ["hi", "hi", "hi"]);
    assert!(outputs[3..].iter().all(|output| output.contains("no calls of tools left")), "{outputs:?}");
    assert_eq!((outputs.len(), response["status"].as_str()), (5, Some("completed")));
    assert_eq!(fake.fake.calls.load(std::sync::atomic::Ordering::Relaxed), 3);
    let all = respond(&server, &json!({ "input": "a", "tools": [tool()] })).json();
    assert_eq!(all["usage"]["lanner"]["mcp"]["calls"], 8 + 2, "the server's own limit");
}

#[test]
fn results_have_a_limit_over_all_calls() {
    let fake = HttpFake::start("");
    let server = server(&fake, &[BIG, BIG, "Done."]);
    let outputs = outputs(&respond(&server, &json!({ "input": "a", "tools": [tool()] })).json());
    assert_eq!((outputs.len(), outputs[0].len()), (2, 60_000));
    assert!(
        outputs[1].ends_with("that this request may have]") && outputs[1].len() < 41_000,
        "{}",
        outputs[1].len()
    );
}

#[test]
fn tokens_of_all_steps_count() {
    let fake = HttpFake::start("");
    let server = server(&fake, &[ECHO, "a long text that does not fit any more"]);
    let body = json!({ "input": "a", "tools": [tool()], "max_output_tokens": 100 });
    let response = respond(&server, &body).json();
    assert_eq!(response["status"], "incomplete", "{response}");
    assert_eq!(response["usage"]["output_tokens"], 100);
}

#[test]
fn cancelled_request_ends_the_running_call() {
    let fake = HttpFake::start("");
    let server = server(&fake, &[SLOW, "Done."]);
    let headers = "Content-Type: application/json\r\nx-request-id: mine\r\n";
    let body = json!({ "input": "a", "tools": [tool()], "stream": true }).to_string();
    let started = Instant::now();
    let mut stream = client::open(server.address, "POST /v1/responses", headers, body.as_bytes());
    wait_until("the call runs", || fake.fake.calls.load(std::sync::atomic::Ordering::Relaxed) > 0);
    let cancelled = client::request(server.address, "DELETE /v1/requests/mine", "", b"");
    assert_eq!(cancelled.status, 200, "{}", cancelled.body);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("\"status\":\"cancelled\""), "{answer}");
    assert!(started.elapsed() < Duration::from_secs(50), "{:?}", started.elapsed());
    let told = || fake.fake.methods.lock().unwrap().iter().any(|method| method == "notifications/cancelled");
    wait_until("the MCP server is told", told);
}

#[test]
fn client_that_leaves_ends_the_running_call() {
    let fake = HttpFake::start("");
    let server = server(&fake, &[SLOW, "Done."]);
    let body = json!({ "input": "a", "tools": [tool()], "stream": true }).to_string();
    let stream = client::open(
        server.address,
        "POST /v1/responses",
        "Content-Type: application/json\r\n",
        body.as_bytes(),
    );
    wait_until("the call runs", || fake.fake.calls.load(std::sync::atomic::Ordering::Relaxed) > 0);
    stream.shutdown(Shutdown::Both).unwrap();
    drop(stream);
    let told = || fake.fake.methods.lock().unwrap().iter().any(|method| method == "notifications/cancelled");
    wait_until("the MCP server is told", told);
    assert_eq!(server.num_requests(), 1);
}

#[test]
fn slow_call_is_an_error_that_the_model_reads() {
    let fake = HttpFake::start("");
    let limits = Limits { call: Duration::from_millis(200), ..Limits::default() };
    let server = server_with(access(json!({ "fake": fake.entry() }), limits), &[SLOW, "Done."]);
    let response = respond(&server, &json!({ "input": "a", "tools": [tool()] })).json();
    assert!(outputs(&response)[0].contains("has not answered tools/call within"), "{response}");
    assert_eq!(response["output"][1]["status"], "failed");
    assert_eq!(kinds(&response), ["mcp_list_tools", "mcp_call", "message"]);
}

#[test]
fn timeout_covers_the_start_of_servers() {
    let entries = json!({ "fake": fake::entry_of(super::PROCESS, "silent") });
    let server = server_with(access(entries, Limits::default()), &["Done."]);
    let started = Instant::now();
    let reply = server.chat(&json!({ "tools": [tool()], "timeout": 0.5 }));
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (504, &json!("timeout")), "{}", reply.body);
    assert!(started.elapsed() < Limits::default().start, "{:?}", started.elapsed());
}

#[test]
fn broken_server_costs_one_error_of_its_tools() {
    let entries = json!({ "fake": { "command": "/no/such/program" } });
    let server = server_with(access(entries, Limits::default()), &["I have no tools."]);
    let reply = respond(&server, &json!({ "input": "a", "tools": [tool()], "stream": true }));
    let events = reply.events();
    assert!(events.iter().any(|event| event["type"] == "response.mcp_list_tools.failed"), "{}", reply.body);
    let response = &events.last().unwrap()["response"];
    assert_eq!(
        (response["status"].as_str(), kinds(response)),
        (Some("completed"), vec!["mcp_list_tools", "message"])
    );
    assert!(response["output"][0]["error"].as_str().unwrap().contains("`fake` cannot be started"));
}

#[test]
fn hostile_servers_cost_their_call_alone() {
    for (mode, expected) in [
        ("crash", "its process ended with exit status: 7"),
        ("endless", "a message has more than"),
        ("flood", "bytes that answer nothing"),
    ] {
        let limits = Limits { message_bytes: 1 << 20, unsolicited_bytes: 1 << 20, ..Limits::default() };
        let entries = json!({ "fake": fake::entry_of(super::PROCESS, mode) });
        let server = server_with(access(entries, limits), &[ECHO, "It failed."]);
        let response = respond(&server, &json!({ "input": "a", "tools": [tool()] })).json();
        assert!(outputs(&response)[0].contains(expected), "{mode}: {response}");
        assert_eq!((response["status"].as_str(), kinds(&response).len()), (Some("completed"), 3), "{mode}");
        assert_eq!(server.chat(&json!({})).status, 200, "{mode}: the server lives");
    }
}

#[test]
fn hundred_thousand_tools_are_cut_and_changed_ones_are_offered() {
    let many = HttpFake::start("hundred_thousand");
    let server = server(&many, &["Done."]);
    let response = respond(&server, &json!({ "input": "a", "tools": [tool()] })).json();
    assert_eq!(response["output"][0]["tools"].as_array().unwrap().len(), Limits::default().tools);

    let growing = HttpFake::start("sse");
    let grow = "<tool_call>\n{\"name\": \"mcp__fake__grow\", \"arguments\": {}}\n</tool_call>";
    let server = super::server(&growing, Box::leak(Box::new([grow, "Done."])));
    let tools = |response: &Value| response["output"][0]["tools"].as_array().unwrap().len();
    let body = json!({ "input": "a", "tools": [tool()] });
    assert_eq!(tools(&respond(&server, &body).json()), 5);
    assert_eq!(tools(&respond(&server, &body).json()), 6);
}

#[test]
fn schema_that_no_grammar_follows_costs_no_request() {
    let fake = HttpFake::start("faulty_schema");
    let servers = access(json!({ "fake": fake.entry() }), Limits::default());
    let server = crate::support::server::Setup { mcp: Some(servers), ..Default::default() }.merlin();
    let body = json!({ "input": "a", "tools": [tool()], "tool_choice": "required", "max_output_tokens": 60 });
    let reply = respond(&server, &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
}

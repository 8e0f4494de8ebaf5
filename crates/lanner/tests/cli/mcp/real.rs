//! Real MCP servers from packages, with a scripted model. `tools/mcp.py` installs and starts them
//! and runs this.

use std::{env, fs};

use engine::Request;
use mcp::Limits;
use serde_json::{Value, json};

use super::{TEMPLATE, access, respond};
use crate::support::server::{IM_END, Setup, token, tokens};

/// A server, one call of a tool, and a text that its result has.
fn check(case: &Value) -> Value {
    let call = json!({ "name": format!("mcp__real__{}", case["tool"].as_str().unwrap()), "arguments": case["arguments"] });
    let steps = [format!("<tool_call>\n{call}\n</tool_call>"), "Done.".to_owned()];
    let setup = Setup {
        template: TEMPLATE,
        context: 1_000_000,
        mcp: Some(access(json!({ "real": case["server"] }), Limits::default())),
        ..Setup::default()
    };
    let server = setup.script(move |request: &Request, n| {
        let bytes: Vec<u8> = request.prompt.iter().filter_map(|id| u8::try_from(*id).ok()).collect();
        let results = String::from_utf8_lossy(&bytes).matches("\ntool\n").count();
        token(tokens(&steps[results.min(1)]).get(n).copied().unwrap_or(IM_END))
    });
    let tool = json!({ "type": "mcp", "server_label": "real", "require_approval": "never" });
    let response = respond(&server, &json!({ "input": "call it", "tools": [tool] })).json();
    let items = response["output"].as_array().unwrap();
    let call = items.iter().find(|item| item["type"] == "mcp_call").unwrap_or_else(|| panic!("{response}"));
    let expected = case["expects"].as_str().unwrap();
    assert!(call["output"].as_str().is_some_and(|output| output.contains(expected)), "{call}");
    assert_eq!(response["status"], "completed");
    json!({ "server": case["name"], "tools": items[0]["tools"].as_array().unwrap().len(),
        "tool": case["tool"], "output": call["output"].as_str().unwrap().chars().take(60).collect::<String>() })
}

#[test]
fn real_servers_list_and_call_their_tools() {
    let Ok(path) = env::var("LANNER_MCP_SERVERS") else {
        return eprintln!("skipped: LANNER_MCP_SERVERS names no file of MCP servers; see tools/mcp.py");
    };
    let cases: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    for case in cases.as_array().unwrap() {
        println!("mcp: {}", check(case));
    }
}

//! Tools of MCP servers that the server calls itself, and that `lanner chat` asks for.

mod chat_command;
mod chat_terminal;
mod completions;
#[path = "../../../../mcp/tests/it/fake.rs"]
mod fake;
mod limits;
mod real;
mod responses;

use std::{sync::Arc, time::Duration};

use engine::Request;
use lanner::server::McpAccess;
use mcp::{Limits, Options, ServerList, Servers};
use serde_json::{Value, json};

use self::fake::HttpFake;
use crate::support::{
    client::{self, Reply},
    server::{IM_END, Setup, TestServer, token, tokens},
};

/// Tools first, so that a prompt begins as the one before it; calls as the model writes them, but
/// for the spaces.
const TEMPLATE: &str = "{#- Calls: <tool_call> -#}{%- if tools %}tools={{ tools | tojson }}\n{% endif %}\
    {%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\
    {%- for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}\
    {%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// The fake server's process, as a test of this binary.
const PROCESS: &str = "mcp::fake::process_of_the_fake_server";

fn access(entries: Value, limits: Limits) -> McpAccess {
    let list = ServerList::parse(&json!({ "mcpServers": entries }).to_string(), |_| None).unwrap();
    McpAccess {
        servers: Arc::new(Servers::new(list, &Options { limits, proxy: None })),
        max_calls: 8,
        max_time: Duration::from_secs(120),
        max_bytes: 100_000,
    }
}

/// A server whose model takes these steps, one after each result of a tool.
fn server_with(access: McpAccess, steps: &'static [&'static str]) -> TestServer {
    let setup = Setup { template: TEMPLATE, context: 200_000, mcp: Some(access), ..Setup::default() };
    setup.script(move |request: &Request, n| {
        let bytes: Vec<u8> = request.prompt.iter().filter_map(|id| u8::try_from(*id).ok()).collect();
        let results = String::from_utf8_lossy(&bytes).matches("\ntool\n").count();
        let step = steps.get(results).or(steps.last()).unwrap();
        token(tokens(step).get(n).copied().unwrap_or(IM_END))
    })
}

fn server(fake: &HttpFake, steps: &'static [&'static str]) -> TestServer {
    server_with(access(json!({ "fake": fake.entry() }), Limits::default()), steps)
}

fn respond(server: &TestServer, body: &Value) -> Reply {
    client::post(server.address, "/v1/responses", body)
}

/// The tool of the fake server, whose calls need no approval.
fn tool() -> Value {
    json!({ "type": "mcp", "server_label": "fake", "require_approval": "never" })
}

/// The items of a response, by type.
fn kinds(response: &Value) -> Vec<&str> {
    response["output"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect()
}

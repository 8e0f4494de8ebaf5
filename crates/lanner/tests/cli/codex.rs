//! A session of a coding agent in the shape of Codex's requests to `POST /v1/responses`.

use serde_json::{Value, json};

use crate::support::{
    client,
    server::{Setup, TestServer},
};

/// The tool's grammar.
const PATCH: &str = r#"
start: "*** Begin Patch" LF file+ "*** End Patch" LF?
file: ("*** Add File: " | "*** Update File: ") /(.+)/ LF line+
line: ("+" | "-" | " " | "@@") /(.*)/ LF
%import common.LF
"#;

/// Codex's instructions are long in proportion to what a turn adds.
fn instructions() -> String {
    let rule = |n: usize| format!("Rule {n}: run the tests after each change and report what failed. ");
    (1..40).map(rule).collect()
}

fn message(role: &str, text: &str) -> Value {
    json!({ "type": "message", "role": role, "content": [{ "type": "input_text", "text": text }] })
}

fn environment(turn: usize) -> Value {
    let context = format!(
        "<environment_context>\n  <cwd>/projects/crate_{turn}</cwd>\n  <approval_policy>on-request</approval_policy>\n  \
            <sandbox_mode>workspace-write</sandbox_mode>\n  <shell>bash</shell>\n</environment_context>"
    );
    message("user", &context)
}

fn tools() -> Value {
    let text = json!({ "type": "string" });
    let list = json!({ "type": "array", "items": text });
    let parameters = |properties: Value, required: &[&str]| json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false });
    let function = |name: &str, description: &str, parameters: Value| json!({ "type": "function", "name": name, "description": description, "strict": false, "parameters": parameters });
    let command = json!({ "command": list, "workdir": text, "timeout_ms": { "type": "number" } });
    let step = parameters(json!({ "step": text, "status": text }), &["step", "status"]);
    let plan = json!({ "explanation": text, "plan": { "type": "array", "items": step } });
    json!([
        function("shell", "Runs a shell command and returns its output.", parameters(command, &["command"])),
        function("update_plan", "Updates the task plan.", parameters(plan, &["plan"])),
        { "type": "custom", "name": "apply_patch", "description": "Edits files by a patch.",
          "format": { "type": "grammar", "syntax": "lark", "definition": PATCH } },
        { "type": "web_search", "external_web_access": false },
        { "type": "namespace", "name": "multi_agent_v1", "description": "Sub-agents.",
          "tools": [function("close_agent", "Closes one.", parameters(json!({ "target": text }), &["target"]))] },
        function("view_image", "Attaches an image.", parameters(json!({ "path": text }), &["path"])),
    ])
}

fn request(input: &[Value]) -> Value {
    json!({
        "model": "default",
        "instructions": instructions(),
        "input": input,
        "tools": tools(),
        "tool_choice": "auto",
        "parallel_tool_calls": false,
        "reasoning": { "effort": "medium", "summary": "auto" },
        "store": false,
        "stream": true,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "019b1c7e-3f0a-7a52-b1f3-6d0c6f1f9a10",
        "client_metadata": { "x-codex-installation-id": "a" },
        // Codex sends none of these; they keep the test short and its answers the same, and make
        // the built-in model reason.
        "max_output_tokens": 48,
        "temperature": 0,
        "enable_thinking": true,
    })
}

/// The items of an answer as Codex sends them back: without ids, reasoning only as it was encoded.
fn output(server: &TestServer, input: &[Value]) -> Vec<Value> {
    let reply = client::post(server.address, "/v1/responses", &request(input));
    assert_eq!(reply.status, 200, "{}", reply.body);
    let events = reply.events();
    let last = events.last().unwrap()["type"].as_str().unwrap();
    assert!(["response.completed", "response.incomplete"].contains(&last), "{}", reply.body);
    let done = events.iter().filter(|event| event["type"] == "response.output_item.done");
    done.map(|event| {
        let mut item = event["item"].clone();
        let fields = item.as_object_mut().unwrap();
        fields.remove("id");
        fields.remove("status");
        if item["type"] == "reasoning" {
            assert!(item["encrypted_content"].is_string(), "{item}");
            item["content"] = Value::Null;
        }
        item
    })
    .collect()
}

/// What the agent does after an answer: it runs a command, patches a file, or asks its user.
fn continuation(turn: usize) -> Vec<Value> {
    let id = format!("call_{turn:024}");
    match turn % 4 {
        0 | 1 => vec![
            json!({ "type": "function_call", "name": "shell", "call_id": id,
                "arguments": json!({ "command": ["cargo", "test", turn.to_string()] }).to_string() }),
            json!({ "type": "function_call_output", "call_id": id,
                "output": format!("Exit code: 1\nOutput:\ntest {turn} failed: left 4, right {turn}") }),
        ],
        2 => vec![
            json!({ "type": "custom_tool_call", "name": "apply_patch", "call_id": id,
                "input": format!("*** Begin Patch\n*** Update File: a.rs\n-4\n+{turn}\n*** End Patch") }),
            json!({ "type": "custom_tool_call_output", "call_id": id, "output": "Done" }),
        ],
        _ => {
            let mut items = vec![message("user", &format!("Now fix test {turn}."))];
            if turn % 8 == 3 {
                let rights =
                    "<permissions instructions>\nThe network is now open.\n</permissions instructions>";
                items.splice(0..0, [message("developer", rights), environment(turn)]);
            }
            items
        }
    }
}

#[test]
fn codex_session_of_20_turns_reuses_the_prefix() {
    let server = Setup::default().merlin();
    let rights = "<permissions instructions>\nAsk before you use the network.\n</permissions instructions>";
    let agents =
        "# AGENTS.md instructions for /projects\n\n<INSTRUCTIONS>\nKeep functions short.\n</INSTRUCTIONS>";
    let mut input = vec![
        message("developer", rights),
        message("user", agents),
        environment(0),
        message("user", "Fix the failing test."),
    ];
    let mut kinds = vec![];
    for turn in 0..20 {
        let items = output(&server, &input);
        kinds.extend(items.iter().map(|item| item["type"].as_str().unwrap().to_owned()));
        // Calls of the model's own would need outputs of their own.
        let is_call = |item: &Value| item["type"] == "function_call" || item["type"] == "custom_tool_call";
        input.extend(items.into_iter().filter(|item| !is_call(item)));
        input.extend(continuation(turn));
    }
    assert!(kinds.iter().any(|kind| kind == "reasoning"), "{kinds:?}");
    let stats = client::get(server.address, "/v1/cache").json();
    let count = |name: &str| stats[name].as_f64().unwrap();
    assert!(count("reusable_tokens") > 10_000.0, "{stats}");
    let share = count("reused_tokens") / count("reusable_tokens");
    eprintln!("{share} of {} reusable tokens were reused", count("reusable_tokens"));
    assert!(share >= 0.99, "{share} of what is reusable is reused");
    // Later developer messages and changes of the environment change nothing before them.
    assert!(count("reused_tokens") / count("prompt_tokens") > 0.8, "{stats}");
}

//! `lanner chat` on a terminal.

use serde_json::Value;

use crate::support::{long_context, terminal::Terminal, wait::wait_until};

#[test]
fn ctrl_c_while_the_prompt_is_computed_removes_the_message() {
    let (model, folder) = (long_context(1 << 18), tempfile::tempdir().unwrap());
    let saved = folder.path().join("conversation.json");
    // Many seconds of computing, of which the first is enough.
    let system = (0..5_000).map(|i| format!("{i} owls")).collect::<Vec<_>>().join(" ");
    let program = env!("CARGO_BIN_EXE_lanner");
    let command = format!(
        "exec {program} chat --device cpu --disk-cache off --prefill-chunk 64 --max-tokens 64 --model {} --system '{system}'",
        model.path().display()
    );
    let Some(mut terminal) = Terminal::open(&command) else {
        return eprintln!("skipped: there is no `script` to open a terminal");
    };
    terminal.wait_for("/help for commands");
    terminal.keys("hello\r");
    terminal.wait_for("reading the prompt");
    terminal.keys("\x03");
    terminal.wait_for("(stopped; your message was removed)");
    terminal.wait_for("> ");
    terminal.keys(&format!("/save {}\r", saved.display()));
    let mut conversation = Value::Null;
    wait_until("the conversation is saved", || {
        let text = std::fs::read(&saved).unwrap_or_default();
        conversation = serde_json::from_slice(&text).unwrap_or_default();
        !conversation.is_null()
    });
    let roles: Vec<&str> =
        conversation["messages"].as_array().unwrap().iter().filter_map(|m| m["role"].as_str()).collect();
    assert_eq!(roles, ["system"]);
}

//! `lanner chat --mcp` with a model that calls tools: what is asked, interrupted and kept.

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::fake;
use crate::support::{
    scripted_model::scripted_model_with,
    terminal::Terminal,
    wait::{output_of, wait_until},
};

const TEMPLATE: &str = "{#- Calls: <tool_call> -#}{%- if tools %}tools={{ tools | tojson }}\n{% endif %}\
    {%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\
    {%- for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}\
    {%- if add_generation_prompt %}<|im_start|>{{ messages[-1].content[-1:] }}{% endif %}";
const ECHO: &str =
    "<tool_call>\n{\"name\": \"mcp__fake__echo\", \"arguments\": {\"text\": \"again a\"}}\n</tool_call>";
/// The result of a call of `a` asks for the next one, and so does the refusal after the last.
const ANSWERS: [(char, &str); 4] = [
    ('a', ECHO),
    ('w', ECHO),
    ('s', "<tool_call>\n{\"name\": \"mcp__fake__slow\", \"arguments\": {\"ms\": 60000}}\n</tool_call>"),
    ('d', "I see that."),
];
const QUESTION: &str = "ne[v]er this tool: ";

/// Files of a chat with the fake server.
struct Files {
    model: TempDir,
    folder: TempDir,
}

impl Files {
    fn new(mode: &str) -> Files {
        let files =
            Files { model: scripted_model_with(&ANSWERS, TEMPLATE), folder: tempfile::tempdir().unwrap() };
        let servers = json!({ "mcpServers": { "fake": fake::entry_of(super::PROCESS, mode) } });
        fs::write(files.folder.path().join("mcp.json"), servers.to_string()).unwrap();
        files
    }

    fn args(&self) -> String {
        let (model, folder) = (self.model.path().display(), self.folder.path().display());
        format!("chat --device cpu --temperature 0 --no-history --model {model} --mcp {folder}/mcp.json")
    }

    /// A chat on a terminal. `None`: this machine cannot open one.
    fn open(&self) -> Option<Terminal> {
        let (home, program) = (self.folder.path().display(), env!("CARGO_BIN_EXE_lanner"));
        let command = format!("stty cols 200 rows 24; HOME={home} exec {program} {}", self.args());
        let Some(mut terminal) = Terminal::open(&command) else {
            eprintln!("skipped: there is no `script` to open a terminal");
            return None;
        };
        terminal.wait_for("/help for commands");
        terminal.wait_for("> ");
        Some(terminal)
    }

    fn saved(&self) -> String {
        self.folder.path().join("saved.json").display().to_string()
    }
}

/// Roles and contents of a saved conversation.
fn messages(path: &str) -> Vec<(String, String)> {
    let mut saved = Value::Null;
    wait_until("the conversation is saved", || {
        saved = serde_json::from_slice(&fs::read(Path::new(path)).unwrap_or_default()).unwrap_or_default();
        !saved.is_null()
    });
    let text = |message: &Value, field: &str| message[field].as_str().unwrap().to_owned();
    let messages = saved["messages"].as_array().unwrap().iter();
    messages.map(|message| (text(message, "role"), text(message, "content"))).collect()
}

#[test]
fn keys_pressed_before_the_question_do_not_answer_it() {
    let files = Files::new("late");
    let Some(mut terminal) = files.open() else { return };
    terminal.keys("say a\r");
    thread::sleep(Duration::from_millis(700));
    terminal.keys("y\r");
    terminal.wait_for(QUESTION);
    thread::sleep(Duration::from_secs(1));
    terminal.keys("n\r");
    terminal.wait_for("the user refused this call");
}

#[test]
fn interrupt_ends_the_wait_for_a_server() {
    let files = Files::new("silent");
    let Some(mut terminal) = files.open() else { return };
    terminal.keys("say a\r");
    thread::sleep(Duration::from_millis(700));
    let started = Instant::now();
    terminal.keys("\x03");
    terminal.wait_for("(stopped; your message was removed)");
    terminal.wait_for("> ");
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

#[test]
fn interrupted_call_stays_in_the_conversation() {
    let files = Files::new("");
    let Some(mut terminal) = files.open() else { return };
    terminal.keys("say s\r");
    terminal.wait_for(QUESTION);
    thread::sleep(Duration::from_secs(1));
    terminal.keys("y\r");
    thread::sleep(Duration::from_secs(1));
    terminal.keys("\x03");
    terminal.wait_for("the user stopped the call");
    terminal.wait_for("(stopped)");
    terminal.wait_for("> ");
    terminal.keys(format!("/save {}\r", files.saved()));
    let messages = messages(&files.saved());
    let roles: Vec<&str> = messages.iter().map(|(role, _)| &**role).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "assistant"]);
    assert!(messages[2].1.contains("the user stopped the call"), "{messages:?}");
}

#[test]
fn answer_that_reaches_the_limit_of_steps_stays_in_the_conversation() {
    let files = Files::new("");
    let mut command = Command::new(env!("CARGO_BIN_EXE_lanner"));
    command.env_clear().args(files.args().split(' ')).args(["--mcp-allow", "*"]);
    let mut chat =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = format!("say a\nand d\n/save {}\n", files.saved());
    chat.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = output_of(chat).unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("(stopped)"), "{text}");
    let messages = messages(&files.saved());
    let made = messages.iter().filter(|(role, text)| role == "tool" && text == "again a").count();
    assert_eq!(made, 32, "{messages:?}");
    assert_eq!(messages.last().unwrap().1, "I see that.", "{messages:?}");
}

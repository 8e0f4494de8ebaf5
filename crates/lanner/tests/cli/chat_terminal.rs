//! `lanner chat` on a terminal.

use std::{path::Path, process::Command, thread, time::Duration};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{long_context, scripted_model::scripted_model, terminal::Terminal, wait::wait_until};

const MARKDOWN: &str = "# Owls\n\nAn **owl** hunts at `night` and sees very well in the dark of the forest.\n\n\
    | bird | eyes |\n|---|--:|\n| 猫頭鷹 | 2 |\n\n```rust\nlet owl = 1;\n```\n- evil \x1b[2J\x1b]0;x\x07 text\n";
const ANSWERS: [(char, &str); 3] = [('m', MARKDOWN), ('a', "Answer alpha."), ('b', "Answer beta.")];

/// A chat on a terminal of 40 columns.
struct Chat {
    terminal: Terminal,
    folder: TempDir,
    _model: TempDir,
}

impl Chat {
    /// `None`: this machine cannot open a terminal.
    fn open(variables: &str, args: &str) -> Option<Chat> {
        let (model, folder) = (scripted_model(&ANSWERS), tempfile::tempdir().unwrap());
        let command = format!(
            "tty >{home}/tty; stty cols 40 rows 24; unset NO_COLOR; HOME={home} LANNER_STORE={home}/store.db {variables} \
             exec {program} chat --device cpu --temperature 0 --model {model} {args}",
            home = folder.path().display(),
            program = env!("CARGO_BIN_EXE_lanner"),
            model = model.path().display(),
        );
        let Some(mut terminal) = Terminal::open(&command) else {
            eprintln!("skipped: there is no `script` to open a terminal");
            return None;
        };
        terminal.wait_for("/help for commands");
        terminal.wait_for("> ");
        Some(Chat { terminal, folder, _model: model })
    }

    fn keys(&mut self, keys: &str) {
        self.terminal.keys(keys);
    }

    fn wait_for(&mut self, parts: &[&str]) {
        parts.iter().for_each(|part| self.terminal.wait_for(part));
    }

    /// The messages so far, as `/save` writes them.
    fn messages(&mut self) -> Vec<String> {
        let path = self.folder.path().join("saved.json");
        let _ = std::fs::remove_file(&path);
        self.keys(&format!("/save {}\r", path.display()));
        let conversation = read_saved(&path);
        let messages = conversation["messages"].as_array().unwrap().iter();
        messages.map(|message| message["content"].as_str().unwrap().to_owned()).collect()
    }
}

fn read_saved(path: &Path) -> Value {
    let mut conversation = Value::Null;
    wait_until("the conversation is saved", || {
        let text = std::fs::read(path).unwrap_or_default();
        conversation = serde_json::from_slice(&text).unwrap_or_default();
        !conversation.is_null()
    });
    conversation
}

#[test]
fn markdown_is_rendered_at_the_terminals_width() {
    let Some(mut chat) = Chat::open("", "") else { return };
    chat.keys("show m\r");
    chat.wait_for(&[
        "\x1b[1;4mOwls\x1b[0m\r\n\r\nAn ",
        "\x1b[1mowl\x1b[0m",
        "\x1b[36mnight\x1b[0m",
        "sees very well\r\nin the dark",
        "\x1b[2mtable: ",
        "\r\x1b[K",
        "\x1b[1mbird\x1b[0m",
        "猫頭鷹 \x1b[2m│\x1b[0m    2\r\n",
        "── rust ──",
        "\x1b[35mlet\x1b[0m owl = \x1b[33m1\x1b[0m;",
        "• evil",
        "\u{FFFD}[2J\u{FFFD}]0;x\u{FFFD} text",
        "> ",
    ]);
    // The window becomes narrower.
    let tty = std::fs::read_to_string(chat.folder.path().join("tty")).unwrap();
    let resized = Command::new("stty").args(["-F", tty.trim(), "cols", "30"]).status().unwrap();
    assert!(resized.success());
    chat.keys("again m\r");
    chat.wait_for(&["\x1b[36mnight\x1b[0m", "and sees\r\nvery well in the dark of the\r\nforest."]);
}

#[test]
fn markdown_is_not_rendered_where_it_is_not_wanted() {
    for (variables, args) in [("", "--plain"), ("NO_COLOR=1", ""), ("", "--no-color")] {
        let Some(mut chat) = Chat::open(variables, args) else { return };
        chat.keys("show m\r");
        chat.wait_for(&[
            "# Owls\r\n\r\nAn **owl** hunts",
            "|---|--:|\r\n",
            "- evil \u{FFFD}[2J\u{FFFD}]0;x\u{FFFD} text",
        ]);
    }
}

#[test]
fn message_of_several_lines_is_one_message() {
    let Some(mut chat) = Chat::open("", "") else { return };
    // Sooner it would be what was typed before the prompt.
    let pause = || thread::sleep(Duration::from_millis(600));
    chat.keys("one\x1b\rtwo a\r");
    chat.wait_for(&["Answer alpha.", "> "]);
    pause();
    chat.keys("three\nfour b\r");
    chat.wait_for(&["Answer beta.", "> "]);
    chat.keys("\x1b[200~five\r\n/quit\n\tsix a\x1b[201~");
    chat.keys("\r");
    chat.wait_for(&["Answer alpha.", "> "]);
    chat.keys("\"\"\"seven\r");
    chat.wait_for(&[". "]);
    chat.keys("eight b\"\"\"\r");
    chat.wait_for(&["Answer beta.", "> "]);
    chat.keys("nine\\\r");
    chat.wait_for(&[". "]);
    chat.keys("ten a\r");
    chat.wait_for(&["Answer alpha.", "> "]);
    let messages = chat.messages();
    let asked: Vec<&str> = messages.iter().step_by(2).map(String::as_str).collect();
    assert_eq!(
        asked,
        ["one\ntwo a", "three\nfour b", "five\n/quit\n\tsix a", "seven\neight b", "nine\nten a"]
    );
}

#[test]
fn line_that_is_not_utf_8_is_dropped_whole() {
    let Some(mut chat) = Chat::open("", "") else { return };
    chat.terminal.keys(b"caf\xe9 \xff and b\r");
    chat.wait_for(&["(this line is not UTF-8 and was dropped", "> "]);
    // Sooner it would be the rest of that line.
    thread::sleep(Duration::from_millis(600));
    chat.keys("say a\r");
    chat.wait_for(&["Answer alpha.", "> "]);
    assert_eq!(chat.messages(), ["say a", "Answer alpha."]);
}

#[test]
fn conversation_removed_elsewhere_is_told_and_not_saved_again() {
    let Some(mut chat) = Chat::open("", "") else { return };
    chat.keys("say a\r");
    chat.wait_for(&["Answer alpha.", "> "]);
    let (home, store) = (chat.folder.path().to_owned(), chat.folder.path().join("store.db"));
    let history = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lanner"));
        command.env("HOME", &home).env("LANNER_STORE", &store).arg("history").args(args);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert!(history(&["list"]).contains("say a"));
    history(&["rm", "--all", "--yes"]);
    chat.keys("say b\r");
    chat.wait_for(&["Answer beta.", "this conversation was removed elsewhere", "> "]);
    chat.keys("say a\r");
    chat.wait_for(&["Answer alpha.", "> "]);
    chat.keys("/save\r");
    chat.wait_for(&["this conversation was removed elsewhere", "> "]);
    assert!(!history(&["list"]).contains("say"));
}

#[test]
fn edit_offers_the_last_message() {
    let Some(mut chat) = Chat::open("", "") else { return };
    chat.keys("/edit\r");
    chat.wait_for(&["(there is no message to change)", "> "]);
    chat.keys("first a\r");
    chat.wait_for(&["Answer alpha.", "> "]);
    chat.keys("/edit\r");
    chat.wait_for(&["edit> "]);
    chat.keys(" and b\r");
    chat.wait_for(&["Answer beta.", "> "]);
    chat.keys("/edit\r");
    chat.wait_for(&["edit> "]);
    chat.keys("\x03");
    chat.wait_for(&["(the message was not changed)", "> "]);
    assert_eq!(chat.messages(), ["first a and b", "Answer beta."]);
}

#[test]
fn tab_completes_commands_and_what_follows() {
    let Some(mut chat) = Chat::open("", "") else { return };
    chat.keys("/reg\t\r");
    chat.wait_for(&["(there is no message to answer again)", "> "]);
    chat.keys("/set temp\t0.5\r");
    chat.wait_for(&["0.5", "there is no parameter `temperature0.5`"]);
    // The line editor forgets keys that come with those of the line before: wait for its prompt.
    chat.wait_for(&["\x1b[?2004h"]);
    chat.keys("/thi\tof\t\r");
    chat.wait_for(&["/think off", "\x1b[?2004l", "\x1b[?2004h"]);
    chat.keys("/model mer\t\r");
    chat.wait_for(&["(merlin answers from now on; the conversation stays)"]);
}

#[test]
fn what_is_typed_during_an_answer_is_the_next_message() {
    let (model, folder) = (long_context(1 << 18), tempfile::tempdir().unwrap());
    let system = (0..5_000).map(|i| format!("{i} owls")).collect::<Vec<_>>().join(" ");
    let program = env!("CARGO_BIN_EXE_lanner");
    let command = format!(
        "HOME={} exec {program} chat --device cpu --disk-cache off --no-history --prefill-chunk 64 --max-tokens 4 --model {} \
         --system '{system}'",
        folder.path().display(),
        model.path().display()
    );
    let Some(mut terminal) = Terminal::open(&command) else {
        return eprintln!("skipped: there is no `script` to open a terminal");
    };
    terminal.wait_for("> ");
    terminal.keys("hello\r");
    terminal.wait_for("reading the prompt");
    terminal.keys("/set seed 77\r");
    terminal.keys("\x03");
    terminal.wait_for("(stopped; your message was removed)");
    terminal.wait_for("(seed: 77)");
}

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
    terminal.wait_for("> ");
    terminal.keys("hello\r");
    terminal.wait_for("reading the prompt");
    terminal.keys("\x03");
    terminal.wait_for("(stopped; your message was removed)");
    terminal.wait_for("> ");
    terminal.keys(format!("/save {}\r", saved.display()));
    let conversation = read_saved(&saved);
    let roles: Vec<&str> =
        conversation["messages"].as_array().unwrap().iter().filter_map(|m| m["role"].as_str()).collect();
    assert_eq!(roles, ["system"]);
}

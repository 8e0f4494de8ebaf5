//! `lanner chat` on a terminal.

use std::{
    io::{Read, Write},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Instant,
};

use serde_json::Value;

use crate::support::{
    long_context,
    wait::{PATIENCE, wait_until},
};

/// `lanner chat` on a pseudo-terminal, which `script` opens.
struct Terminal {
    script: std::process::Child,
    screen: mpsc::Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    /// `None`: this machine has no `script` of util-linux.
    fn open(command: &str) -> Option<Terminal> {
        let version = Command::new("script").arg("--version").output().ok()?;
        if !String::from_utf8_lossy(&version.stdout).contains("util-linux") {
            return None;
        }
        let mut script = Command::new("script")
            .args(["--quiet", "--flush", "--return", "--command", command, "/dev/null"])
            .env("TERM", "xterm")
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, screen) = mpsc::channel();
        let mut output = script.stdout.take().unwrap();
        thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(read @ 1..) = output.read(&mut some) {
                let _ = sender.send(some[..read].to_vec());
            }
        });
        Some(Terminal { script, screen, seen: String::new() })
    }

    fn keys(&mut self, keys: &str) {
        self.script.stdin.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until `text` is written after what was waited for before.
    fn wait_for(&mut self, text: &str) {
        let started = Instant::now();
        while !self.seen.contains(text) {
            // What draws its progress never pauses.
            let more = self.screen.recv_timeout(PATIENCE.saturating_sub(started.elapsed()));
            let more = more.unwrap_or_else(|_| panic!("{text:?} is missing in {:?}", self.seen));
            self.seen += &String::from_utf8_lossy(&more);
        }
        let end = self.seen.find(text).unwrap() + text.len();
        self.seen.drain(..end);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
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

//! Programs on a pseudo-terminal.

use std::{
    io::{Read, Write},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Instant,
};

use super::wait::PATIENCE;

/// A program on a pseudo-terminal, which `script` opens.
pub(crate) struct Terminal {
    script: std::process::Child,
    screen: mpsc::Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    /// `None`: this machine has no `script` of util-linux.
    pub(crate) fn open(command: &str) -> Option<Terminal> {
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

    pub(crate) fn keys(&mut self, keys: impl AsRef<[u8]>) {
        self.script.stdin.as_mut().unwrap().write_all(keys.as_ref()).unwrap();
    }

    /// Waits until `text` is written after what was waited for before.
    pub(crate) fn wait_for(&mut self, text: &str) {
        let started = Instant::now();
        while !self.seen.contains(text) {
            // A program that redraws its progress writes all the time.
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

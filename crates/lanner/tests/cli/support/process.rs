//! The `lanner` program: run to its end, or as a server to be measured or killed.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    thread,
};

use serde_json::Value;

use super::{
    client::{self, Reply},
    wait::{PATIENCE, output, status_of},
};

/// Runs `lanner` with no environment but `env`.
pub(crate) fn lanner(args: &[&str], env: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lanner"));
    command.env_clear().envs(env.iter().copied()).args(args);
    output(&mut command).unwrap()
}

/// `lanner serve` in a process of its own, so that its memory can be measured.
pub(crate) struct ServerProcess {
    pub child: Child,
    pub address: SocketAddr,
}

impl ServerProcess {
    pub(crate) fn start(args: &[&str]) -> ServerProcess {
        ServerProcess::start_program(env!("CARGO_BIN_EXE_lanner"), args)
    }

    /// Like [`start`](ServerProcess::start), with another build of the program.
    pub(crate) fn start_program(program: impl AsRef<OsStr>, args: &[&str]) -> ServerProcess {
        ServerProcess::spawn(program, args, &[])
    }

    /// Like [`start`](ServerProcess::start), with these environment variables.
    pub(crate) fn start_with(args: &[&str], variables: &[(&str, &str)]) -> ServerProcess {
        ServerProcess::spawn(env!("CARGO_BIN_EXE_lanner"), args, variables)
    }

    fn spawn(program: impl AsRef<OsStr>, args: &[&str], variables: &[(&str, &str)]) -> ServerProcess {
        let mut child = Command::new(program)
            .args([&["serve", "--port", "0", "--device", "cpu"], args].concat())
            // The user's own store is none of the tests.
            .env("LANNER_NO_STORE", "1")
            .envs(variables.iter().copied())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let (ready, serving) = mpsc::channel();
        // To the end, as a full pipe would stop the server.
        thread::spawn(move || {
            lines.for_each(|line| {
                eprintln!("{line}");
                let _ = ready.send(line);
            });
        });
        let address = loop {
            let line: String = serving.recv_timeout(PATIENCE).expect("the server starts");
            if let Some((_, url)) =
                line.split_once("serving").and_then(|(_, rest)| rest.split_once("http://"))
            {
                break url.split("/v1").next().unwrap().parse().unwrap();
            }
        };
        ServerProcess { child, address }
    }

    /// Asks it to stop, and waits until it has.
    pub(crate) fn stop(mut self) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        status_of(&mut self.child);
    }

    /// Resident megabytes; `None` where the system does not report them.
    pub(crate) fn memory(&self) -> Option<f64> {
        self.status("VmRSS:")
    }

    /// Peak resident megabytes.
    pub(crate) fn peak_memory(&self) -> Option<f64> {
        self.status("VmHWM:")
    }

    fn status(&self, name: &str) -> Option<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find(|line| line.starts_with(name))?;
        Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
    }

    pub(crate) fn complete(&self, body: &Value) -> Reply {
        let reply = client::post(self.address, "/v1/completions", body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

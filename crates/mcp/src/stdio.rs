//! The transport over a child process: one JSON message per line of stdin and stdout; its stderr
//! goes to the log.

use std::{
    io::{BufReader, Read, Write},
    process::{ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::Duration,
};

use serde_json::Value;

use crate::{
    Limits, McpError,
    config::Program,
    lines::{Line, next_line, skip_line},
    peer::Peer,
    process::Process,
};

/// Messages that wait for a server which does not read.
const UNREAD_MESSAGES: usize = 64;
/// Longest logged line of stderr, in bytes.
const LOG_LINE: usize = 2000;
/// For a process whose stdout has ended to end itself, so that its status is known.
const STATUS: Duration = Duration::from_millis(200);

/// Messages to the process; `None` once its stdin is to be closed.
type Messages = Arc<Mutex<Option<SyncSender<String>>>>;

/// The sending side of a connection to a child process.
#[derive(Debug)]
pub(crate) struct StdioTransport {
    peer: Arc<Peer>,
    messages: Messages,
    process: Arc<Mutex<Process>>,
    stop: Duration,
}

impl StdioTransport {
    /// # Errors
    /// The program cannot be started.
    pub(crate) fn start(
        program: &Program,
        peer: &Arc<Peer>,
        limits: &Limits,
    ) -> Result<StdioTransport, McpError> {
        let failed = |reason: String| McpError::Start { server: peer.name.clone(), reason };
        let mut command = Command::new(&program.command);
        command.args(&program.args).envs(program.env.iter().map(|(name, value)| (name, value)));
        program.cwd.iter().for_each(|folder| _ = command.current_dir(folder));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let process = Process::spawn(command);
        let mut process = process.map_err(|error| failed(format!("`{}`: {error}", program.command)))?;
        let child = process.child();
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
            return Err(failed("it has no pipes".into()));
        };
        let (sender, unsent) = sync_channel(UNREAD_MESSAGES);
        let messages: Messages = Arc::new(Mutex::new(Some(sender)));
        let process = Arc::new(Mutex::new(process));
        thread::spawn(move || write_messages(stdin, &unsent));
        let (own, limit, most) = (peer.clone(), limits.message_bytes, limits.log_lines);
        thread::spawn(move || log(stderr, &own, most));
        let reader = Reader { peer: peer.clone(), answers: messages.clone(), process: process.clone() };
        thread::spawn(move || reader.run(stdout, limit));
        Ok(StdioTransport { peer: peer.clone(), messages, process, stop: limits.stop })
    }

    /// # Errors
    /// The process has ended, or does not read its stdin.
    pub(crate) fn send(&self, message: String) -> Result<(), McpError> {
        let closed =
            |reason: &str| McpError::Closed { server: self.peer.name.clone(), reason: reason.into() };
        let messages = lock(&self.messages);
        let Some(messages) = &*messages else { return Err(closed("it was stopped")) };
        messages.try_send(message).map_err(|error| match error {
            TrySendError::Full(_) => {
                self.peer.close("it does not read its stdin");
                closed("it does not read its stdin")
            }
            TrySendError::Disconnected(_) => {
                self.peer.closed().unwrap_or_else(|| closed("its stdin is closed"))
            }
        })
    }

    /// Closes stdin, as the protocol asks for, then ends the process group.
    pub(crate) fn stop(&self) {
        self.peer.close("it was stopped");
        lock(&self.messages).take();
        let mut process = lock(&self.process);
        process.ended_within(self.stop);
        process.stop(self.stop);
    }
}

/// Ends with the channel, or when the process does.
fn write_messages(mut stdin: ChildStdin, messages: &Receiver<String>) {
    for message in messages {
        if stdin.write_all(message.as_bytes()).and_then(|()| stdin.write_all(b"\n")).is_err() {
            return;
        }
    }
}

/// Reads stdout until it ends or breaks the protocol.
struct Reader {
    peer: Arc<Peer>,
    /// To the server's own requests.
    answers: Messages,
    process: Arc<Mutex<Process>>,
}

impl Reader {
    fn run(self, stdout: ChildStdout, limit: usize) {
        let mut from = BufReader::with_capacity(1 << 16, stdout);
        let reason = loop {
            match next_line(&mut from, limit) {
                Ok(Some(Line::Whole(line))) => {
                    if let Err(reason) = self.take(&line) {
                        break reason;
                    }
                }
                Ok(Some(Line::TooLong(_))) => break format!("a message has more than {limit} bytes"),
                Ok(None) => break self.status(),
                Err(error) => break error.to_string(),
            }
        };
        tracing::warn!(server = self.peer.name, "MCP server ended: {}", self.peer.secrets.mask(&reason));
        self.peer.close(&reason);
        // It may still run, and write.
        lock(&self.process).stop(STATUS);
    }

    /// # Errors
    /// Why the connection cannot go on.
    fn take(&self, line: &[u8]) -> Result<(), String> {
        let text = line.trim_ascii();
        if text.is_empty() {
            return Ok(());
        }
        // Many servers print a greeting or a warning on stdout, against the protocol.
        let Ok(message) = serde_json::from_slice::<Value>(text) else {
            let shown: String = String::from_utf8_lossy(text).chars().take(200).collect();
            tracing::warn!(server = self.peer.name, "not JSON on stdout: {}", self.peer.secrets.mask(&shown));
            return self.count(text.len());
        };
        for answer in self.peer.receive(message, text.len()).map_err(reason)? {
            // A server that asks and does not read gets no answers.
            let _ = lock(&self.answers).as_ref().map(|answers| answers.try_send(answer.to_string()));
        }
        Ok(())
    }

    /// Counts what is no message like one that answers nothing.
    fn count(&self, bytes: usize) -> Result<(), String> {
        let ignored = serde_json::json!({ "method": "", "jsonrpc": "2.0" });
        self.peer.receive(ignored, bytes).map(|_| ()).map_err(reason)
    }

    fn status(&self) -> String {
        let mut process = lock(&self.process);
        match process.ended_within(STATUS) {
            Some(status) => format!("its process ended with {status}"),
            None => "it closed its stdout".into(),
        }
    }
}

/// The reason alone: the error that is made of it names the server.
fn reason(error: McpError) -> String {
    match error {
        McpError::Protocol { reason, .. } => reason,
        error => error.to_string(),
    }
}

/// Logs stderr, and reads on when enough is logged: a full pipe would stop the server.
fn log(stderr: impl Read, peer: &Peer, most: usize) {
    let mut from = BufReader::new(stderr);
    let mut logged = 0;
    loop {
        let line = match next_line(&mut from, LOG_LINE) {
            Ok(Some(Line::Whole(line))) => line,
            Ok(Some(Line::TooLong(line))) => {
                if skip_line(&mut from).is_err() {
                    return;
                }
                line
            }
            Ok(None) | Err(_) => return,
        };
        logged += 1;
        if logged <= most {
            let line = String::from_utf8_lossy(&line);
            tracing::info!(server = peer.name, "stderr: {}", peer.secrets.mask(line.trim_end()));
        } else if logged == most + 1 {
            tracing::warn!(server = peer.name, "more than {most} lines on stderr; the others are not logged");
        }
    }
}

/// A panic elsewhere leaves the value usable.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

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
/// Lines of stdout without JSON that are logged.
const LOGGED_NOISE: usize = 10;
/// Longest such line in the log, in characters.
const NOISE_CHARS: usize = 200;
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
        let failed = |reason: String| {
            let reason = peer.secrets.mask(&reason);
            McpError::Start { server: peer.name.clone(), reason }
        };
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
        let (peer_of_reader, answers, process_of_reader) = (peer.clone(), messages.clone(), process.clone());
        let reader = Reader { peer: peer_of_reader, answers, process: process_of_reader, noise: 0 };
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
    /// Lines so far that are not JSON.
    noise: usize,
}

impl Reader {
    fn run(mut self, stdout: ChildStdout, limit: usize) {
        let mut from = BufReader::with_capacity(1 << 16, stdout);
        let reason = loop {
            match next_line(&mut from, limit) {
                Ok(Some(Line::Whole(line))) => {
                    if let Err(reason) = self.take(&line) {
                        break reason;
                    }
                    // A process outside the group may hold the pipe, and write on.
                    if self.peer.closed().is_some() {
                        break "it was stopped".into();
                    }
                }
                Ok(Some(Line::TooLong(_))) => break format!("a message has more than {limit} bytes"),
                Ok(None) => break self.status(),
                Err(error) => break error.to_string(),
            }
        };
        let server = &self.peer.name;
        if self.noise > LOGGED_NOISE {
            tracing::warn!(server, "{} lines on stdout were not JSON", self.noise);
        }
        let shown = self.peer.secrets.mask(&reason);
        if !self.peer.close(&reason) {
            // This client has closed the connection, and ends the process when it likes.
            return tracing::debug!(server, "MCP server ended: {shown}");
        }
        tracing::warn!(server, "MCP server ended: {shown}");
        // It may still run, and write.
        lock(&self.process).stop(STATUS);
    }

    /// # Errors
    /// Why the connection cannot go on.
    fn take(&mut self, line: &[u8]) -> Result<(), String> {
        let text = line.trim_ascii();
        if text.is_empty() {
            return self.peer.count(line.len()).map_err(reason);
        }
        // Many servers print a greeting or a warning on stdout, against the protocol.
        let Ok(message) = serde_json::from_slice::<Value>(text) else {
            self.log_noise(text);
            return self.peer.count(line.len()).map_err(reason);
        };
        for answer in self.peer.receive(message, text.len()).map_err(reason)? {
            // A server that asks and does not read gets no answers.
            let _ = lock(&self.answers).as_ref().map(|answers| answers.try_send(answer.to_string()));
        }
        Ok(())
    }

    fn log_noise(&mut self, text: &[u8]) {
        self.noise += 1;
        let server = &self.peer.name;
        if self.noise <= LOGGED_NOISE {
            let shown = self.peer.secrets.shortened(&String::from_utf8_lossy(text), NOISE_CHARS);
            tracing::warn!(server, "not JSON on stdout: {shown}");
        } else if self.noise == LOGGED_NOISE + 1 {
            tracing::warn!(server, "more lines on stdout are not JSON; they are not logged");
        }
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
            Ok(Some(Line::Whole(line))) => peer.secrets.mask(String::from_utf8_lossy(&line).trim_end()),
            Ok(Some(Line::TooLong(line))) => {
                if skip_line(&mut from).is_err() {
                    return;
                }
                // The cut may be inside a character.
                let line = String::from_utf8_lossy(&line);
                peer.secrets.mask_start(line.trim_end_matches(char::REPLACEMENT_CHARACTER))
            }
            Ok(None) | Err(_) => return,
        };
        logged += 1;
        if logged <= most {
            tracing::info!(server = peer.name, "stderr: {line}");
        } else if logged == most + 1 {
            tracing::warn!(server = peer.name, "more than {most} lines on stderr; the others are not logged");
        } else if peer.closed().is_some() {
            // A process outside the group may hold the pipe, and write on.
            return;
        }
    }
}

/// A panic elsewhere leaves the value usable.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

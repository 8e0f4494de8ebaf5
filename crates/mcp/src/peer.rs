//! Messages from a server, over either transport: replies to waiting requests,
//! notifications, and requests of the server's own.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc::Sender,
    },
};

use serde_json::{Value, json};

use crate::{McpError, secrets::Secrets};

/// JSON-RPC: the method does not exist.
const NO_METHOD: i64 = -32601;

/// Smallest cost of a message or a line, in bytes: reading and parsing one takes time, however
/// short it is.
const MIN_COST: usize = 256;
/// Longest message of a server's error, in characters.
const ERROR_CHARS: usize = 500;

/// How a request ended.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// The result of the server.
    Result(Value),
    /// It failed.
    Failed(McpError),
    /// The caller does not want it any more.
    Cancelled,
}

/// The receiving side of a connection.
#[derive(Debug)]
pub(crate) struct Peer {
    pub name: String,
    pub secrets: Secrets,
    waiting: Mutex<Waiting>,
    /// Whether the server has said that its tools changed.
    pub tools_changed: AtomicBool,
    /// Bytes since the last reply, short messages counted as [`MIN_COST`].
    unsolicited: AtomicUsize,
    unsolicited_limit: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    callers: HashMap<u64, Sender<Reply>>,
    /// Why the connection ended.
    closed: Option<McpError>,
}

impl Peer {
    pub(crate) fn new(name: &str, secrets: Secrets, unsolicited_limit: usize) -> Peer {
        Peer {
            name: name.to_owned(),
            secrets,
            waiting: Mutex::default(),
            tools_changed: AtomicBool::new(false),
            unsolicited: AtomicUsize::new(0),
            unsolicited_limit,
        }
    }

    /// Sends the reply to request `id` to `caller`.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn expect(&self, id: u64, caller: Sender<Reply>) -> Result<(), McpError> {
        let mut waiting = self.lock();
        match &waiting.closed {
            Some(error) => Err(error.clone()),
            None => {
                waiting.callers.insert(id, caller);
                Ok(())
            }
        }
    }

    pub(crate) fn forget(&self, id: u64) {
        self.lock().callers.remove(&id);
    }

    pub(crate) fn is_expected(&self, id: u64) -> bool {
        self.lock().callers.contains_key(&id)
    }

    /// Ends one request with an error.
    pub(crate) fn fail(&self, id: u64, error: McpError) {
        if let Some(caller) = self.lock().callers.remove(&id) {
            let _ = caller.send(Reply::Failed(error));
        }
    }

    /// Ends the connection: all requests, now and later, get the first such error. Whether it was
    /// open.
    pub(crate) fn close(&self, reason: &str) -> bool {
        let mut waiting = self.lock();
        let was_open = waiting.closed.is_none();
        let closed = McpError::Closed { server: self.name.clone(), reason: self.secrets.mask(reason) };
        let error = waiting.closed.get_or_insert(closed).clone();
        for (_, caller) in waiting.callers.drain() {
            let _ = caller.send(Reply::Failed(error.clone()));
        }
        was_open
    }

    /// Why the connection ended, if it has.
    pub(crate) fn closed(&self) -> Option<McpError> {
        self.lock().closed.clone()
    }

    /// Takes a message of `bytes` bytes. Returns what is to be sent back.
    ///
    /// # Errors
    /// It is no message of JSON-RPC, or the server sends without end and answers nothing.
    pub(crate) fn receive(&self, message: Value, bytes: usize) -> Result<Vec<Value>, McpError> {
        match message {
            // Batches, which one revision of the protocol had.
            Value::Array(messages) => {
                let share = bytes / messages.len().max(1);
                let answers = messages.into_iter().map(|message| self.receive_one(message, share));
                Ok(answers.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
            }
            message => Ok(self.receive_one(message, bytes)?.into_iter().collect()),
        }
    }

    fn receive_one(&self, mut message: Value, bytes: usize) -> Result<Option<Value>, McpError> {
        if !message.is_object() {
            return Err(self.broken("a message is not an object"));
        }
        let is_reply = message.get("method").is_none();
        let caller = is_reply.then(|| message["id"].as_u64()).flatten();
        if let Some(caller) = caller.and_then(|id| self.lock().callers.remove(&id)) {
            self.unsolicited.store(0, Ordering::Relaxed);
            let _ = caller.send(self.reply(&mut message));
            return Ok(None);
        }
        self.count(bytes)?;
        match (message["method"].as_str(), message.get("id")) {
            (Some("notifications/tools/list_changed"), None) => {
                self.tools_changed.store(true, Ordering::Relaxed);
                Ok(None)
            }
            (Some("ping"), Some(id)) => Ok(Some(json!({ "jsonrpc": "2.0", "id": id, "result": {} }))),
            (Some(method), Some(id)) => {
                let error = json!({ "code": NO_METHOD, "message": format!("this client has no {method}") });
                Ok(Some(json!({ "jsonrpc": "2.0", "id": id, "error": error })))
            }
            // Progress, log messages, and replies that came too late.
            _ => Ok(None),
        }
    }

    /// Counts `bytes` bytes that answer nothing, as one message or line.
    ///
    /// # Errors
    /// The server sends without end and answers nothing.
    pub(crate) fn count(&self, bytes: usize) -> Result<(), McpError> {
        let cost = bytes.max(MIN_COST);
        match self.unsolicited.fetch_add(cost, Ordering::Relaxed) + cost {
            total if total <= self.unsolicited_limit => Ok(()),
            total => Err(self.broken(&format!("it sent {total} bytes that answer nothing"))),
        }
    }

    fn reply(&self, message: &mut Value) -> Reply {
        if let Some(error) = message.get("error") {
            let text = error["message"].as_str().unwrap_or("an error without a message");
            return Reply::Failed(self.refused(error["code"].as_i64().unwrap_or_default(), text));
        }
        match message.get_mut("result") {
            Some(result) => Reply::Result(result.take()),
            None => Reply::Failed(self.broken("a reply has neither result nor error")),
        }
    }

    pub(crate) fn broken(&self, reason: &str) -> McpError {
        McpError::Protocol { server: self.name.clone(), reason: self.secrets.mask(reason) }
    }

    /// The error of a failed request, with the server's own words.
    pub(crate) fn refused(&self, code: i64, text: &str) -> McpError {
        let message = self.secrets.shortened(text, ERROR_CHARS);
        McpError::Refused { server: self.name.clone(), code, message }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

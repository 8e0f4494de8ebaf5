//! Limits that keep a faulty or hostile server from costing more than its own calls.

use std::time::Duration;

/// How much a server may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest message, in bytes; a server that sends a larger one is ended.
    pub message_bytes: usize,
    /// Longest text of a tool's result, in bytes; longer ones are shortened, and say so.
    pub result_bytes: usize,
    /// Largest definition of a tool, in bytes; larger ones are left out.
    pub tool_bytes: usize,
    /// Most tools of a server; further ones are left out.
    pub tools: usize,
    /// Most bytes that a server may send without answering; more ends it.
    pub unsolicited_bytes: usize,
    /// Most lines of a server's stderr that are logged.
    pub log_lines: usize,
    /// For the start: the process, the handshake and the list of tools.
    pub start: Duration,
    /// For a call, if the caller sets no earlier deadline.
    pub call: Duration,
    /// Before a server that failed twice in a row is started again.
    pub rest: Duration,
    /// For a process to end by itself once its stdin is closed, and again after SIGTERM.
    pub stop: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            message_bytes: 8 << 20,
            result_bytes: 64 << 10,
            tool_bytes: 64 << 10,
            tools: 256,
            unsolicited_bytes: 64 << 20,
            log_lines: 1000,
            start: Duration::from_secs(30),
            call: Duration::from_secs(60),
            rest: Duration::from_secs(60),
            stop: Duration::from_millis(500),
        }
    }
}

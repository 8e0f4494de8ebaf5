//! Why a server's tools cannot be listed or called.

/// A failure of one server; its message names the server and holds none of its secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum McpError {
    /// The process does not start, or the server cannot be reached.
    #[error("the MCP server `{server}` cannot be started: {reason}")]
    Start {
        /// The server's name in the configuration.
        server: String,
        /// The failure, in words.
        reason: String,
    },
    /// No answer came in time.
    #[error("the MCP server `{server}` has not answered {method} within {seconds} s")]
    Timeout {
        /// The server's name.
        server: String,
        /// The JSON-RPC method.
        method: String,
        /// Whole seconds that it had.
        seconds: u64,
    },
    /// The connection ended, by the server's fault or because a limit was reached.
    #[error("the connection to the MCP server `{server}` has ended: {reason}")]
    Closed {
        /// The server's name.
        server: String,
        /// How it ended.
        reason: String,
    },
    /// It failed twice in a row and is left alone for a while.
    #[error(
        "the MCP server `{server}` failed twice in a row and is not started again for {seconds} s: {reason}"
    )]
    Resting {
        /// The server's name.
        server: String,
        /// Seconds until it is started again.
        seconds: u64,
        /// The last failure.
        reason: String,
    },
    /// An answer that the protocol does not allow.
    #[error("the MCP server `{server}` breaks the protocol: {reason}")]
    Protocol {
        /// The server's name.
        server: String,
        /// The problem, in words.
        reason: String,
    },
    /// The server answered with an error.
    #[error("the MCP server `{server}` answers error {code}: {message}")]
    Refused {
        /// The server's name.
        server: String,
        /// JSON-RPC's code.
        code: i64,
        /// The server's message.
        message: String,
    },
    /// An HTTP status that is no answer.
    #[error("the MCP server `{server}` answers HTTP status {status}{}", hint(*status))]
    Status {
        /// The server's name.
        server: String,
        /// The status.
        status: u16,
    },
    /// The caller cancelled the call.
    #[error("the call of the MCP server `{server}` was cancelled")]
    Cancelled {
        /// The server's name.
        server: String,
    },
    /// The session is over; the request was not carried out.
    #[error("the session with the MCP server `{server}` has expired")]
    Expired {
        /// The server's name.
        server: String,
    },
}

impl McpError {
    /// Whether the connection is of no further use.
    pub(crate) fn is_fatal(&self) -> bool {
        matches!(self, McpError::Start { .. } | McpError::Closed { .. })
    }
}

fn hint(status: u16) -> &'static str {
    match status {
        401 | 403 => "; give it a token in `headers`, OAuth is not supported",
        300..=399 => "; redirects are not followed, name the final URL",
        404 | 405 => "; check the URL, often it ends in /mcp",
        _ => "",
    }
}

//! One connection to a server: the handshake, and requests with their deadlines.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    CallResult, Cancel, Limits, McpError, Options, ServerConfig, SkippedTool, ToolList, TransportConfig,
    http::HttpTransport,
    peer::{Peer, Reply},
    stdio::StdioTransport,
};

/// Versions of the protocol that begin with `initialize`, the latest first.
const VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// The version without sessions: each request says what `initialize` said.
const STATELESS: &str = "2026-07-28";
/// Most pages of a list of tools.
const MAX_PAGES: usize = 100;
/// Longest version of the protocol in an error, in characters.
const VERSION_CHARS: usize = 40;
/// How long a list of tools holds if the server cannot say that it changed.
const FRESH: Duration = Duration::from_secs(60);

enum Transport {
    Stdio(StdioTransport),
    Http(HttpTransport),
}

/// A connection; useful after its handshake.
pub(crate) struct Session {
    peer: Arc<Peer>,
    transport: Transport,
    limits: Limits,
    next_id: AtomicU64,
    is_stateless: AtomicBool,
    has_tools: AtomicBool,
    /// With the time when they were listed.
    tools: Mutex<Option<(Instant, Arc<ToolList>)>>,
}

impl Session {
    /// Starts the server's process, if it has one, and waits for nothing.
    ///
    /// # Errors
    /// The process does not start.
    pub(crate) fn open(config: &ServerConfig, options: &Options) -> Result<Session, McpError> {
        let limits = options.limits;
        let secrets = config.transport.secrets();
        let peer = Arc::new(Peer::new(&config.name, secrets, limits.unsolicited_bytes));
        let transport = match &config.transport {
            TransportConfig::Stdio(program) => {
                Transport::Stdio(StdioTransport::start(program, &peer, &limits)?)
            }
            TransportConfig::Http(endpoint) => {
                Transport::Http(HttpTransport::new(endpoint, &peer, &limits, options.proxy.clone()))
            }
        };
        Ok(Session {
            peer,
            transport,
            limits,
            next_id: AtomicU64::new(1),
            is_stateless: AtomicBool::new(false),
            has_tools: AtomicBool::new(true),
            tools: Mutex::default(),
        })
    }

    /// Shakes hands, once and before anything else.
    ///
    /// # Errors
    /// The server does not answer as the protocol says in time.
    pub(crate) fn start(&self, cancel: &Cancel) -> Result<(), McpError> {
        self.shake_hands(Instant::now() + self.limits.start, cancel).map_err(|error| match error {
            McpError::Closed { server, reason } => McpError::Start { server, reason },
            error => error,
        })
    }

    fn shake_hands(&self, deadline: Instant, cancel: &Cancel) -> Result<(), McpError> {
        let params =
            json!({ "protocolVersion": VERSIONS[0], "capabilities": {}, "clientInfo": client_info() });
        let answer = match self.request("initialize", params, deadline, cancel) {
            Ok(answer) => answer,
            Err(error @ (McpError::Refused { .. } | McpError::Status { status: 400 | 404 | 405, .. })) => {
                return self.discover(deadline, cancel).map_err(|_| error);
            }
            Err(error) => return Err(error),
        };
        let version = answer["protocolVersion"].as_str().unwrap_or_default();
        if !VERSIONS.contains(&version) {
            let shown = self.peer.secrets.shortened(version, VERSION_CHARS);
            let reason = format!("it chose version `{shown}`; this client has {}", VERSIONS.join(", "));
            return Err(self.peer.broken(&reason));
        }
        self.has_tools.store(answer["capabilities"]["tools"].is_object(), Ordering::Relaxed);
        let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        match &self.transport {
            Transport::Stdio(stdio) => stdio.send(initialized.to_string()),
            Transport::Http(http) => {
                http.set_version(version);
                http.notify(&initialized)?;
                http.listen();
                Ok(())
            }
        }
    }

    /// The handshake of servers that have no `initialize`.
    fn discover(&self, deadline: Instant, cancel: &Cancel) -> Result<(), McpError> {
        self.is_stateless.store(true, Ordering::Relaxed);
        if let Transport::Http(http) = &self.transport {
            http.set_version(STATELESS);
        }
        let answer = self.request("server/discover", json!({}), deadline, cancel)?;
        self.has_tools.store(answer["capabilities"]["tools"].is_object(), Ordering::Relaxed);
        Ok(())
    }

    /// The tools, listed anew if the server said that they changed.
    ///
    /// # Errors
    /// The server does not answer as the protocol says.
    pub(crate) fn tools(&self, cancel: &Cancel) -> Result<Arc<ToolList>, McpError> {
        // One caller lists, the others wait for it.
        let mut known = self.tools.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = self.peer.tools_changed.swap(false, Ordering::Relaxed);
        let is_stateless = self.is_stateless.load(Ordering::Relaxed);
        let is_fresh = |at: Instant| !changed && (!is_stateless || at.elapsed() < FRESH);
        if let Some((_, tools)) = known.as_ref().filter(|(at, _)| is_fresh(*at)) {
            return Ok(tools.clone());
        }
        let tools = self.list(cancel).inspect_err(|_| {
            // Still to be listed.
            self.peer.tools_changed.fetch_or(changed, Ordering::Relaxed);
        })?;
        self.log(&tools);
        let tools = Arc::new(tools);
        *known = Some((Instant::now(), tools.clone()));
        Ok(tools)
    }

    fn list(&self, cancel: &Cancel) -> Result<ToolList, McpError> {
        let mut list = ToolList::default();
        if !self.has_tools.load(Ordering::Relaxed) {
            return Ok(list);
        }
        let deadline = Instant::now() + self.limits.start;
        let mut params = json!({});
        for _ in 0..MAX_PAGES {
            let page = self.request("tools/list", params, deadline, cancel)?;
            let tools = page["tools"]
                .as_array()
                .ok_or_else(|| self.peer.broken("tools/list has no array `tools`"))?;
            let continues = list.add_page(tools, &self.limits, &self.peer.secrets);
            match page["nextCursor"].as_str() {
                Some(cursor) if continues => params = json!({ "cursor": cursor }),
                _ => return Ok(list),
            }
        }
        list.is_cut = true;
        Ok(list)
    }

    fn log(&self, list: &ToolList) {
        let server = &self.peer.name;
        for SkippedTool { name, reason } in &list.skipped {
            tracing::warn!(server, "the tool {name} is left out: {reason}");
        }
        if list.is_cut {
            tracing::warn!(server, "it has more than {} tools; the others are left out", self.limits.tools);
        }
    }

    /// # Errors
    /// The server fails, or is too slow. A failure of the tool itself is a result.
    pub(crate) fn call(
        &self,
        tool: &str,
        arguments: &Value,
        deadline: Instant,
        cancel: &Cancel,
    ) -> Result<CallResult, McpError> {
        let params = json!({ "name": tool, "arguments": arguments });
        let result = self.request("tools/call", params, deadline, cancel)?;
        match result.is_object() {
            true => Ok(CallResult::new(&result, self.limits.result_bytes)),
            false => Err(self.peer.broken("the result of tools/call is not an object")),
        }
    }

    fn request(
        &self,
        method: &str,
        mut params: Value,
        deadline: Instant,
        cancel: &Cancel,
    ) -> Result<Value, McpError> {
        if self.is_stateless.load(Ordering::Relaxed) {
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": STATELESS,
                "io.modelcontextprotocol/clientInfo": client_info(),
                "io.modelcontextprotocol/clientCapabilities": {},
            });
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let (caller, reply) = mpsc::channel();
        let started = Instant::now();
        self.peer.expect(id, caller.clone())?;
        cancel.watch(&caller);
        // The channel is then closed if the peer forgets the request.
        drop(caller);
        match &self.transport {
            Transport::Stdio(stdio) => {
                stdio.send(message.to_string()).inspect_err(|_| self.peer.forget(id))?
            }
            Transport::Http(http) => http.request(id, message, deadline),
        }
        let server = || self.peer.name.clone();
        let error = match reply.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(Reply::Result(result)) => return Ok(result),
            Ok(Reply::Failed(error)) => return Err(error),
            Ok(Reply::Cancelled) => McpError::Cancelled { server: server() },
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                let seconds = started.elapsed().as_secs_f64().round() as u64;
                McpError::Timeout { server: server(), method: method.to_owned(), seconds }
            }
        };
        self.peer.forget(id);
        self.tell_cancelled(id, &error);
        Err(error)
    }

    /// Tells the server that the reply to a request is not awaited any more.
    fn tell_cancelled(&self, id: u64, error: &McpError) {
        let reason = if matches!(error, McpError::Cancelled { .. }) { "cancelled" } else { "timeout" };
        let params = json!({ "requestId": id, "reason": reason });
        let message = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params });
        match &self.transport {
            Transport::Stdio(stdio) => _ = stdio.send(message.to_string()),
            Transport::Http(http) => http.notify_later(message),
        }
    }

    /// Why the connection ended, if it has.
    pub(crate) fn closed(&self) -> Option<McpError> {
        self.peer.closed()
    }

    /// Ends the connection, and a server that this client started.
    pub(crate) fn stop(&self) {
        match &self.transport {
            Transport::Stdio(stdio) => stdio.stop(),
            Transport::Http(http) => http.stop(),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "session of {}", self.peer.name)
    }
}

fn client_info() -> Value {
    json!({ "name": "lanner", "version": env!("CARGO_PKG_VERSION") })
}

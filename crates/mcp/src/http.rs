//! The transport over streamable HTTP: each message is a POST, whose answer is JSON or a stream of
//! events. Requests block, so each has a thread, which ends at its deadline at the latest.

use std::{
    io::{BufReader, ErrorKind, Read},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use ureq::{
    Agent, Body,
    http::{Response, header},
    tls::{RootCerts, TlsConfig},
};

use crate::{Limits, McpError, config::Endpoint, peer::Peer, sse::next_event};

const CONNECT: Duration = Duration::from_secs(10);
/// For messages that have no answer.
const NOTIFY: Duration = Duration::from_secs(10);
/// For the end of a session, which servers need not answer.
const END: Duration = Duration::from_secs(1);
/// A stream of notifications is opened anew after this time without any.
const SILENCE: Duration = Duration::from_secs(120);
/// Before a stream that ended is opened again.
const REOPEN: Duration = Duration::from_secs(1);
/// The longest such pause: it doubles while streams end sooner than this.
const MAX_REOPEN: Duration = Duration::from_secs(60);
/// Times that the stream of one answer is resumed.
const RESUMES: usize = 3;
/// Bytes of an error's body that are read.
const ERROR_BYTES: u64 = 64 << 10;
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const SESSION: &str = "mcp-session-id";

/// The sending side of a connection over HTTP.
#[derive(Clone)]
pub(crate) struct HttpTransport(Arc<Shared>);

struct Shared {
    peer: Arc<Peer>,
    agent: Agent,
    endpoint: Endpoint,
    message_bytes: usize,
    session: Mutex<HttpSession>,
}

/// Header values of all later requests.
#[derive(Clone, Default)]
struct HttpSession {
    id: Option<String>,
    version: Option<String>,
}

impl HttpTransport {
    pub(crate) fn new(
        endpoint: &Endpoint,
        peer: &Arc<Peer>,
        limits: &Limits,
        proxy: Option<ureq::Proxy>,
    ) -> HttpTransport {
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
        let agent = Agent::config_builder()
            .tls_config(tls)
            .proxy(proxy.filter(|_| !endpoint.is_loopback()))
            .http_status_as_error(false)
            // A redirect could lead the headers to another host.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("lanner/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT))
            .build()
            .into();
        HttpTransport(Arc::new(Shared {
            peer: peer.clone(),
            agent,
            endpoint: endpoint.clone(),
            message_bytes: limits.message_bytes,
            session: Mutex::default(),
        }))
    }

    /// Sends the request `id`; its reply, or its failure, goes to the peer.
    pub(crate) fn request(&self, id: u64, message: Value, deadline: Instant) {
        let shared = self.0.clone();
        thread::spawn(move || {
            if let Err(error) = shared.post(Some(id), &message, deadline) {
                shared.peer.fail(id, error);
            }
        });
    }

    /// Sends a message without an answer, and waits until the server has it.
    pub(crate) fn notify(&self, message: &Value) -> Result<(), McpError> {
        self.0.post(None, message, Instant::now() + NOTIFY)
    }

    /// [`notify`](HttpTransport::notify) without waiting.
    pub(crate) fn notify_later(&self, message: Value) {
        let shared = self.0.clone();
        // The server is no worse off without it.
        thread::spawn(move || _ = shared.post(None, &message, Instant::now() + NOTIFY));
    }

    /// All later requests name this version of the protocol.
    pub(crate) fn set_version(&self, version: &str) {
        self.0.session().version = Some(version.to_owned());
    }

    /// Receives notifications that belong to no request, if the server has a stream of them.
    pub(crate) fn listen(&self) {
        let shared = Arc::downgrade(&self.0);
        thread::spawn(move || {
            let mut pause = REOPEN;
            while let Some(shared) = shared.upgrade().filter(|shared| shared.peer.closed().is_none()) {
                let opened = Instant::now();
                if !shared.read_notifications() {
                    return;
                }
                drop(shared);
                if opened.elapsed() >= MAX_REOPEN {
                    pause = REOPEN;
                }
                thread::sleep(pause);
                pause = (pause * 2).min(MAX_REOPEN);
            }
        });
    }

    /// Ends the session.
    pub(crate) fn stop(&self) {
        self.0.peer.close("it was stopped");
        let session = self.0.session().clone();
        if session.id.is_some() {
            let request = self.0.agent.delete(&self.0.endpoint.url);
            let request = self.0.with_headers(request, &session);
            // Servers may refuse it.
            let _ = request.config().timeout_global(Some(END)).build().call();
        }
    }
}

impl Shared {
    /// # Errors
    /// The server cannot be reached, or its answer is none.
    fn post(&self, id: Option<u64>, message: &Value, deadline: Instant) -> Result<(), McpError> {
        let session = self.session().clone();
        let remaining = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let mut request = self.with_headers(self.agent.post(&self.endpoint.url), &session);
        request =
            request.header(header::CONTENT_TYPE, JSON).header(header::ACCEPT, format!("{JSON}, {EVENTS}"));
        // The stateless protocol repeats what proxies route by.
        if message["params"]["_meta"].is_object() {
            request = request.header("mcp-method", message["method"].as_str().unwrap_or_default());
            let name = message["params"]["name"].as_str();
            request = name.into_iter().fold(request, |request, name| request.header("mcp-name", name));
        }
        let request = request.config().timeout_global(Some(remaining)).build();
        let response = request.send(message.to_string()).map_err(|error| self.unreachable(&error))?;
        if let Some(id) = response.headers().get(SESSION).and_then(|id| id.to_str().ok()) {
            self.session().id = Some(id.to_owned());
        }
        match (response.status().as_u16(), id) {
            (200..=299, None) => Ok(()),
            (200, Some(id)) => self.answer(id, response, deadline),
            (404, _) if session.id.is_some() => Err(McpError::Expired { server: self.peer.name.clone() }),
            (status, _) => Err(self.refused(status, response)),
        }
    }

    /// Takes the messages of an answer until the reply to `id` is among them.
    fn answer(&self, id: u64, response: Response<Body>, deadline: Instant) -> Result<(), McpError> {
        if !is_stream(&response) {
            let limit = self.message_bytes;
            let mut body = vec![];
            let read = response.into_body().into_reader().take(limit as u64 + 1).read_to_end(&mut body);
            read.map_err(|error| self.closed(&error.to_string()))?;
            if body.len() > limit {
                return Err(self.closed(&format!("a message has more than {limit} bytes")));
            }
            self.take(&body, body.len())?;
            return match self.peer.is_expected(id) {
                true => Err(self.peer.broken("its answer is not a reply to the request")),
                false => Ok(()),
            };
        }
        let mut last = self.read_stream(Some(id), response)?;
        for _ in 0..RESUMES {
            // A server may end the stream, and go on where the client resumes it.
            let Some(event) = last.take().filter(|_| self.peer.is_expected(id)) else { break };
            thread::sleep(REOPEN.min(deadline.saturating_duration_since(Instant::now())));
            let response =
                self.open_stream(Some(&event), deadline.saturating_duration_since(Instant::now()))?;
            if response.status().as_u16() != 200 || !is_stream(&response) {
                break;
            }
            last = self.read_stream(Some(id), response)?.or(Some(event));
        }
        match self.peer.is_expected(id) {
            true => Err(self.closed("its answer ended before the reply")),
            false => Ok(()),
        }
    }

    /// Takes the messages of a stream, until its end or until `id` is answered. Returns the id of
    /// the last event.
    fn read_stream(&self, id: Option<u64>, response: Response<Body>) -> Result<Option<String>, McpError> {
        let mut from = BufReader::new(response.into_body().into_reader());
        let mut last = None;
        loop {
            let event = match next_event(&mut from, self.message_bytes) {
                Ok(event) => event,
                Err(error) => {
                    if error.kind() == ErrorKind::InvalidData {
                        self.peer.count(self.message_bytes)?;
                    }
                    return Err(self.closed(&error.to_string()));
                }
            };
            let Some(event) = event else { return Ok(last) };
            last = event.id.filter(|id| !id.is_empty()).or(last);
            match event.data.is_empty() {
                true => self.peer.count(event.bytes)?,
                false => self.take(event.data.as_bytes(), event.bytes)?,
            }
            let is_answered = id.is_some_and(|id| !self.peer.is_expected(id));
            if is_answered || self.peer.closed().is_some() {
                return Ok(last);
            }
        }
    }

    /// Takes a message, which came as `bytes` bytes.
    fn take(&self, text: &[u8], bytes: usize) -> Result<(), McpError> {
        let message = serde_json::from_slice(text);
        let message: Value =
            message.map_err(|error| self.peer.broken(&format!("a message is not JSON: {error}")))?;
        for answer in self.peer.receive(message, bytes)? {
            self.post(None, &answer, Instant::now() + NOTIFY)?;
        }
        Ok(())
    }

    /// Whether to open the stream again once it has ended.
    fn read_notifications(&self) -> bool {
        match self.open_stream(None, SILENCE) {
            // Servers without such a stream answer 405.
            Ok(response) if response.status().as_u16() != 200 || !is_stream(&response) => false,
            Ok(response) => match self.read_stream(None, response) {
                Err(McpError::Protocol { reason, .. }) => {
                    if self.peer.close(&reason) {
                        tracing::warn!(server = self.peer.name, "MCP server ended: {reason}");
                    }
                    false
                }
                _ => true,
            },
            Err(_) => true,
        }
    }

    fn open_stream(&self, after: Option<&str>, silence: Duration) -> Result<Response<Body>, McpError> {
        let session = self.session().clone();
        let mut request = self.with_headers(self.agent.get(&self.endpoint.url), &session);
        request = request.header(header::ACCEPT, EVENTS);
        request = after.into_iter().fold(request, |request, id| request.header("last-event-id", id));
        let silence = Some(silence.max(Duration::from_millis(1)));
        let request = request.config().timeout_recv_response(silence).timeout_per_read(silence).build();
        request.call().map_err(|error| self.unreachable(&error))
    }

    fn with_headers<B>(
        &self,
        request: ureq::RequestBuilder<B>,
        session: &HttpSession,
    ) -> ureq::RequestBuilder<B> {
        let own = self.endpoint.headers.iter().map(|(name, value)| (&**name, &**value));
        let id = session.id.as_deref().map(|id| (SESSION, id));
        let version = session.version.as_deref().map(|version| ("mcp-protocol-version", version));
        own.chain(id).chain(version).fold(request, |request, (name, value)| request.header(name, value))
    }

    /// The error of a status, or of the JSON-RPC error in its body.
    fn refused(&self, status: u16, response: Response<Body>) -> McpError {
        let mut body = vec![];
        let read = response.into_body().into_reader().take(ERROR_BYTES).read_to_end(&mut body);
        let message: Value = read.ok().and_then(|_| serde_json::from_slice(&body).ok()).unwrap_or_default();
        match message["error"]["message"].as_str() {
            Some(text) => {
                self.peer.refused(message["error"]["code"].as_i64().unwrap_or(i64::from(status)), text)
            }
            None => McpError::Status { server: self.peer.name.clone(), status },
        }
    }

    fn unreachable(&self, error: &ureq::Error) -> McpError {
        self.closed(&format!("{} cannot be reached: {error}", self.endpoint.shown_url()))
    }

    fn closed(&self, reason: &str) -> McpError {
        McpError::Closed { server: self.peer.name.clone(), reason: self.peer.secrets.mask(reason) }
    }

    fn session(&self) -> MutexGuard<'_, HttpSession> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_stream(response: &Response<Body>) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.trim_start().to_ascii_lowercase().starts_with(EVENTS))
}

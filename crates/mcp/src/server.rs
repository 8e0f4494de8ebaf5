//! A configured server: started when it is first needed, and again after it failed.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{CallResult, Cancel, McpError, Options, ServerConfig, ToolList, session::Session};

/// Failures in a row after which a server rests.
const MAX_FAILURES: usize = 2;

/// A server of the configuration. All methods block, and may be called from several threads.
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    options: Options,
    state: Mutex<State>,
    /// Held while the server starts.
    starting: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    session: Option<Arc<Session>>,
    /// Those that start or end. With `session`, all whose processes may run.
    passing: Vec<Arc<Session>>,
    /// In a row, without a successful call between them.
    failures: usize,
    last_failure: Option<(Instant, McpError)>,
    is_stopped: bool,
}

/// A call of a tool.
#[derive(Clone, Copy, Debug)]
pub struct CallParams<'a> {
    /// The server's name of the tool.
    pub tool: &'a str,
    /// An object.
    pub arguments: &'a Value,
    /// When to give up; the limit for calls holds too.
    pub deadline: Option<Instant>,
    /// Ends the call from another thread.
    pub cancel: &'a Cancel,
}

impl Server {
    pub(crate) fn new(config: ServerConfig, options: Options) -> Server {
        Server { config, options, state: Mutex::default(), starting: Mutex::default() }
    }

    /// Its name in the configuration.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Its configuration.
    pub fn config(&self) -> &ServerConfig {
        &self.config
    }

    /// The tools of the server, which is started if it does not run.
    ///
    /// # Errors
    /// It does not start, or does not list them in time.
    pub fn tools(&self, cancel: &Cancel) -> Result<Arc<ToolList>, McpError> {
        let session = self.session(cancel)?;
        let tools = session.tools(cancel);
        let tools = self.again_if_expired(tools, &session, cancel, |session| session.tools(cancel));
        tools.inspect_err(|error| self.record(error))
    }

    /// Calls a tool. A server that fails during the call is not asked again, because the tool may
    /// have acted; the next call starts it anew.
    ///
    /// # Errors
    /// The server fails, or is too slow. A failure of the tool itself is a result.
    pub fn call(&self, params: CallParams) -> Result<CallResult, McpError> {
        let CallParams { tool, arguments, cancel, .. } = params;
        let session = self.session(cancel)?;
        let latest = Instant::now() + self.options.limits.call;
        let deadline = params.deadline.map_or(latest, |deadline| deadline.min(latest));
        let result = session.call(tool, arguments, deadline, cancel);
        let again = |session: &Session| session.call(tool, arguments, deadline, cancel);
        let result = self.again_if_expired(result, &session, cancel, again);
        match &result {
            Ok(_) => self.lock().failures = 0,
            Err(error) => self.record(error),
        }
        result
    }

    /// Repeats in a new session what an expired one refused to do.
    fn again_if_expired<T>(
        &self,
        result: Result<T, McpError>,
        session: &Arc<Session>,
        cancel: &Cancel,
        again: impl FnOnce(&Session) -> Result<T, McpError>,
    ) -> Result<T, McpError> {
        match result {
            Err(McpError::Expired { .. }) => {
                self.lock().session.take_if(|current| Arc::ptr_eq(current, session));
                again(&*self.session(cancel)?)
            }
            result => result,
        }
    }

    /// Ends the server for good, also while it starts. Blocks for some seconds at most.
    pub fn stop(&self) {
        let sessions: Vec<Arc<Session>> = {
            let mut state = self.lock();
            state.is_stopped = true;
            let session = state.session.take();
            state.passing.drain(..).chain(session).collect()
        };
        sessions.iter().for_each(|session| session.stop());
    }

    /// Ends a session of `passing`.
    fn end(&self, session: &Arc<Session>) {
        session.stop();
        self.lock().passing.retain(|other| !Arc::ptr_eq(other, session));
    }

    /// The running session, or a new one.
    fn session(&self, cancel: &Cancel) -> Result<Arc<Session>, McpError> {
        if let Some(session) = self.running() {
            return Ok(session);
        }
        let _starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have started it meanwhile.
        if let Some(session) = self.running() {
            return Ok(session);
        }
        self.check_rest()?;
        let session = self.open().inspect_err(|error| self.record(error))?;
        if let Err(error) = session.start(cancel) {
            self.end(&session);
            self.record(&error);
            return Err(error);
        }
        let mut state = self.lock();
        if state.is_stopped {
            drop(state);
            self.end(&session);
            return Err(self.stopped());
        }
        tracing::info!(server = self.name(), "MCP server started");
        state.passing.retain(|other| !Arc::ptr_eq(other, &session));
        state.session = Some(session.clone());
        Ok(session)
    }

    /// A session that is still to start. Its process is spawned under the lock, so that
    /// [`stop`](Server::stop) misses none.
    fn open(&self) -> Result<Arc<Session>, McpError> {
        let mut state = self.lock();
        if state.is_stopped {
            return Err(self.stopped());
        }
        let session = Arc::new(Session::open(&self.config, &self.options)?);
        state.passing.push(session.clone());
        Ok(session)
    }

    fn stopped(&self) -> McpError {
        McpError::Start { server: self.name().to_owned(), reason: "it was stopped".into() }
    }

    /// The session, unless it has ended, which counts as a failure once.
    fn running(&self) -> Option<Arc<Session>> {
        let mut state = self.lock();
        let closed = state.session.as_ref()?.closed();
        match closed {
            None => state.session.clone(),
            Some(error) => {
                let ended = state.session.take();
                state.fail(error);
                state.passing.extend(ended.clone());
                drop(state);
                ended.iter().for_each(|session| self.end(session));
                None
            }
        }
    }

    /// # Errors
    /// The server failed too often and too recently to be started.
    fn check_rest(&self) -> Result<(), McpError> {
        let mut state = self.lock();
        let rest = self.options.limits.rest;
        let Some((at, error)) = state.last_failure.clone().filter(|_| state.failures >= MAX_FAILURES) else {
            return Ok(());
        };
        let remaining = rest.saturating_sub(at.elapsed());
        if remaining > Duration::ZERO {
            let (server, seconds) = (self.name().to_owned(), remaining.as_secs_f64().ceil() as u64);
            let reason = match error {
                McpError::Closed { reason, .. } | McpError::Start { reason, .. } => reason,
                error => error.to_string(),
            };
            return Err(McpError::Resting { server, seconds, reason });
        }
        state.failures = 0;
        Ok(())
    }

    /// Counts a failure of a connection; one that ended is counted where that is noticed.
    fn record(&self, error: &McpError) {
        let mut state = self.lock();
        let is_counted_later = state.session.as_ref().is_some_and(|session| session.closed().is_some());
        let is_start = state.session.is_none()
            && !matches!(error, McpError::Cancelled { .. } | McpError::Resting { .. });
        if !is_counted_later && (is_start || error.is_fatal()) {
            state.fail(error.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn fail(&mut self, error: McpError) {
        self.failures += 1;
        self.last_failure = Some((Instant::now(), error));
    }
}

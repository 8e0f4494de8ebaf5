//! What a connection is doing, as those see it who decide whether it has taken too long.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use crate::config::Timeouts;

/// How long a client that has connected may take to send anything before another may take its
/// place.
const FIRST_BYTES: Duration = Duration::from_secs(1);

pub struct Activity {
    state: Mutex<State>,
    closed: Notify,
}

struct State {
    phase: Phase,
    /// Since when the client has not taken what was written.
    blocked: Option<Instant>,
    /// The body of the last request has not been read to its end.
    unread_body: bool,
    overdue: Option<Overdue>,
}

enum Phase {
    /// Nothing has come of a first or of another request.
    Idle { since: Instant, first: bool },
    /// A part of a request's head has come.
    Head { since: Instant },
    /// A request is being answered, or its body read.
    Request,
}

/// What took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdue {
    Head,
    /// The client idles, or does not read.
    Other,
}

impl Activity {
    pub fn new() -> Activity {
        let phase = Phase::Idle { since: Instant::now(), first: true };
        let state = State { phase, blocked: None, unread_body: false, overdue: None };
        Activity { state: Mutex::new(state), closed: Notify::new() }
    }

    pub fn received(&self) {
        let mut state = self.state();
        if matches!(state.phase, Phase::Idle { .. }) {
            state.phase = Phase::Head { since: Instant::now() };
        }
    }

    pub fn wrote(&self, taken: bool) {
        let mut state = self.state();
        state.blocked = if taken { None } else { state.blocked.or_else(|| Some(Instant::now())) };
    }

    pub fn begin(&self, has_body: bool) {
        let mut state = self.state();
        state.phase = Phase::Request;
        state.unread_body = has_body;
    }

    pub fn body_ended(&self) {
        self.state().unread_body = false;
    }

    pub fn answered(&self) {
        self.state().phase = Phase::Idle { since: Instant::now(), first: false };
    }

    pub fn has_unread_body(&self) -> bool {
        self.state().unread_body
    }

    pub fn has_request(&self) -> bool {
        let state = self.state();
        matches!(state.phase, Phase::Request) || state.blocked.is_some()
    }

    /// `None` unless it could be closed without any loss. A client that has just connected is about
    /// to send.
    pub fn idle_since(&self) -> Option<Instant> {
        let state = self.state();
        match state.phase {
            _ if state.blocked.is_some() || state.overdue.is_some() => None,
            Phase::Idle { since, first } if !first || since.elapsed() > FIRST_BYTES => Some(since),
            _ => None,
        }
    }

    /// Closes it if it has taken too long.
    pub fn check(&self, timeouts: &Timeouts, now: Instant) {
        let mut state = self.state();
        let late = |since: Instant, limit: Duration| now.saturating_duration_since(since) > limit;
        let overdue = match state.phase {
            _ if state.blocked.is_some_and(|since| late(since, timeouts.write)) => Some(Overdue::Other),
            // One that says nothing at all gets no longer than one that says something.
            Phase::Idle { since, first: true } if late(since, timeouts.head) => Some(Overdue::Other),
            Phase::Idle { since, first: false } if late(since, timeouts.idle) => Some(Overdue::Other),
            Phase::Head { since } if late(since, timeouts.head) => Some(Overdue::Head),
            _ => None,
        };
        if state.overdue.is_none() && overdue.is_some() {
            state.overdue = overdue;
            self.closed.notify_one();
        }
    }

    pub fn close(&self) {
        self.state().overdue = Some(Overdue::Other);
        self.closed.notify_one();
    }

    /// Waits until it is to be closed.
    pub async fn closed(&self) {
        self.closed.notified().await;
    }

    pub fn overdue(&self) -> Option<Overdue> {
        self.state().overdue
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

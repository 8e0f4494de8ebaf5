//! The state of a connection for timeouts and eviction.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use crate::config::Timeouts;

/// A new connection that sends nothing for this long may be evicted.
const FIRST_BYTES: Duration = Duration::from_secs(1);

pub(super) struct Activity {
    state: Mutex<State>,
    closed: Notify,
}

struct State {
    phase: Phase,
    /// When a write first blocked because the client does not read.
    blocked: Option<Instant>,
    /// The body of the last request was not read to its end.
    unread_body: bool,
    overdue: Option<Overdue>,
}

enum Phase {
    /// No byte of the next request has arrived.
    Idle { since: Instant, first: bool },
    /// Part of a request head has arrived.
    Head { since: Instant },
    /// A request body is being read, or its response produced.
    Request,
}

/// Which timeout expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overdue {
    Head,
    /// Idle or write timeout, or evicted.
    Other,
}

impl Activity {
    pub(super) fn new() -> Activity {
        let phase = Phase::Idle { since: Instant::now(), first: true };
        let state = State { phase, blocked: None, unread_body: false, overdue: None };
        Activity { state: Mutex::new(state), closed: Notify::new() }
    }

    pub(super) fn received(&self) {
        let mut state = self.state();
        if matches!(state.phase, Phase::Idle { .. }) {
            state.phase = Phase::Head { since: Instant::now() };
        }
    }

    pub(super) fn wrote(&self, taken: bool) {
        let mut state = self.state();
        state.blocked = if taken { None } else { state.blocked.or_else(|| Some(Instant::now())) };
    }

    pub(super) fn begin(&self, has_body: bool) {
        let mut state = self.state();
        state.phase = Phase::Request;
        state.unread_body = has_body;
    }

    pub(super) fn body_ended(&self) {
        self.state().unread_body = false;
    }

    pub(super) fn answered(&self) {
        self.state().phase = Phase::Idle { since: Instant::now(), first: false };
    }

    pub(super) fn has_unread_body(&self) -> bool {
        self.state().unread_body
    }

    pub(super) fn has_request(&self) -> bool {
        let state = self.state();
        matches!(state.phase, Phase::Request) || state.blocked.is_some()
    }

    /// `None` unless it can be closed without losing a request or a response.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let state = self.state();
        match state.phase {
            _ if state.blocked.is_some() || state.overdue.is_some() => None,
            Phase::Idle { since, first } if !first || since.elapsed() > FIRST_BYTES => Some(since),
            _ => None,
        }
    }

    /// Closes the connection if a timeout has expired.
    pub(super) fn check(&self, timeouts: &Timeouts, now: Instant) {
        let mut state = self.state();
        let late = |since: Instant, limit: Duration| now.saturating_duration_since(since) > limit;
        let overdue = match state.phase {
            _ if state.blocked.is_some_and(|since| late(since, timeouts.write)) => Some(Overdue::Other),
            // A connection that never sends anything has no more time than a slow head.
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

    pub(super) fn close(&self) {
        self.state().overdue = Some(Overdue::Other);
        self.closed.notify_one();
    }

    /// Waits until the connection must be closed.
    pub(super) async fn closed(&self) {
        self.closed.notified().await;
    }

    pub(super) fn overdue(&self) -> Option<Overdue> {
        self.state().overdue
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! The activity of an engine's thread, readable from any thread: a stuck thread cannot report
//! itself.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// A tick that takes this many times the longest one so far is stuck.
const LONGEST: u32 = 10;

pub(crate) struct Heartbeat {
    /// Minimum time before a tick counts as stuck.
    patience: Duration,
    state: Mutex<State>,
}

struct State {
    activity: Activity,
    since: Instant,
    /// The longest tick so far.
    longest: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    Idle,
    Working,
    Ended,
}

/// State of an engine's thread, and the time since it was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It waits for requests, or for its turn among several engines.
    Idle(Duration),
    /// It computes a step.
    Working(Duration),
    /// It has computed one step for longer than any step may take.
    Stuck {
        /// Time since the step began.
        working: Duration,
        /// Longest time that a step may take.
        allowed: Duration,
    },
    /// It has ended and answers no more messages.
    Ended,
}

impl Heartbeat {
    /// No step counts as stuck before `patience` has passed.
    pub(crate) fn new(patience: Duration) -> Heartbeat {
        let state = State { activity: Activity::Idle, since: Instant::now(), longest: Duration::ZERO };
        Heartbeat { patience, state: Mutex::new(state) }
    }

    /// The thread waits for requests, or for its turn.
    pub(crate) fn idle(&self) {
        self.turn(Activity::Idle);
    }

    /// The thread begins a tick.
    pub(crate) fn working(&self) {
        self.turn(Activity::Working);
    }

    /// The thread ends.
    pub(crate) fn ended(&self) {
        self.turn(Activity::Ended);
    }

    fn turn(&self, activity: Activity) {
        let (now, mut state) = (Instant::now(), self.lock());
        if state.activity == Activity::Working {
            state.longest = state.longest.max(now - state.since);
        }
        (state.activity, state.since) = (activity, now);
    }

    pub(crate) fn health(&self) -> Health {
        let state = self.lock();
        let (since, allowed) = (state.since.elapsed(), self.patience.max(state.longest * LONGEST));
        match state.activity {
            Activity::Idle => Health::Idle(since),
            Activity::Working if since > allowed => Health::Stuck { working: since, allowed },
            Activity::Working => Health::Working(since),
            Activity::Ended => Health::Ended,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeat_after_a_long_tick_is_patient_with_the_next() {
        let heartbeat = Heartbeat::new(Duration::ZERO);
        assert!(matches!(heartbeat.health(), Health::Idle(_)));
        heartbeat.working();
        std::thread::sleep(Duration::from_millis(2));
        assert!(matches!(heartbeat.health(), Health::Stuck { .. }), "nothing is known of ticks");
        heartbeat.lock().longest = Duration::from_secs(3600);
        assert!(matches!(heartbeat.health(), Health::Working(_)), "others have taken longer");
        heartbeat.idle();
        assert!(matches!(heartbeat.health(), Health::Idle(_)), "idle is never stuck");
        heartbeat.ended();
        assert_eq!(heartbeat.health(), Health::Ended);
    }
}

//! How many requests an engine accepts, and when a refused one should be sent again.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::api::RequestError;

/// Bounds of `retry_after`: shorter waits are not worth a header, and OpenAI's clients ignore
/// longer ones.
const RETRY_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// A semaphore with one permit for each request that runs or waits.
pub(crate) struct Admission {
    /// Permits for requests that wait.
    waiting: usize,
    permits: usize,
    state: Mutex<State>,
}

struct State {
    acquired: usize,
    next_id: u64,
    rate: CompletionRate,
}

/// The right to submit requests, returned on drop. Requests submitted with the same permit queue as
/// one.
pub struct Permit {
    pub(crate) id: u64,
    admission: Arc<Admission>,
}

impl Admission {
    /// For `running` requests at a time and `waiting` ones in the queue.
    pub(crate) fn new(running: usize, waiting: usize) -> Arc<Admission> {
        let state = State { acquired: 0, next_id: 0, rate: CompletionRate::new(Instant::now()) };
        let permits = running.max(1).saturating_add(waiting);
        Arc::new(Admission { waiting, permits, state: Mutex::new(state) })
    }

    /// # Errors
    /// [`RequestError::QueueFull`].
    pub(crate) fn acquire(self: &Arc<Admission>) -> Result<Arc<Permit>, RequestError> {
        let (now, mut state) = (Instant::now(), self.lock());
        if state.acquired >= self.permits {
            let retry_after = state.rate.retry_after(self.waiting, now);
            return Err(RequestError::QueueFull { waiting: self.waiting, retry_after });
        }
        if state.acquired == 0 {
            state.rate.resume(now);
        }
        state.acquired += 1;
        state.next_id += 1;
        Ok(Arc::new(Permit { id: state.next_id, admission: self.clone() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.admission.lock();
        state.acquired -= 1;
        state.rate.record_completion(Instant::now());
    }
}

/// How fast requests complete; idle times do not count.
struct CompletionRate {
    /// Moving average of the time between two completions.
    interval: Duration,
    last: Instant,
}

impl CompletionRate {
    fn new(now: Instant) -> CompletionRate {
        CompletionRate { interval: Duration::ZERO, last: now }
    }

    /// Excludes the idle time before `now`.
    fn resume(&mut self, now: Instant) {
        self.last = now;
    }

    fn record_completion(&mut self, now: Instant) {
        let interval = now.saturating_duration_since(self.last);
        self.interval = if self.interval.is_zero() { interval } else { (self.interval * 7 + interval) / 8 };
        self.last = now;
    }

    /// The time in which half of the waiting requests will have started, so that a refused one
    /// returns to a queue with room, not to its last free permit.
    fn retry_after(&self, waiting: usize, now: Instant) -> Duration {
        // Completions may have stalled.
        let interval = self.interval.max(now.saturating_duration_since(self.last));
        let half = u32::try_from(waiting.div_ceil(2).max(1)).unwrap_or(u32::MAX);
        interval.saturating_mul(half).clamp(RETRY_AFTER[0], RETRY_AFTER[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acquire_from_full_admission_fails_until_a_permit_is_dropped() {
        let admission = Admission::new(2, 1);
        let mut permits: Vec<_> = (0..3).map(|_| admission.acquire().expect("a permit")).collect();
        let is_full = |error| matches!(error, Some(RequestError::QueueFull { waiting: 1, retry_after }) if retry_after == RETRY_AFTER[0]);
        assert!(is_full(admission.acquire().err()));
        // Requests that share a permit return it together.
        let shared = permits[0].clone();
        permits.remove(0);
        assert!(is_full(admission.acquire().err()));
        drop(shared);
        assert!(admission.acquire().is_ok());
        assert!(Admission::new(0, 0).acquire().is_ok(), "one request can always run");
    }

    #[test]
    fn retry_after_follows_the_completion_rate() {
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        let mut rate = CompletionRate::new(start);
        let check = |rate: &CompletionRate, waiting, now, seconds: f64| {
            let found = rate.retry_after(waiting, at(now)).as_secs_f64();
            assert!((found - seconds).abs() < 0.01 * seconds, "{found}, not {seconds}");
        };
        check(&rate, 10, 0.0, 1.0);
        for i in 1..=10 {
            rate.record_completion(at(2.0 * f64::from(i)));
        }
        check(&rate, 10, 20.0, 10.0);
        check(&rate, 1, 20.0, 2.0);
        check(&rate, 256, 20.0, 60.0);
        // Completions stall.
        check(&rate, 10, 25.0, 25.0);
        // An idle hour does not count.
        rate.resume(at(3600.0));
        rate.record_completion(at(3602.0));
        check(&rate, 10, 3602.0, 10.0);
        // Twice as fast.
        for i in 1..=60 {
            rate.record_completion(at(3602.0 + f64::from(i)));
        }
        check(&rate, 10, 3662.0, 5.0);
    }
}

//! How many requests, sequences and bytes an engine accepts, and when a refused request should be
//! sent again.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::api::RequestError;

/// Bounds of `retry_after`: shorter waits are not worth a header, and OpenAI's clients ignore
/// longer ones.
const RETRY_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// Sequences of all requests, per permit: a request has several if it has choices or texts.
const SEQUENCES_PER_PERMIT: usize = 16;
/// Bytes of the prompts of all requests.
const MAX_BYTES: usize = 256 << 20;

/// A semaphore with one permit for each request that runs or waits.
pub(crate) struct Admission {
    /// Permits for requests that wait.
    waiting: usize,
    permits: usize,
    state: Mutex<State>,
}

struct State {
    acquired: usize,
    /// The load of all permits.
    total: Load,
    next_id: u64,
    rate: CompletionRate,
}

/// Resources that requests take besides their permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    sequences: usize,
    bytes: usize,
}

/// The right to submit requests, returned on drop. Requests submitted with the same permit queue as
/// one.
pub struct Permit {
    pub(crate) id: u64,
    admission: Arc<Admission>,
    own: Mutex<Load>,
}

impl Admission {
    /// For `running` requests at a time and `waiting` ones in the queue.
    pub(crate) fn new(running: usize, waiting: usize) -> Arc<Admission> {
        let state = State {
            acquired: 0,
            total: Load::default(),
            next_id: 0,
            rate: CompletionRate::new(Instant::now()),
        };
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
        Ok(Arc::new(Permit { id: state.next_id, admission: self.clone(), own: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Permit {
    /// Counts a sequence with a prompt of `bytes`, until the permit is returned. A request that is
    /// alone may have any number.
    ///
    /// # Errors
    /// [`RequestError::QueueFull`].
    pub(crate) fn add_sequence(&self, bytes: usize) -> Result<(), RequestError> {
        let (now, mut state) = (Instant::now(), self.admission.lock());
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let total = Load { sequences: state.total.sequences + 1, bytes: state.total.bytes + bytes };
        let most = self.admission.permits.saturating_mul(SEQUENCES_PER_PERMIT);
        if state.total != *own && (total.sequences > most || total.bytes > MAX_BYTES) {
            let (waiting, retry_after) =
                (self.admission.waiting, state.rate.retry_after(self.admission.waiting, now));
            return Err(RequestError::QueueFull { waiting, retry_after });
        }
        state.total = total;
        *own = Load { sequences: own.sequences + 1, bytes: own.bytes + bytes };
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut state = self.admission.lock();
        let own = self.own.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.total.sequences -= own.sequences;
        state.total.bytes -= own.bytes;
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
    fn sequences_and_bytes_are_counted_over_all_permits() {
        let admission = Admission::new(1, 1);
        let most = 2 * SEQUENCES_PER_PERMIT;
        let [first, second] =
            [admission.acquire(), admission.acquire()].map(|permit| permit.expect("a permit"));
        assert!((0..most + 5).all(|_| first.add_sequence(8).is_ok()), "alone it may have any number");
        let is_full = |permit: &Permit, bytes| {
            matches!(permit.add_sequence(bytes), Err(RequestError::QueueFull { .. }))
        };
        assert!(is_full(&second, 8));
        drop(first);
        assert!(second.add_sequence(MAX_BYTES + 1).is_ok(), "alone it may have any size");
        let third = admission.acquire().expect("a permit");
        assert!(is_full(&third, 0) && !is_full(&second, MAX_BYTES + 1));
        drop(second);
        assert!(third.add_sequence(MAX_BYTES).is_ok());
        drop(third);
        assert_eq!(admission.lock().total, Load::default());
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

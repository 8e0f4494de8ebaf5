//! How many requests an engine takes in, and when those that it refuses had better come again. Knows nothing of what
//! they ask.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use crate::request::RequestError;

/// Shorter waits are not worth telling; OpenAI's clients do not believe in longer ones.
const TOLD: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// The places of an engine: one for each request that runs or waits.
pub struct Places {
    /// Those that may wait.
    waiting: usize,
    all: usize,
    state: Mutex<State>,
}

struct State {
    taken: usize,
    /// Name of the next place.
    next: u64,
    pace: Pace,
}

/// A request's place among those that an engine works on; free again when dropped. Requests submitted with the same place
/// queue as one.
pub struct Place {
    pub(crate) id: u64,
    places: Arc<Places>,
}

impl Places {
    /// For `running` requests at a time and `waiting` behind them.
    pub fn new(running: usize, waiting: usize) -> Arc<Places> {
        let state = State { taken: 0, next: 0, pace: Pace::new(Instant::now()) };
        Arc::new(Places { waiting, all: running.max(1).saturating_add(waiting), state: Mutex::new(state) })
    }

    /// # Errors
    /// [`RequestError::QueueFull`].
    pub fn take(self: &Arc<Places>) -> Result<Arc<Place>, RequestError> {
        let (now, mut state) = (Instant::now(), self.lock());
        if state.taken >= self.all {
            let retry_after = state.pace.told(self.waiting, now);
            return Err(RequestError::QueueFull { waiting: self.waiting, retry_after });
        }
        if state.taken == 0 {
            state.pace.begin(now);
        }
        state.taken += 1;
        state.next += 1;
        Ok(Arc::new(Place { id: state.next, places: self.clone() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.places.lock();
        state.taken -= 1;
        state.pace.end(Instant::now());
    }
}

/// How fast requests have lately ended, times without any left out.
struct Pace {
    /// Moving average of the time from one end to the next.
    interval: Duration,
    last: Instant,
}

impl Pace {
    fn new(now: Instant) -> Pace {
        Pace { interval: Duration::ZERO, last: now }
    }

    /// After a time without requests.
    fn begin(&mut self, now: Instant) {
        self.last = now;
    }

    fn end(&mut self, now: Instant) {
        let interval = now.saturating_duration_since(self.last);
        self.interval = if self.interval.is_zero() { interval } else { (self.interval * 7 + interval) / 8 };
        self.last = now;
    }

    /// What a refused request is told: the time in which half of those that wait will have gone on, so that it comes back
    /// to a queue with room and not to the first place that is free.
    fn told(&self, waiting: usize, now: Instant) -> Duration {
        // Nothing may have ended for long.
        let interval = self.interval.max(now.saturating_duration_since(self.last));
        let half = u32::try_from(waiting.div_ceil(2).max(1)).unwrap_or(u32::MAX);
        interval.saturating_mul(half).clamp(TOLD[0], TOLD[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_to_a_full_queue_is_refused_until_a_place_is_free() {
        let places = Places::new(2, 1);
        let mut taken: Vec<_> = (0..3).map(|_| places.take().expect("a place")).collect();
        let refused = places.take().err();
        let told = |error| matches!(error, Some(RequestError::QueueFull { waiting: 1, retry_after }) if retry_after == TOLD[0]);
        assert!(told(refused));
        // A place is free when the last request that shares it has gone.
        let shared = taken[0].clone();
        taken.remove(0);
        assert!(told(places.take().err()));
        drop(shared);
        assert!(places.take().is_ok());
        assert!(Places::new(0, 0).take().is_ok(), "one can always run");
    }

    #[test]
    fn what_is_told_follows_the_pace() {
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        let mut pace = Pace::new(start);
        let check = |pace: &Pace, waiting, now, seconds: f64| {
            let told = pace.told(waiting, at(now)).as_secs_f64();
            assert!((told - seconds).abs() < 0.01 * seconds, "{told}, not {seconds}");
        };
        check(&pace, 10, 0.0, 1.0);
        for i in 1..=10 {
            pace.end(at(2.0 * f64::from(i)));
        }
        check(&pace, 10, 20.0, 10.0);
        check(&pace, 1, 20.0, 2.0);
        check(&pace, 256, 20.0, 60.0);
        // Nothing ends any more.
        check(&pace, 10, 25.0, 25.0);
        // An hour without requests says nothing.
        pace.begin(at(3600.0));
        pace.end(at(3602.0));
        check(&pace, 10, 3602.0, 10.0);
        // Twice as fast.
        for i in 1..=60 {
            pace.end(at(3602.0 + f64::from(i)));
        }
        check(&pace, 10, 3662.0, 5.0);
    }
}

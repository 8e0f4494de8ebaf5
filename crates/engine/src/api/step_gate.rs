//! Turns between engines that share a processor. Each computes alone while it has the turn; turns
//! are shared in proportion to the weights of priorities, by time. Which engine has the turn never
//! changes what it computes.
//!
//! Start-time fair queueing (Goyal, Vin, Cheng 1996) with measured lengths.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::request::Priority;

/// How long an engine with less than its share keeps its place between two steps, while it delivers
/// tokens and receives requests. Without it, engines would alternate whatever their priorities.
const ANTICIPATION: Duration = Duration::from_millis(2);

/// Shared by the engines that take turns.
#[derive(Default)]
pub struct StepGate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    engines: BTreeMap<u64, Claim>,
    next: u64,
    /// The engine that has the turn.
    holder: Option<u64>,
    /// When the last turn began, in virtual time.
    now: u64,
}

/// An engine's place in the order.
#[derive(Default)]
struct Claim {
    /// When its next turn begins, in virtual time.
    start: u64,
    waiting: Option<Priority>,
    /// It is likely to be back before this time, with this priority.
    expected: Option<(Priority, Instant)>,
}

/// The engine that is first in the order.
#[derive(Debug, PartialEq, Eq)]
enum First {
    Waiting(u64),
    /// It is not back yet, and its place is kept until then.
    Expected(Instant),
}

/// One engine of a gate, until this is dropped.
pub struct GateMember {
    gate: Arc<StepGate>,
    engine: u64,
}

/// An engine's turn, until this is dropped.
pub struct Turn {
    gate: Arc<StepGate>,
    engine: u64,
    priority: Priority,
    since: Instant,
    waited: Duration,
}

impl fmt::Debug for StepGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StepGate").field(&self.lock().engines.len()).finish()
    }
}

impl StepGate {
    /// Adds an engine.
    pub fn join(self: &Arc<Self>) -> GateMember {
        let mut state = self.lock();
        state.next += 1;
        let engine = state.next;
        state.engines.insert(engine, Claim::default());
        GateMember { gate: self.clone(), engine }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GateMember {
    /// Waits for the engine's turn, for work of this priority.
    pub fn turn(&self, priority: Priority) -> Turn {
        let started = Instant::now();
        let mut state = self.gate.lock();
        state.wait(self.engine, priority, started);
        loop {
            state = match state.first(Instant::now()) {
                Some(First::Waiting(first)) if first == self.engine => break,
                Some(First::Expected(until)) => {
                    let time = until.saturating_duration_since(Instant::now());
                    let waited = self.gate.changed.wait_timeout(state, time);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                _ => self.gate.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        state.begin(self.engine);
        drop(state);
        let since = Instant::now();
        Turn { gate: self.gate.clone(), engine: self.engine, priority, since, waited: since - started }
    }
}

impl Drop for GateMember {
    fn drop(&mut self) {
        self.gate.lock().engines.remove(&self.engine);
        self.gate.changed.notify_all();
    }
}

impl Turn {
    /// How long it was waited for.
    pub fn waited(&self) -> Duration {
        self.waited
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let now = Instant::now();
        self.gate.lock().end(self.engine, self.priority, now - self.since, now);
        self.gate.changed.notify_all();
    }
}

impl State {
    fn wait(&mut self, engine: u64, priority: Priority, time: Instant) {
        let now = self.now;
        let Some(claim) = self.engines.get_mut(&engine) else { return };
        if claim.expected.is_none_or(|(_, until)| until < time) {
            // An absent engine saves up no turns.
            claim.start = claim.start.max(now);
        }
        (claim.waiting, claim.expected) = (Some(priority), None);
    }

    /// `None` while an engine has the turn.
    fn first(&self, time: Instant) -> Option<First> {
        if self.holder.is_some() {
            return None;
        }
        let place = |(engine, claim): (&u64, &Claim)| {
            let expected = claim.expected.filter(|(_, until)| *until > time);
            let first = match (claim.waiting, expected) {
                (Some(priority), _) => (priority, First::Waiting(*engine)),
                (None, Some((priority, until))) => (priority, First::Expected(until)),
                (None, None) => return None,
            };
            Some(((claim.start, first.0 as usize), first.1))
        };
        let places = self.engines.iter().filter_map(place);
        places.min_by_key(|(order, _)| *order).map(|(_, first)| first)
    }

    fn begin(&mut self, engine: u64) {
        self.holder = Some(engine);
        if let Some(claim) = self.engines.get_mut(&engine) {
            claim.waiting = None;
            self.now = self.now.max(claim.start);
        }
    }

    fn end(&mut self, engine: u64, priority: Priority, length: Duration, time: Instant) {
        self.holder = None;
        if let Some(claim) = self.engines.get_mut(&engine) {
            let length = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
            claim.start = claim.start.saturating_add(length.saturating_mul(priority.stride() as u64));
            claim.expected = Some((priority, time + ANTICIPATION));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        thread,
    };

    use super::{Priority::*, *};

    /// Turns that each of two busy engines gets, with steps of these lengths.
    fn turns(engines: [(Priority, u64); 2], steps: usize) -> [usize; 2] {
        let (mut state, time) = (State::default(), Instant::now());
        (0..2).for_each(|engine| _ = state.engines.insert(engine, Claim::default()));
        let mut turns = [0; 2];
        engines
            .iter()
            .enumerate()
            .for_each(|(engine, (priority, _))| state.wait(engine as u64, *priority, time));
        for _ in 0..steps {
            let Some(First::Waiting(first)) = state.first(time) else { panic!("no engine is first") };
            let (priority, milliseconds) = engines[first as usize];
            state.begin(first);
            assert_eq!(state.first(time), None, "one has the turn");
            state.end(first, priority, Duration::from_millis(milliseconds), time);
            turns[first as usize] += 1;
            state.wait(first, priority, time);
        }
        turns
    }

    #[test]
    fn turns_are_shared_by_weight_and_time() {
        assert_eq!(turns([(Normal, 5), (Normal, 5)], 100), [50, 50]);
        assert_eq!(turns([(Normal, 5), (Normal, 20)], 100), [80, 20]);
        let [interactive, background] = turns([(Interactive, 5), (Background, 5)], 1700);
        assert!(interactive >= 1590 && background >= 95, "{interactive} and {background}");
        let [interactive, background] = turns([(Interactive, 5), (Background, 500)], 1700);
        assert!((1..=2).contains(&background), "a long step counts as one: {interactive} and {background}");
    }

    #[test]
    fn urgent_engine_keeps_its_place_between_two_steps_and_no_longer() {
        let (mut state, time) = (State::default(), Instant::now());
        (0..2).for_each(|engine| _ = state.engines.insert(engine, Claim::default()));
        state.wait(0, Interactive, time);
        state.begin(0);
        state.end(0, Interactive, Duration::from_millis(1), time);
        state.wait(1, Background, time);
        assert_eq!(state.first(time), Some(First::Waiting(1)), "it has had no turn yet");
        state.begin(1);
        state.end(1, Background, Duration::from_millis(1), time);
        state.wait(1, Background, time);
        assert_eq!(state.first(time), Some(First::Expected(time + ANTICIPATION)));
        assert_eq!(state.first(time + ANTICIPATION), Some(First::Waiting(1)));
        state.wait(0, Interactive, time);
        assert_eq!(state.first(time), Some(First::Waiting(0)));
    }

    #[test]
    fn absent_engine_saves_up_no_turns() {
        let (mut state, time) = (State::default(), Instant::now());
        (0..2).for_each(|engine| _ = state.engines.insert(engine, Claim::default()));
        for _ in 0..100 {
            state.wait(0, Normal, time);
            state.begin(0);
            state.end(0, Normal, Duration::from_millis(1), time);
        }
        state.wait(1, Normal, time);
        state.begin(1);
        state.end(1, Normal, Duration::from_millis(3), time);
        state.wait(1, Normal, time);
        state.wait(0, Normal, time);
        assert_eq!(state.first(time), Some(First::Waiting(0)), "engine 1 has saved up no turns");
    }

    #[test]
    fn turn_is_held_by_one_engine_at_a_time() {
        let (gate, inside) = (Arc::<StepGate>::default(), AtomicUsize::new(0));
        thread::scope(|scope| {
            for priority in [Interactive, Normal, Background, Background] {
                let member = gate.join();
                let inside = &inside;
                scope.spawn(move || {
                    for _ in 0..200 {
                        let turn = member.turn(priority);
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(turn);
                    }
                });
            }
        });
        assert!(gate.lock().engines.is_empty() && gate.lock().holder.is_none());
    }

    #[test]
    fn panic_during_a_turn_ends_it() {
        let gate = Arc::<StepGate>::default();
        let member = gate.join();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _turn = member.turn(Normal);
            panic!("planted");
        }));
        assert!(result.is_err());
        drop(member.turn(Normal));
    }
}

//! The time between two steps, and the part of it that drafting took.

use std::time::{Duration, Instant};

#[derive(Default)]
pub(crate) struct StepClock {
    /// When the last step was read.
    last: Option<Instant>,
    /// Milliseconds of drafting since.
    drafting: f64,
}

impl StepClock {
    /// The device is idle: the next step's time starts now.
    pub(crate) fn restart(&mut self) {
        *self = StepClock { last: Some(Instant::now()), drafting: 0.0 };
    }

    /// Excludes time spent on other work than steps.
    pub(crate) fn exclude(&mut self, time: Duration) {
        self.last = self.last.map(|last| last + time);
    }

    pub(crate) fn add_drafting(&mut self, time: Duration) {
        self.drafting += time.as_secs_f64() * 1e3;
    }

    /// Milliseconds since the last step was read, and those of drafting among them.
    pub(crate) fn lap(&mut self) -> Option<(f64, f64)> {
        let (last, drafting) = (self.last, self.drafting);
        self.restart();
        Some((last?.elapsed().as_secs_f64() * 1e3, drafting))
    }
}

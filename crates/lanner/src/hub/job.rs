//! A running pull: where it reports progress, and whether it was cancelled.

use std::sync::atomic::{AtomicBool, Ordering};

pub struct PullJob<'a> {
    pub report: &'a (dyn Fn(PullEvent) + Sync),
    pub cancelled: &'a AtomicBool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum PullEvent {
    /// Before the download; `present` bytes of `total` are already in the cache.
    Start {
        files: usize,
        present: u64,
        total: u64,
    },
    File {
        path: String,
        completed: u64,
        total: u64,
    },
    /// Before another attempt after a transient failure.
    Waiting {
        seconds: f64,
        reason: String,
    },
}

impl PullJob<'_> {
    pub fn report(&self, event: PullEvent) {
        (self.report)(event);
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }
}

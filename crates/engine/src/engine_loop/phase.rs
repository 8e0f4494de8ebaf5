//! Phases of a sequence until its first step: it waits, resumes, runs.

use crate::prefix::{DiskFetch, StateRestore};

/// Whether a sequence can be stepped. Prefill or decode follows from its
/// [progress](super::sequence::Progress).
pub(crate) enum Phase {
    /// Nothing is attached yet: another sequence or the disk may soon have more to resume from.
    Waiting(Wait),
    /// Stored state is being copied into its caches: that of the first `from` tokens.
    Resuming { resume: StateRestore, from: usize },
    /// Its caches hold what could be reused: the first `resumed_from` tokens.
    Running { resumed_from: usize },
}

/// Event that a sequence waits for before it attaches a prefix.
#[derive(Default)]
pub(crate) struct Wait {
    /// A snapshot of another sequence, by that one's id and the position.
    pub snapshot: Option<(u64, usize)>,
    /// State that is read from the disk.
    pub fetch: DiskFetch,
}

impl Phase {
    pub(crate) fn waiting() -> Phase {
        Phase::Waiting(Wait::default())
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self, Phase::Waiting(_))
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self, Phase::Running { .. })
    }

    /// Whether it runs on state of past sequences.
    pub(crate) fn has_resumed(&self) -> bool {
        matches!(self, Phase::Running { resumed_from: 1.. })
    }
}

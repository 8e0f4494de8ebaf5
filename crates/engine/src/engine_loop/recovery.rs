//! Failed steps and ticks: which sequence is to blame, and how the others continue.

use super::{delivery::End, fault, run::EngineLoop, step::Step};
use crate::{
    api::RequestError,
    guard::{contained, is_out_of_memory},
};

/// After this many failed ticks in a row all waiting requests fail too.
const MAX_FAILED_TICKS: usize = 8;

impl EngineLoop {
    /// A step failed while these sequences were on the device: MLX does not distinguish its failure
    /// from the next step's. One sequence alone is to blame itself; several start over, one at a
    /// time, until the faulty one runs alone. After an out-of-memory failure the prefix cache
    /// shrinks.
    pub(crate) fn fail(&mut self, mut involved: Vec<u64>, message: String) {
        involved.sort_unstable();
        involved.dedup();
        tracing::error!(sequences = involved.len(), "step failed: {message}");
        self.options.metrics.failed_steps.add(1);
        let out_of_memory = is_out_of_memory(&message);
        if out_of_memory {
            self.features.set_budget(0);
            self.prefix.set_budget(self.prefix.stats().bytes / 2);
        }
        if let [only] = involved[..]
            && let Some(at) = self.running.iter().position(|s| s.id == only)
        {
            // The state that it resumed from may be to blame: the sequence gets one more try
            // without it.
            let sequence = &mut self.running[at];
            match sequence.phase.has_resumed() && !sequence.reuse.bypass_cache && !out_of_memory {
                true => sequence.reuse.bypass_cache = true,
                false => {
                    let sequence = self.running.remove(at);
                    self.end(sequence, End::Failed(failure(message)));
                }
            }
        }
        self.ended.clear();
        self.restart_all();
    }

    /// Restarts all running sequences: a later step may have been built on a failed one's state,
    /// for any of them.
    fn restart_all(&mut self) {
        for _ in 0..self.running.len() {
            // Those that follow stay where a failure of this loop finds them.
            let mut sequence = self.running.remove(0);
            self.release_drafts(&mut sequence.speculation);
            let (model, info) = (&*self.model, &self.info);
            let restart = || {
                fault::point("restart");
                sequence.quarantine(model, info);
            };
            match contained(restart) {
                Ok(()) => self.running.push(sequence),
                Err(message) => self.end(sequence, End::Failed(failure(message))),
            }
        }
        self.clock.restart();
    }

    /// A tick panicked, for an unknown sequence. All restart, one at a time; if one ran alone
    /// already, it is to blame.
    pub(crate) fn recover(&mut self, message: &str) {
        tracing::error!("a tick of the engine failed: {message}");
        self.options.metrics.failed_steps.add(1);
        let recover = || {
            self.launched.take().into_iter().for_each(Step::abandon);
            self.ended.clear();
            fault::point("recover");
            // The prefix cache may have panicked half way through a change.
            self.prefix.clear_after_failure();
            if let Some(at) = self.running.iter().position(|s| s.quarantined) {
                let sequence = self.running.remove(at);
                self.end(sequence, End::Failed(failure(message.into())));
            }
            self.restart_all();
            if self.failed_ticks >= MAX_FAILED_TICKS {
                self.end_waiting(|_| true, |_| End::Failed(failure(message.into())));
            }
        };
        if let Err(error) = contained(recover) {
            tracing::error!("all running requests fail: {error}");
            (self.ended, self.launched) = (vec![], None);
            self.fail_all_running(message);
        }
    }

    /// Ends every running sequence, also if ending one of them panics.
    fn fail_all_running(&mut self, message: &str) {
        while let Some(sequence) = self.running.pop() {
            let end = || self.end(sequence, End::Failed(failure(message.into())));
            if let Err(error) = contained(end) {
                tracing::error!("a failed request was not ended cleanly: {error}");
            }
        }
    }
}

/// The error of a request that failed with `message`.
pub(super) fn failure(message: String) -> RequestError {
    if is_out_of_memory(&message) { RequestError::OutOfMemory(message) } else { RequestError::Step(message) }
}

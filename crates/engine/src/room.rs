//! Who is let in under a memory limit, and what makes room: running sequences go before what is kept of past ones.

use crate::{
    handle::Submission,
    memory::megabytes,
    options::WhenFull,
    request::{Event, Request, RequestError},
    run::Runner,
    sequence::Sequence,
};

impl Runner {
    /// Whether the most that a request may come to fits beside those that run.
    pub fn has_room(&self, request: &Request) -> bool {
        self.free().is_none_or(|free| self.needs(request) <= free)
    }

    /// Lets the cache of past sequences have what running ones leave. Half of it: what is copied and what is stored
    /// are there at the same time.
    pub fn share_room(&mut self) {
        if let Some(free) = self.free() {
            self.prefix.limit(free / 2);
        }
    }

    /// Refuses a request that does not fit now, or holds it back until it does; nobody overtakes it then.
    pub fn hold(&mut self, mut submission: Submission) {
        match self.options.when_full {
            WhenFull::Wait => self.held = Some(submission),
            WhenFull::Refuse => {
                let (needs, free) = (self.needs(&submission.request), self.free().unwrap_or(0));
                submission.emit(Event::Failed(RequestError::MemoryFull { needs, free }));
            }
        }
    }

    /// Makes sure that what is there is within the limit, where estimates were wrong: what is kept of past sequences goes
    /// first.
    ///
    /// # Errors
    /// It is not, whatever goes.
    pub fn check_memory(&mut self) -> Result<(), String> {
        let Some(limit) = self.info.memory.limit else { return Ok(()) };
        if mlx::active_memory() <= limit {
            return Ok(());
        }
        // What is being computed holds memory that the next step will not find taken.
        self.collect_launched(&[]);
        let over = mlx::active_memory().saturating_sub(limit);
        self.prefix.limit(self.prefix.stats().bytes.saturating_sub(over));
        match mlx::active_memory() {
            active if active > limit => Err(format!(
                "out of memory: {} are in use, where the limit is {}",
                megabytes(active),
                megabytes(limit)
            )),
            _ => Ok(()),
        }
    }

    /// Ends sequences for which there was no memory, and frees half of what is kept of past ones.
    pub fn run_out(&mut self, involved: &[u64], message: &str) {
        let is_involved = |s: &mut Sequence| involved.contains(&s.id);
        for mut sequence in self.running.extract_if(.., is_involved) {
            sequence.emit(Event::Failed(RequestError::OutOfMemory(message.to_owned())));
        }
        self.prefix.limit(self.prefix.stats().bytes / 2);
    }

    fn needs(&self, request: &Request) -> usize {
        self.info.memory.needs(request, self.info.context_length)
    }

    /// Bytes that sequences leave of the limit which run, or have ended and are being copied.
    fn free(&self) -> Option<usize> {
        let taken: usize = self.running.iter().chain(&self.ended).map(|s| self.needs(&s.request)).sum();
        Some(self.info.memory.room()?.saturating_sub(taken))
    }
}

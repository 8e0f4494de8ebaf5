//! Memory for a model before it is loaded: engines that serve meanwhile keep their reservations,
//! and a model that does not fit beside them is refused before it takes anything.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    api::{
        Memory, MemoryAccount, MemoryClass, Options, Reservation,
        error::{LoadError, Result},
    },
    weights::Weights,
};

/// How long a load waits until the caches of other engines have made room, which they do between
/// two steps.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

pub(super) struct LoadRoom<'a> {
    options: &'a Options,
    account: Arc<MemoryAccount>,
    /// The memory limit, if other engines share it; an engine that is alone checks it after
    /// loading.
    limit: Option<usize>,
    /// For what was loaded so far.
    held: Vec<Reservation>,
}

impl LoadRoom<'_> {
    pub(super) fn new(options: &Options) -> LoadRoom<'_> {
        let account = options.metrics.account.clone();
        let limit = options.memory_limit.filter(|_| account.promised() > 0);
        LoadRoom { options, account, limit, held: vec![] }
    }

    /// Reserves what loading these weights may need, and waits until the caches of other engines
    /// have freed it.
    ///
    /// # Errors
    /// [`LoadError::MemoryFull`].
    pub(super) fn make(&mut self, weights: &Weights, config: &Value) -> Result<()> {
        let vocab_size = config.get("vocab_size").and_then(Value::as_u64).unwrap_or(0) as usize;
        let needs = Memory::to_load(weights.total_bytes(), vocab_size, config, self.options);
        let held = self.account.reserve(MemoryClass::Loading, needs, self.limit);
        let held = held.map_err(|free| self.refused(needs, free))?;
        self.held.push(held);
        let Some(limit) = self.limit else { return Ok(()) };
        self.account.wake_engines();
        let started = Instant::now();
        let taken = || self.account.promised() + self.account.bytes(MemoryClass::PrefixCache);
        while taken() > limit {
            if started.elapsed() > PATIENCE {
                return Err(self.refused(needs, (limit + needs).saturating_sub(taken())));
            }
            thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Replaces the estimates by the memory that the loaded engine always holds.
    ///
    /// # Errors
    /// [`LoadError::MemoryFull`].
    pub(super) fn keep_fixed(mut self, memory: &Memory) -> Result<Vec<Reservation>> {
        let fixed = [
            (MemoryClass::Weights, memory.weights),
            (MemoryClass::Step, memory.step - memory.draft_cache),
            (MemoryClass::Drafters, memory.draft_cache),
        ];
        let needs = memory.weights + memory.step;
        let (last, before) = match self.held.split_last_mut() {
            Some((last, rest)) => (last, rest.iter().map(Reservation::bytes).sum::<usize>()),
            None => return Ok(vec![]),
        };
        let more = needs.saturating_sub(before).max(last.bytes());
        let resized = last.resize(more, self.limit);
        resized.map_err(|free| self.refused(needs, before + free))?;
        // Covered by the reservation for loading, which is dropped after these exist.
        let reserved = fixed.map(|(class, bytes)| self.account.reserve(class, bytes, None));
        self.held.clear();
        Ok(reserved.into_iter().flatten().collect())
    }

    fn refused(&self, needs: usize, free: usize) -> LoadError {
        LoadError::MemoryFull { needs, free, limit: self.limit.unwrap_or(usize::MAX) }
    }
}

//! One account of memory for the engines that share a limit: the reserved bytes of each class. Pure
//! bookkeeping; the prefix cache is counted here and shrinks for all others.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Uses of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryClass {
    /// Weights of models.
    Weights,
    /// Memory of a step beside weights and state.
    Step,
    /// State of running sequences, that of their drafters included.
    Sequences,
    /// State of past sequences that a draft model keeps.
    Drafters,
    /// A model that is being loaded.
    Loading,
    /// State of past sequences, and features of images: whatever the others leave.
    PrefixCache,
}

impl MemoryClass {
    /// Every class, in the order of the variants.
    pub const ALL: [MemoryClass; 6] = [
        MemoryClass::Weights,
        MemoryClass::Step,
        MemoryClass::Sequences,
        MemoryClass::Drafters,
        MemoryClass::Loading,
        MemoryClass::PrefixCache,
    ];
}

/// Reserved memory of the engines that share a limit.
#[derive(Default)]
pub struct MemoryAccount(Mutex<State>);

#[derive(Default)]
struct State {
    bytes: [usize; MemoryClass::ALL.len()],
    /// Callbacks that wake engines, by registration.
    engines: BTreeMap<u64, Box<dyn Fn() + Send>>,
    next: u64,
    pressure: CachePressure,
}

impl std::fmt::Debug for MemoryAccount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("MemoryAccount").field(&self.lock().bytes).finish()
    }
}

/// Reaction of engines to a shortage of memory in the system. It changes speed, never an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachePressure {
    /// Maximum bytes of the prefix caches of all engines together; `None`: their own budgets.
    pub most: Option<usize>,
    /// Number of times that engines were asked to return freed buffers to the system.
    pub releases: u64,
}

/// Bytes reserved from an account until this is dropped.
pub struct Reservation {
    account: Arc<MemoryAccount>,
    class: MemoryClass,
    bytes: usize,
}

/// An engine that is woken when another takes memory, until this is dropped.
pub struct Registration {
    account: Arc<MemoryAccount>,
    name: u64,
}

impl MemoryAccount {
    /// Reserves `bytes`, if they and all other reservations fit into `limit`.
    ///
    /// # Errors
    /// They do not fit; the error is the number of free bytes.
    pub fn reserve(
        self: &Arc<Self>,
        class: MemoryClass,
        bytes: usize,
        limit: Option<usize>,
    ) -> Result<Reservation, usize> {
        let mut reservation = Reservation { account: self.clone(), class, bytes: 0 };
        reservation.resize(bytes, limit).map(|()| reservation)
    }

    /// Bytes of a class.
    pub fn bytes(&self, class: MemoryClass) -> usize {
        self.lock().bytes[class as usize]
    }

    /// Reserved bytes, without those of prefix caches.
    pub fn promised(&self) -> usize {
        self.lock().promised()
    }

    /// Number of engines that share it.
    pub fn num_engines(&self) -> usize {
        self.lock().engines.len()
    }

    /// Wakes the engines so that they resize their caches.
    pub fn wake_engines(&self) {
        self.lock().engines.values().for_each(|wake| wake());
    }

    /// Limits the prefix caches of all engines together, or ends the limit, and with `release` has
    /// engines return freed buffers to the system: between two steps, soon after this returns.
    pub fn press_caches(&self, most: Option<usize>, release: bool) {
        let mut state = self.lock();
        state.pressure.most = most;
        state.pressure.releases += u64::from(release);
        drop(state);
        self.wake_engines();
    }

    /// The limit and the releases of [`press_caches`](MemoryAccount::press_caches).
    pub fn cache_pressure(&self) -> CachePressure {
        self.lock().pressure
    }

    /// Adds an engine, which `wake` wakes when another one takes memory.
    pub fn register(self: &Arc<Self>, wake: impl Fn() + Send + 'static) -> Registration {
        let mut state = self.lock();
        state.next += 1;
        let name = state.next;
        state.engines.insert(name, Box::new(wake));
        Registration { account: self.clone(), name }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn promised(&self) -> usize {
        self.bytes.iter().sum::<usize>() - self.bytes[MemoryClass::PrefixCache as usize]
    }
}

impl Reservation {
    /// # Errors
    /// The larger size does not fit; nothing has changed, and the error is the number of free
    /// bytes.
    pub fn resize(&mut self, bytes: usize, limit: Option<usize>) -> Result<(), usize> {
        let mut state = self.account.lock();
        let others = state.promised() - if self.class == MemoryClass::PrefixCache { 0 } else { self.bytes };
        let free = limit.map_or(usize::MAX, |limit| limit.saturating_sub(others));
        if bytes > self.bytes && bytes > free {
            return Err(free);
        }
        let held = &mut state.bytes[self.class as usize];
        *held = *held + bytes - self.bytes;
        self.bytes = bytes;
        Ok(())
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // Less always fits.
        _ = self.resize(0, None);
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.account.lock().engines.remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_beyond_the_limit_are_refused_and_change_nothing() {
        let account = Arc::new(MemoryAccount::default());
        let weights = account.reserve(MemoryClass::Weights, 60, Some(100)).unwrap();
        let mut sequence = account.reserve(MemoryClass::Sequences, 30, Some(100)).unwrap();
        assert_eq!(account.reserve(MemoryClass::Loading, 11, Some(100)).err(), Some(10));
        assert_eq!(sequence.resize(41, Some(100)), Err(40));
        assert_eq!((account.promised(), sequence.bytes()), (90, 30));
        sequence.resize(40, Some(100)).unwrap();
        // A reservation above the limit may shrink, though it still exceeds the limit.
        sequence.resize(35, Some(50)).unwrap();
        drop(weights);
        assert_eq!((account.promised(), account.bytes(MemoryClass::Sequences)), (35, 35));
    }

    #[test]
    fn pressed_caches_wake_every_engine() {
        let account = Arc::new(MemoryAccount::default());
        let woken = Arc::new(Mutex::new(0));
        let count = woken.clone();
        let _engine = account.register(move || *count.lock().unwrap() += 1);
        account.press_caches(Some(100), true);
        account.press_caches(Some(50), false);
        assert_eq!(account.cache_pressure(), CachePressure { most: Some(50), releases: 1 });
        account.press_caches(None, false);
        assert_eq!((account.cache_pressure().most, *woken.lock().unwrap()), (None, 3));
    }

    #[test]
    fn prefix_cache_bytes_are_counted_and_block_no_reservation() {
        let account = Arc::new(MemoryAccount::default());
        let mut cache = account.reserve(MemoryClass::PrefixCache, 0, None).unwrap();
        cache.resize(500, None).unwrap();
        assert_eq!((account.bytes(MemoryClass::PrefixCache), account.promised()), (500, 0));
        assert!(account.reserve(MemoryClass::Sequences, 100, Some(100)).is_ok());
        drop(cache);
        assert_eq!(account.bytes(MemoryClass::PrefixCache), 0);
    }
}

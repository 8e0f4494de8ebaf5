//! Guard that rolls caches back after a trial.

use std::ops::{Deref, DerefMut};

use nn::Recurrence;

use super::{Cache, WindowEvicted};

/// Restores the caches when it is dropped, also by a panic.
///
/// Keys and values after the end may be overwritten. A recurrence shares its arrays with the saved
/// one, so the first step writes to new memory.
pub(crate) struct CacheGuard<'a> {
    caches: &'a mut [Cache],
    saved: Vec<Saved>,
}

enum Saved {
    /// Number of tokens.
    Kv(i32),
    Recurrent(Recurrence),
}

impl CacheGuard<'_> {
    pub(crate) fn new(caches: &mut [Cache]) -> CacheGuard<'_> {
        let saved = caches.iter().map(|cache| match cache {
            Cache::Kv(kv) => Saved::Kv(kv.length()),
            Cache::Recurrent(recurrent) => Saved::Recurrent(recurrent.clone()),
        });
        CacheGuard { saved: saved.collect(), caches }
    }
}

impl Deref for CacheGuard<'_> {
    type Target = [Cache];

    fn deref(&self) -> &[Cache] {
        self.caches
    }
}

impl DerefMut for CacheGuard<'_> {
    fn deref_mut(&mut self) -> &mut [Cache] {
        self.caches
    }
}

impl Drop for CacheGuard<'_> {
    /// # Panics
    /// If a window cannot be rewound: more than [`REWINDABLE`](super::REWINDABLE) tokens were
    /// appended.
    fn drop(&mut self) {
        for (cache, saved) in self.caches.iter_mut().zip(self.saved.drain(..)) {
            match (cache, saved) {
                (Cache::Kv(kv), Saved::Kv(length)) => {
                    let rewound: Result<(), WindowEvicted> = kv.rewind(kv.length() - length);
                    rewound.unwrap_or_else(|WindowEvicted| {
                        panic!("a window no longer has its state at {length}")
                    });
                }
                (Cache::Recurrent(recurrent), Saved::Recurrent(saved)) => *recurrent = saved,
                _ => unreachable!("a cache never changes its kind"),
            }
        }
    }
}

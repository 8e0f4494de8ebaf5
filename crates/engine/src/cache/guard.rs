//! A sequence's caches in the hands of somebody who tries things out on them.

use std::ops::{Deref, DerefMut};

use nn::Recurrence;

use super::{Cache, WindowEvicted};

/// Caches that are as they were when this is dropped, whatever was computed on them in between, a panic included.
///
/// Keys and values behind the end are overwritten by whoever comes next. A recurrence is shared with what it was before, so
/// that the first step on it computes into memory of its own.
pub struct CacheGuard<'a> {
    caches: &'a mut [Cache],
    before: Vec<Before>,
}

enum Before {
    /// Tokens.
    Kv(i32),
    Recurrent(Recurrence),
}

impl CacheGuard<'_> {
    pub fn new(caches: &mut [Cache]) -> CacheGuard<'_> {
        let before = caches.iter().map(|cache| match cache {
            Cache::Kv(kv) => Before::Kv(kv.length()),
            Cache::Recurrent(recurrent) => Before::Recurrent(recurrent.clone()),
        });
        CacheGuard { before: before.collect(), caches }
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
    /// If more tokens were tried out than a window [keeps](super::REWINDABLE) beyond its reach: a bug of ours.
    fn drop(&mut self) {
        for (cache, before) in self.caches.iter_mut().zip(self.before.drain(..)) {
            match (cache, before) {
                (Cache::Kv(kv), Before::Kv(length)) => {
                    let rewound: Result<(), WindowEvicted> = kv.rewind(kv.length() - length);
                    rewound.unwrap_or_else(|WindowEvicted| {
                        panic!("a window has dropped what it had at {length}")
                    });
                }
                (Cache::Recurrent(recurrent), Before::Recurrent(before)) => *recurrent = before,
                _ => unreachable!("a cache stays of its kind"),
            }
        }
    }
}

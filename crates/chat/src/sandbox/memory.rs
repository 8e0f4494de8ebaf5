//! Memory of all renderings of a process together: a part for each one, and a pool for those that
//! need more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes that a rendering takes from the pool at a time.
const PIECE: u64 = 1 << 20;

/// A bound on the bytes of values that all renderings create; clones share the pool. Ordinary
/// conversations stay within the part that every rendering has, so that a hostile or huge one does
/// not make them fail.
#[derive(Clone, Debug)]
pub struct RenderMemory {
    each: u64,
    most: u64,
    pool: Arc<AtomicU64>,
}

impl RenderMemory {
    /// `each` bytes for every rendering, and `pool` bytes for all that need more.
    pub fn new(each: usize, pool: usize) -> RenderMemory {
        let most = pool as u64;
        RenderMemory { each: each as u64, most, pool: Arc::new(AtomicU64::new(most)) }
    }
}

impl Default for RenderMemory {
    /// Without a bound.
    fn default() -> RenderMemory {
        RenderMemory::new(usize::MAX, 0)
    }
}

/// Why a rendering gets no more memory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// No rendering may have as much.
    TooMuch,
    /// Other renderings have it.
    InUse,
}

/// The memory of one rendering; its part of the pool returns when this is dropped.
#[derive(Debug)]
pub(crate) struct RenderShare {
    memory: RenderMemory,
    left: u64,
    borrowed: u64,
}

impl RenderShare {
    pub(crate) fn new(memory: RenderMemory) -> RenderShare {
        RenderShare { left: memory.each, borrowed: 0, memory }
    }

    pub(crate) fn take(&mut self, bytes: u64) -> Result<(), Refused> {
        if let Some(missing) = bytes.checked_sub(self.left).filter(|missing| *missing > 0) {
            let piece = missing.max(PIECE.min(self.memory.most));
            if self.borrowed.saturating_add(piece) > self.memory.most {
                return Err(Refused::TooMuch);
            }
            let borrowed = self.memory.pool.fetch_update(Relaxed, Relaxed, |pool| pool.checked_sub(piece));
            borrowed.map_err(|_| Refused::InUse)?;
            self.borrowed += piece;
            self.left += piece;
        }
        self.left -= bytes;
        Ok(())
    }
}

impl Drop for RenderShare {
    fn drop(&mut self) {
        self.memory.pool.fetch_add(self.borrowed, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rendering_borrows_from_the_pool_until_it_ends() {
        let memory = RenderMemory::new(100, 4 << 20);
        let start = || RenderShare::new(memory.clone());
        let mut hungry = start();
        assert_eq!(hungry.take(3 << 20), Ok(()));
        assert_eq!(hungry.take(2 << 20), Err(Refused::TooMuch));
        let mut other = start();
        assert_eq!(other.take(100), Ok(()), "its own part");
        assert_eq!(other.take(2 << 20), Err(Refused::InUse));
        drop(hungry);
        assert_eq!(other.take(2 << 20), Ok(()));
        drop(other);
        assert_eq!(start().take((4 << 20) + 100), Ok(()));
        assert_eq!(RenderShare::new(RenderMemory::default()).take(u64::MAX / 2), Ok(()));
    }
}

//! Panics on purpose, for tests of what becomes of them; outside of the crate's own tests nothing.

/// A place where a test may have the engine's thread panic.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn point(_name: &'static str) {}

#[cfg(test)]
pub(crate) use tests::{panic_at, point};

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    thread_local! {
        /// The place, and how often it is still passed before it panics; then how often it panics.
        static NEXT: Cell<Option<(&'static str, usize, usize)>> = const { Cell::new(None) };
    }

    /// Has this thread panic when it comes to a place for the `after`-th time, counted from 0, and
    /// `times` in all.
    pub(crate) fn panic_at(name: &'static str, after: usize, times: usize) {
        NEXT.set(Some((name, after, times)));
    }

    pub(crate) fn point(name: &'static str) {
        let Some((place, after, times)) = NEXT.get().filter(|(place, ..)| *place == name) else { return };
        match (after, times) {
            (0, 0) => NEXT.set(None),
            (0, times) => {
                NEXT.set(Some((place, 0, times - 1)));
                panic!("{name} panics on purpose");
            }
            (after, _) => NEXT.set(Some((place, after - 1, times))),
        }
    }
}

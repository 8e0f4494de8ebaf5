//! Injected panics, for tests of recovery; nothing outside this crate's tests.

/// A point at which a test may make the engine's thread panic.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn point(_name: &'static str) {}

#[cfg(test)]
pub(crate) use tests::{panic_at, point};

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    thread_local! {
        /// The point, the number of passes before its first panic, and the number of panics.
        static NEXT: Cell<Option<(&'static str, usize, usize)>> = const { Cell::new(None) };
    }

    /// Makes this thread panic at a point after it was passed `after` times, and `times` times in
    /// all.
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

//! A mutable slice that several threads write, each its own part.

use std::marker::PhantomData;

/// A `&mut [T]` that is shared between threads and handed out in disjoint parts.
pub(crate) struct DisjointMut<'a, T> {
    start: *mut T,
    length: usize,
    output: PhantomData<&'a mut [T]>,
}

// SAFETY: it stands for a `&mut [T]`, handed out in parts that do not overlap (see `part`).
unsafe impl<T: Send> Sync for DisjointMut<'_, T> {}

impl<'a, T> DisjointMut<'a, T> {
    pub(crate) fn new(output: &'a mut [T]) -> DisjointMut<'a, T> {
        DisjointMut { start: output.as_mut_ptr(), length: output.len(), output: PhantomData }
    }

    /// `length` elements from `at`.
    ///
    /// # Panics
    /// If the part ends past the slice.
    ///
    /// # Safety
    /// No two parts in use at a time may overlap.
    #[allow(clippy::mut_from_ref, reason = "parts do not overlap")]
    #[inline(always)]
    pub(crate) unsafe fn part(&self, at: usize, length: usize) -> &mut [T] {
        assert!(at <= self.length && length <= self.length - at, "a part past the end");
        // SAFETY: within the slice, which is borrowed for 'a; the caller keeps parts disjoint.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), length) }
    }
}

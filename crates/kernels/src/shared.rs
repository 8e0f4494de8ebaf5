//! What the tasks of one call share: an output of which each writes its own parts, and memory a thread keeps.

use std::{cell::Cell, marker::PhantomData};

/// An output of which several threads write, each its own parts.
pub struct Parts<'a, T> {
    start: *mut T,
    length: usize,
    output: PhantomData<&'a mut [T]>,
}

#[allow(unsafe_code, reason = "threads share the pointer, and write apart from each other")]
// SAFETY: `Parts` stands for a `&mut [T]`, handed out in pieces that do not overlap (see `part`).
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    pub fn new(output: &'a mut [T]) -> Parts<'a, T> {
        Parts { start: output.as_mut_ptr(), length: output.len(), output: PhantomData }
    }

    /// `length` elements from `at`.
    ///
    /// # Safety
    /// No two parts in use at a time may overlap.
    #[allow(unsafe_code, reason = "the caller keeps parts apart")]
    #[allow(clippy::mut_from_ref, reason = "the parts do not overlap")]
    #[inline(always)]
    pub unsafe fn part(&self, at: usize, length: usize) -> &mut [T] {
        assert!(at <= self.length && length <= self.length - at, "a part behind the end");
        // SAFETY: within the output, which is borrowed for 'a; the caller keeps parts apart.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), length) }
    }
}

thread_local! {
    static SCRATCH: Cell<Vec<f32>> = const { Cell::new(vec![]) };
}

/// Calls `f` with `length` floats of whatever values, memory that the thread keeps from call to call.
pub fn with_scratch<R>(length: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut memory = SCRATCH.take();
    if memory.len() < length {
        memory.resize(length, 0.0);
    }
    let result = f(&mut memory[..length]);
    SCRATCH.set(memory);
    result
}

//! What the tasks of one call share: an output of which each writes its own parts, and memory a thread keeps.

use std::{cell::RefCell, marker::PhantomData};

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
    /// One for each call within another, the outermost last.
    static SCRATCH: RefCell<Vec<Vec<f32>>> = const { RefCell::new(vec![]) };
}

/// Floats that fill a line of the cache: vectors that straddle two lines are loaded at half the speed.
const LINE: usize = 16;

/// Calls `f` with `length` floats of whatever values, memory that the thread keeps from call to call. It starts with a
/// line of the cache.
pub fn with_scratch<R>(length: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut memory = SCRATCH.with_borrow_mut(Vec::pop).unwrap_or_default();
    if memory.len() < length + LINE {
        memory = vec![0.0; length + LINE];
    }
    let start = memory.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
    let result = f(&mut memory[start..][..length]);
    SCRATCH.with_borrow_mut(|free| free.push(memory));
    result
}

/// Memory that starts with a line of the cache.
#[repr(align(64))]
pub struct Aligned<const N: usize>(pub [f32; N]);

/// Asks for values that are needed soon, a few hundred bytes, into the second cache: the first has room for few lines on their way
/// (ADR 22).
#[inline(always)]
#[allow(unsafe_code, reason = "a hint to the cache")]
pub fn prefetch<T>(values: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..values.len()).step_by((64 / size_of::<T>()).max(1)) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: within the slice; nothing is read but into the cache.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(values.as_ptr().add(at).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = values;
}

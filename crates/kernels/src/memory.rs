//! Scratch memory that threads reuse from call to call, cache-line alignment, prefetching.

use std::cell::RefCell;

thread_local! {
    /// One buffer per nested call, the outermost last.
    static SCRATCH: RefCell<Vec<Vec<f32>>> = const { RefCell::new(vec![]) };
}

/// Floats in a cache line: vectors that straddle two lines load at half the speed.
const LINE_FLOATS: usize = 16;

/// Calls `f` with `length` floats of unspecified values that start on a cache line. The thread
/// reuses the memory.
pub fn with_scratch<R>(length: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut memory = SCRATCH.with_borrow_mut(Vec::pop).unwrap_or_default();
    if memory.len() < length + LINE_FLOATS {
        memory = vec![0.0; length + LINE_FLOATS];
    }
    let start = memory.as_ptr().align_offset(LINE_FLOATS * size_of::<f32>()).min(LINE_FLOATS);
    let result = f(&mut memory[start..][..length]);
    SCRATCH.with_borrow_mut(|free| free.push(memory));
    result
}

/// Floats that start on a cache line.
#[repr(align(64))]
pub(crate) struct Aligned<const N: usize>(pub [f32; N]);

/// Prefetches values that are needed soon, a few hundred bytes, into the second-level cache: the
/// first level tracks few outstanding lines (ADR 22).
#[inline(always)]
pub(crate) fn prefetch<T>(values: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..values.len()).step_by((64 / size_of::<T>()).max(1)) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: within the slice; a prefetch reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(values.as_ptr().add(at).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = values;
}

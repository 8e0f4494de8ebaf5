//! Splits work over threads, where it is worth waking them.

use rayon::prelude::*;

/// How many threads compute, the caller included. The first call counts, and none once a kernel has run: threads stay.
///
/// # Panics
/// If `threads` is 0.
pub fn set_threads(threads: usize) {
    assert!(threads > 0, "no threads to compute with");
    // The pool is there already: whoever was first has decided.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
}

/// How many threads compute, the caller included.
pub fn threads() -> usize {
    rayon::current_num_threads()
}

/// Multiply-adds that take about as long as waking another thread.
const WORTHWHILE: usize = 200_000;

/// Calls `f` with the index and contents of each `size` elements of `out`; `work` is the multiply-adds of all calls.
///
/// Results do not depend on who runs what: chunks share nothing.
pub fn for_each_chunk<T: Send>(out: &mut [T], size: usize, work: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    if work < WORTHWHILE || out.len() <= size {
        out.chunks_mut(size).enumerate().for_each(|(i, chunk)| f(i, chunk));
    } else {
        out.par_chunks_mut(size).enumerate().for_each(|(i, chunk)| f(i, chunk));
    }
}

//! Panics as errors: a bug of ours costs a request, never the engine's thread.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs one step's work; a panic in it is an error like any other.
pub(crate) fn guarded<T>(work: impl FnOnce() -> mlx::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(panic) => Err(mlx::panic_message(&*panic)),
    }
}

/// As [`guarded`], of work that fails by a panic alone.
pub(crate) fn contained(work: impl FnOnce()) -> Result<(), String> {
    guarded(|| {
        work();
        Ok(())
    })
}

/// Whether a failure of a step says that there was no memory for it.
pub(crate) fn is_out_of_memory(message: &str) -> bool {
    // MLX's allocators, C++, and our own checks.
    let known = ["out of memory", "bad_alloc", "[malloc", "Unable to allocate", "[metal::malloc]"];
    known.iter().any(|part| message.contains(part))
}

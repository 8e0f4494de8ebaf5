//! Panics as errors: an internal bug costs a request, never the engine's thread.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs one step's work; a panic in it is an error like any other.
pub(crate) fn guarded<T>(work: impl FnOnce() -> mlx::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(panic) => Err(mlx::panic_message(&*panic)),
    }
}

/// Like [`guarded`], for work that fails only by a panic.
pub(crate) fn contained(work: impl FnOnce()) -> Result<(), String> {
    guarded(|| {
        work();
        Ok(())
    })
}

/// Whether the error of a step says that it ran out of memory.
pub(crate) fn is_out_of_memory(message: &str) -> bool {
    // MLX's allocators, C++, and our own checks.
    let known = ["out of memory", "bad_alloc", "[malloc", "Unable to allocate", "[metal::malloc]"];
    known.iter().any(|part| message.contains(part))
}

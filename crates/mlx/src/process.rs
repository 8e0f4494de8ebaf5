//! Process-wide settings: exit while MLX may still compute, and heaps.

use std::ffi::c_int;

#[allow(unsafe_code, reason = "the standard library has no exit that runs nothing")]
unsafe extern "C" {
    // SAFETY: POSIX's `_exit` takes any status, reads no memory of ours and does not return.
    safe fn _exit(status: c_int) -> !;
}

/// Ends the program at once: no destructors run, no thread is waited for and nothing buffered is
/// written.
///
/// A normal exit runs MLX's static destructors, which crash while another thread computes. Call
/// this only after a bounded wait for such a thread.
pub fn exit_now(status: u8) -> ! {
    _exit(status.into())
}

/// Returns free memory of the heap to the system; otherwise up to 128 MB of it stay, and more below
/// live allocations. Does nothing without glibc.
pub(crate) fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        #[allow(unsafe_code, reason = "glibc's function has no safe binding")]
        unsafe extern "C" {
            // SAFETY: glibc's `malloc_trim` takes any padding, locks the heaps it works on, and
            // returns only memory that is free.
            safe fn malloc_trim(padding: usize) -> c_int;
        }
        malloc_trim(0);
    }
}

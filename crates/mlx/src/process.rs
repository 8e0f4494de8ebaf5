//! Exit while MLX may still compute.

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

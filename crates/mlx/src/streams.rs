//! Streams for threads that come and go.

use std::marker::PhantomData;

use crate::{Result, bridge};

/// The streams of the calling thread, handed on to a later one when this is dropped.
///
/// MLX makes a stream for each thread that computes, run by a thread of its own that never ends. A thread that
/// leases its streams before it computes takes those of one that has ended: there are only as many as compute at a time.
#[must_use = "dropping it hands the streams to other threads"]
pub struct Streams(PhantomData<*const ()>);

impl Streams {
    /// For a thread that has not used MLX yet; one that has keeps what it has.
    ///
    /// # Errors
    /// MLX could not make one.
    pub fn lease() -> Result<Streams> {
        bridge::lease_streams()?;
        Ok(Streams(PhantomData))
    }
}

impl Drop for Streams {
    /// Arrays of this thread must not be computed any more.
    fn drop(&mut self) {
        // Without memory for the list the next thread gets streams of its own.
        let _ = bridge::return_streams();
    }
}

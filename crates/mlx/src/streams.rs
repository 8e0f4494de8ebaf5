//! Reuse of MLX streams by threads that start and end.

use std::marker::PhantomData;

use crate::{Result, bridge};

/// The streams of the calling thread, which another thread may take over once this is dropped.
///
/// MLX makes a stream for each thread that computes, run by a thread of its own that never ends.
/// With leases, there are only as many streams as threads that compute at the same time.
#[must_use = "dropping it returns the streams to other threads"]
pub struct Streams(PhantomData<*const ()>);

impl Streams {
    /// Leases streams for a thread that has not used MLX yet; one that has keeps its own.
    ///
    /// # Errors
    /// MLX could not make a stream.
    pub fn lease() -> Result<Streams> {
        bridge::lease_streams()?;
        Ok(Streams(PhantomData))
    }
}

impl Drop for Streams {
    /// No array of this thread may be evaluated afterwards.
    fn drop(&mut self) {
        // If the list cannot grow, the next thread gets new streams.
        let _ = bridge::return_streams();
    }
}

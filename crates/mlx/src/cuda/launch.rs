//! Launching kernels.

#![allow(unsafe_code, reason = "calls to the driver")]

use std::{ffi::c_void, mem::size_of, sync::atomic::Ordering::Relaxed};

use super::{
    Result,
    device::Device,
    driver::{LaunchAttribute, LaunchConfig},
};
use crate::profile;

/// Parameters of a kernel, in its order.
pub struct Arguments {
    /// Aligned for every parameter.
    words: Vec<u64>,
    /// The index of each parameter's first word.
    starts: Vec<usize>,
}

/// The function attribute that limits a kernel's dynamic shared memory.
const MAX_SHARED: i32 = 8;

impl Arguments {
    #[allow(clippy::new_without_default, reason = "no caller needs it")]
    pub fn new() -> Arguments {
        Arguments { words: Vec::with_capacity(512), starts: Vec::with_capacity(16) }
    }

    /// One more parameter: a number, an address, or a struct laid out as in C.
    #[must_use]
    pub fn with<T: Copy + 'static>(mut self, value: T) -> Arguments {
        const { assert!(align_of::<T>() <= 8) };
        self.starts.push(self.words.len());
        let words = size_of::<T>().div_ceil(8);
        self.words.resize(self.words.len() + words, 0);
        let at = self.words.len() - words;
        // SAFETY: there is room for a `T` at an aligned place; padding may stay uninitialised,
        // since only the driver copies it.
        unsafe { self.words.as_mut_ptr().add(at).cast::<T>().write(value) };
        self
    }
}

impl Device {
    /// Queues a kernel: `grid` blocks of `threads` threads, with `shared` bytes of dynamic shared
    /// memory. It may start before the previous kernel has ended, and waits for that kernel itself
    /// (programmatic dependent launch).
    ///
    /// # Errors
    /// The device failed, or the kernel cannot be launched with these sizes.
    ///
    /// # Panics
    /// If there is no kernel of this name.
    pub fn launch(
        &self,
        name: &'static str,
        grid: [u32; 3],
        threads: u32,
        shared: usize,
        arguments: &Arguments,
    ) -> Result<()> {
        let (driver, function) = (self.enter(), self.function(name));
        let shared = shared as u32;
        if shared > function.shared.load(Relaxed) {
            // SAFETY: the function exists as long as the process.
            let status =
                unsafe { (driver.set_function_attribute)(function.handle, MAX_SHARED, shared as i32) };
            driver.check(status, name)?;
            function.shared.store(shared, Relaxed);
        }
        let pointers: Vec<*const c_void> =
            arguments.starts.iter().map(|&at| arguments.words[at..].as_ptr().cast()).collect();
        let config = LaunchConfig {
            grid,
            block: [threads, 1, 1],
            shared,
            stream: self.stream,
            attributes: &LaunchAttribute::DEPENDENT,
            num_attributes: 1,
        };
        profile::timed(name, || {
            // SAFETY: the driver copies the parameters now, which are as many and as large as the
            // kernel's; the kernel touches memory of the device alone.
            let status =
                unsafe { (driver.launch)(&config, function.handle, pointers.as_ptr(), std::ptr::null()) };
            driver.check(status, name)
        })
    }
}

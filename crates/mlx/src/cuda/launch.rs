//! Launching kernels.

#![allow(unsafe_code, reason = "calls to the driver")]

use std::{ffi::c_void, mem::size_of, sync::PoisonError, time::Duration};

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
        Arguments { words: Vec::with_capacity(64), starts: Vec::with_capacity(16) }
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

impl Arguments {
    /// All parameters, each at a multiple of 8 bytes.
    pub(super) fn words(&self) -> &[u64] {
        &self.words
    }
}

/// Blocks, threads of a block, and bytes of its dynamic shared memory.
pub(super) type LaunchSize = ([u32; 3], u32, usize);

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
        self.launch_operations()?;
        let size = (grid, threads, shared);
        let launch = || self.launch_now(name, size, &LaunchAttribute::DEPENDENT, arguments);
        if profile::times_on_device() {
            return self.timed(name, launch);
        }
        profile::launched(name);
        launch()
    }

    /// Launches a kernel after what was launched before.
    pub(super) fn launch_now(
        &self,
        name: &'static str,
        (grid, threads, shared): LaunchSize,
        attribute: &'static LaunchAttribute,
        arguments: &Arguments,
    ) -> Result<()> {
        let (driver, function) = (self.enter(), self.function(name));
        let shared = shared as u32;
        // Held while the limit is raised: another thread could otherwise lower it again.
        let mut limit = function.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if shared > *limit {
            // SAFETY: the function exists as long as the process.
            let status =
                unsafe { (driver.set_function_attribute)(function.handle, MAX_SHARED, shared as i32) };
            driver.check(status, name)?;
            *limit = shared;
        }
        drop(limit);
        let pointers: Vec<*const c_void> =
            arguments.starts.iter().map(|&at| arguments.words[at..].as_ptr().cast()).collect();
        let config = LaunchConfig {
            grid,
            block: [threads, 1, 1],
            shared,
            stream: self.stream,
            attributes: attribute,
            num_attributes: 1,
        };
        // SAFETY: the driver copies the parameters now, which are as many and as large as the
        // kernel's; the kernel touches memory of the device alone.
        let status =
            unsafe { (driver.launch)(&config, function.handle, pointers.as_ptr(), std::ptr::null()) };
        driver.check(status, name)
    }

    /// Launches a kernel, waits for it and counts the time that the device took.
    pub(super) fn timed(&self, name: &'static str, launch: impl FnOnce() -> Result<()>) -> Result<()> {
        let (driver, mut events, mut ms) = (self.enter(), [0, 0], 0.0);
        self.wait()?;
        // SAFETY: the functions write handles, which are used as long as they exist, and a number.
        unsafe {
            for event in &mut events {
                driver.check((driver.create_event)(event, 0), "make an event")?;
            }
            driver.check((driver.record_event)(events[0], self.stream), "record an event")?;
            launch()?;
            driver.check((driver.record_event)(events[1], self.stream), "record an event")?;
            driver.check(profile::waited(|| (driver.wait_for_event)(events[1])), "finish a kernel")?;
            driver.check((driver.elapsed_ms)(&mut ms, events[0], events[1]), "measure a kernel")?;
            for event in events {
                driver.check((driver.destroy_event)(event), "drop an event")?;
            }
        }
        profile::record(name, Duration::from_secs_f32(ms / 1e3));
        Ok(())
    }
}

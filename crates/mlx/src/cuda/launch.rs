//! Launching kernels, at once or recorded.

#![allow(unsafe_code, reason = "calls to the driver")]

use std::{
    sync::{MutexGuard, PoisonError},
    time::Duration,
};

use super::{
    Arguments, Result,
    device::{Device, device},
    driver::{Driver, Handle},
    kernel_call::Launch,
    record::{Recording, Scope, is_recording},
};
use crate::profile;

/// The function attribute that limits a kernel's dynamic shared memory.
const MAX_SHARED: i32 = 8;

/// Runs `f` and launches its kernels together, up to each other use of the device and at the end:
/// as a graph of which only what changed is passed to the driver, once `f` has run in this form
/// before. The device starts that much later, so this pays while it is busy.
///
/// # Errors
/// The device failed.
pub fn record<T>(f: impl FnOnce() -> T) -> Result<T> {
    let scope = Scope::enter();
    let result = f();
    drop(scope);
    submit()?;
    Ok(result)
}

/// Launches what was recorded so far: the device is needed before the recording ends.
///
/// # Errors
/// The device failed.
pub fn submit() -> Result<()> {
    device().map_or(Ok(()), |device| device.submit().map(drop))
}

impl Device {
    /// Queues a kernel, or [records](super::record) it: `grid` blocks of `threads` threads, with
    /// `shared` bytes of dynamic shared memory. It may start before the previous kernel has ended,
    /// and waits for that kernel itself (programmatic dependent launch).
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
        arguments: Arguments,
    ) -> Result<()> {
        let function = self.function_with(name, shared as u32)?;
        let launch = Launch { name, function, grid, threads, shared: shared as u32, arguments };
        match profile::times_on_device() {
            true => self.timed(launch),
            false => profile::timed(name, || self.queue_or_record(launch)),
        }
    }

    /// The kernel, which may use `shared` bytes of dynamic shared memory.
    fn function_with(&self, name: &'static str, shared: u32) -> Result<Handle> {
        let (driver, function) = (self.enter(), self.function(name));
        let mut limit = function.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if shared > *limit {
            // SAFETY: the function exists as long as the process.
            let status =
                unsafe { (driver.set_function_attribute)(function.handle, MAX_SHARED, shared as i32) };
            driver.check(status, name)?;
            *limit = shared;
        }
        Ok(function.handle)
    }

    /// Launches a kernel, waits for it and counts the time that the device took.
    fn timed(&self, launch: Launch) -> Result<()> {
        let (name, mut events, mut ms) = (launch.name, [0, 0], 0.0);
        self.synchronize()?;
        let driver = self.enter();
        // SAFETY: the functions write handles, which are used as long as they exist, and a number.
        unsafe {
            for event in &mut events {
                driver.check((driver.create_event)(event, 0), "make an event")?;
            }
            driver.check((driver.record_event)(events[0], self.stream), "record an event")?;
            launch.queue(driver, self.stream)?;
            driver.check((driver.record_event)(events[1], self.stream), "record an event")?;
            driver.check((driver.wait_for_event)(events[1]), "finish a kernel")?;
            driver.check((driver.elapsed_ms)(&mut ms, events[0], events[1]), "measure a kernel")?;
            for event in events {
                driver.check((driver.destroy_event)(event), "drop an event")?;
            }
        }
        profile::record(name, Duration::from_secs_f32(ms / 1e3));
        Ok(())
    }
}

impl Device {
    fn recording(&self) -> MutexGuard<'_, Recording> {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kernels reach the stream in the order of these calls, whichever threads make them: memory
    /// that one of them freed may be another's already.
    pub(super) fn queue_or_record(&self, launch: Launch) -> Result<()> {
        let (driver, mut recording) = (self.enter(), self.recording());
        if is_recording() && self.graphs.is_some() {
            return recording.push(launch, driver, self.graphs.as_ref(), self.stream);
        }
        recording.submit(driver, self.graphs.as_ref(), self.stream)?;
        launch.queue(driver, self.stream)
    }

    /// Launches what was recorded; the driver, whose stream may then be used.
    pub(super) fn submit(&self) -> Result<&Driver> {
        let driver = self.enter();
        self.recording().submit(driver, self.graphs.as_ref(), self.stream)?;
        Ok(driver)
    }
}

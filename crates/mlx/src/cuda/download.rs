//! Downloads that are queued now and waited for later, while the device computes what was queued
//! after them.

#![allow(unsafe_code, reason = "calls to the driver")]

use std::sync::PoisonError;

use super::{
    Result,
    device::{Device, device},
    driver::{Address, Handle},
};
use crate::profile;

/// Pinned host memory, with an event that is reached once the device has filled or read it.
pub(super) struct Pinned {
    pub memory: *mut u8,
    bytes: usize,
    pub event: Handle,
}

// SAFETY: the memory is the process's, and has one holder at a time.
unsafe impl Send for Pinned {}

/// A copy of device memory on its way to the host.
pub struct Download {
    /// Taken when it ends.
    pinned: Option<Pinned>,
    bytes: usize,
}

/// The smallest piece of pinned memory.
const LEAST_BYTES: usize = 1 << 10;
/// An event without a time: recording it costs less.
const DISABLE_TIMING: u32 = 2;

impl Device {
    /// Queues a copy of `bytes` at `from`, as they are after everything queued so far.
    ///
    /// # Errors
    /// The device failed, or there is no pinned memory left.
    pub(crate) fn start_download(&self, from: Address, bytes: usize) -> Result<Download> {
        self.launch_operations()?;
        let driver = self.enter();
        let pinned = self.take_pinned(bytes)?;
        // SAFETY: the memory has room for the bytes, and is used again only once the event was
        // waited for.
        unsafe {
            driver
                .check((driver.download)(pinned.memory, from, bytes, self.stream), "copy from the device")?;
            driver.check((driver.record_event)(pinned.event, self.stream), "record an event")?;
        }
        Ok(Download { pinned: Some(pinned), bytes })
    }

    fn take_pinned(&self, bytes: usize) -> Result<Pinned> {
        let mut free = self.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = free.iter().position(|pinned| pinned.bytes >= bytes) {
            return Ok(free.swap_remove(at));
        }
        drop(free);
        self.new_pinned(bytes.next_power_of_two().max(LEAST_BYTES))
    }

    pub(super) fn new_pinned(&self, bytes: usize) -> Result<Pinned> {
        let driver = self.enter();
        let mut pinned = Pinned { memory: std::ptr::null_mut(), bytes, event: 0 };
        // SAFETY: the functions write a handle and an address, which exist as long as the process.
        unsafe {
            driver.check((driver.create_event)(&mut pinned.event, DISABLE_TIMING), "make an event")?;
            driver.check((driver.allocate_host)(&mut pinned.memory, bytes), "allocate host memory")?;
        }
        Ok(pinned)
    }
}

impl Pinned {
    /// Writes parts one after another, for which there must be room.
    pub(super) fn fill(&mut self, parts: &[&[u8]]) {
        let mut at = 0;
        for part in parts {
            assert!(at + part.len() <= self.bytes, "pinned memory of {} bytes", self.bytes);
            // SAFETY: there is room, and the device does not read the memory now.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), self.memory.add(at), part.len()) };
            at += part.len();
        }
    }
}

impl Download {
    /// Waits for the copy, not for what was queued after it.
    ///
    /// # Errors
    /// The device failed before the copy.
    pub fn wait(&self) -> Result<&[u8]> {
        let (Some(device), Some(pinned)) = (device(), &self.pinned) else { return Ok(&[]) };
        let driver = device.enter();
        // SAFETY: the event exists, and the memory holds the bytes once it is reached.
        unsafe {
            driver.check(profile::waited(|| (driver.wait_for_event)(pinned.event)), "finish a kernel")?;
            Ok(std::slice::from_raw_parts(pinned.memory, self.bytes))
        }
    }
}

impl Drop for Download {
    /// The device may still write the memory: it is free after that.
    fn drop(&mut self) {
        // A device that failed writes nothing more.
        let _ = self.wait().map(drop);
        if let (Some(device), Some(pinned)) = (device(), self.pinned.take()) {
            device.pinned.lock().unwrap_or_else(PoisonError::into_inner).push(pinned);
        }
    }
}

//! The device's memory: a pool that reuses freed pieces for later allocations of their size.
//!
//! Everything that touches the memory is queued on one stream, in order, so a freed piece can be
//! reused at once.

#![allow(unsafe_code, reason = "calls to the driver")]

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{
    Fault, Result,
    device::{Device, device},
    driver::{Address, Copy2D},
};

/// A piece of the device's memory.
#[derive(Debug)]
pub struct Buffer {
    pointer: Address,
    bytes: usize,
}

struct Pool {
    /// Pieces without a holder, by size.
    free: BTreeMap<usize, Vec<Address>>,
    /// Bytes held, their maximum, and those of free pieces.
    active: usize,
    peak: usize,
    cached: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { free: BTreeMap::new(), active: 0, peak: 0, cached: 0 });

/// If free pieces have more than this many bytes, all of them are returned to the driver.
const MAX_CACHED: usize = 4 << 30;

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The size of the piece for a number of bytes: one of few sizes, so that pieces can be reused.
fn piece(bytes: usize) -> usize {
    let bytes = bytes.max(512);
    match bytes {
        // Weights.
        0x200_0000.. => bytes.next_multiple_of(2 << 20),
        _ => bytes.next_multiple_of((bytes.next_power_of_two() / 8).max(512)),
    }
}

impl Buffer {
    /// Uninitialised memory of the open device.
    ///
    /// # Errors
    /// The device has too little memory left.
    pub fn new(device: &Device, bytes: usize) -> Result<Buffer> {
        let size = piece(bytes);
        let mut pool = pool();
        let kept = pool.free.get_mut(&size).and_then(Vec::pop);
        let pointer = match kept {
            Some(pointer) => {
                pool.cached -= size;
                pointer
            }
            None => match device.allocate(size) {
                Ok(pointer) => pointer,
                Err(_) => {
                    pool.release(device)?;
                    device.allocate(size)?
                }
            },
        };
        pool.active += size;
        pool.peak = pool.peak.max(pool.active);
        Ok(Buffer { pointer, bytes })
    }

    /// A buffer of memory that [`Buffer::leak`] gave up.
    pub(super) fn adopt(pointer: Address, bytes: usize) -> Buffer {
        Buffer { pointer, bytes }
    }

    /// Gives the memory up without freeing it; returns its address and size.
    pub(super) fn leak(self) -> (Address, usize) {
        let parts = (self.pointer, self.bytes);
        std::mem::forget(self);
        parts
    }

    pub fn pointer(&self) -> Address {
        self.pointer
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let size = piece(self.bytes);
        let mut pool = pool();
        pool.active -= size;
        pool.cached += size;
        pool.free.entry(size).or_default().push(self.pointer);
        if let Some(device) = device().filter(|_| pool.cached > MAX_CACHED) {
            // A failed device fails the next operation anyway.
            let _ = pool.release(device);
        }
    }
}

impl Pool {
    /// Returns free pieces to the driver, once nothing uses them. A piece that the driver does not
    /// take back stays free.
    fn release(&mut self, device: &Device) -> Result<()> {
        device.synchronize()?;
        while let Some(mut pieces) = self.free.first_entry() {
            let size = *pieces.key();
            while let Some(&pointer) = pieces.get().last() {
                // SAFETY: the driver gave this address, and it has no holder.
                device.driver.check(unsafe { (device.driver.free)(pointer) }, "free memory")?;
                pieces.get_mut().pop();
                self.cached -= size;
            }
            pieces.remove();
        }
        Ok(())
    }
}

impl Device {
    pub(super) fn allocate(&self, bytes: usize) -> Result<Address> {
        let driver = self.enter();
        let mut pointer = 0;
        // SAFETY: the function writes the address.
        let status = unsafe { (driver.allocate)(&mut pointer, bytes) };
        let refused = |e: Fault| Fault(format!("out of memory: {bytes} bytes on the GPU ({e})"));
        driver.check(status, "allocate").map_err(refused)?;
        Ok(pointer)
    }

    /// Copies `bytes` to the device.
    ///
    /// # Errors
    /// The device failed.
    pub fn upload(&self, to: Address, bytes: &[u8]) -> Result<()> {
        self.launch_operations()?;
        let driver = self.enter();
        // SAFETY: the driver has read pageable memory when this returns.
        let status = unsafe { (driver.upload)(to, bytes.as_ptr(), bytes.len(), self.stream) };
        driver.check(status, "copy to the device")
    }

    /// Waits for everything queued so far and copies from the device.
    ///
    /// # Errors
    /// The device failed, now or in an earlier kernel.
    pub fn download(&self, from: Address, bytes: &mut [u8]) -> Result<()> {
        self.launch_operations()?;
        let driver = self.enter();
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        if staging.bytes == 0 {
            const STAGING: usize = 4 << 20;
            // SAFETY: the function writes the address of memory that stays allocated.
            driver.check(
                unsafe { (driver.allocate_host)(&mut staging.memory, STAGING) },
                "allocate host memory",
            )?;
            staging.bytes = STAGING;
        }
        for (i, part) in bytes.chunks_mut(staging.bytes).enumerate() {
            let from = from + (i * staging.bytes) as Address;
            // SAFETY: the staging memory has room for the part, and is read after the copy has
            // ended.
            unsafe {
                driver.check(
                    (driver.download)(staging.memory, from, part.len(), self.stream),
                    "copy from the device",
                )?;
                self.wait()?;
                part.copy_from_slice(std::slice::from_raw_parts(staging.memory, part.len()));
            }
        }
        Ok(())
    }

    /// Fills memory with zeros.
    ///
    /// # Errors
    /// The device failed.
    pub fn clear(&self, to: Address, bytes: usize) -> Result<()> {
        self.launch_operations()?;
        let driver = self.enter();
        // SAFETY: memory of the device alone changes.
        driver.check(unsafe { (driver.fill)(to, 0, bytes, self.stream) }, "clear memory")
    }

    /// Copies `rows` rows of `width` bytes, `pitches` bytes apart, from one place on the device to
    /// another.
    ///
    /// # Errors
    /// The device failed.
    pub fn copy_rows(
        &self,
        places: [Address; 2],
        pitches: [usize; 2],
        width: usize,
        rows: usize,
    ) -> Result<()> {
        if width == 0 || rows == 0 {
            return Ok(());
        }
        self.launch_operations()?;
        let driver = self.enter();
        let copy = Copy2D::new(places, pitches, width, rows);
        // SAFETY: the driver reads the description now; memory of the device alone changes.
        driver.check(unsafe { (driver.copy_2d)(&copy, self.stream) }, "copy on the device")
    }
}

/// Bytes held on the device.
pub(crate) fn active_memory() -> usize {
    pool().active
}

/// The most bytes held since [`reset_peak_memory`].
pub(crate) fn peak_memory() -> usize {
    pool().peak
}

pub(crate) fn reset_peak_memory() {
    let mut pool = pool();
    pool.peak = pool.active;
}

/// Returns memory without a holder to the driver.
pub(crate) fn clear_cache() {
    if let Some(device) = device() {
        // A failed device fails the next operation anyway.
        let _ = pool().release(device);
    }
}

//! Queueing operations of a persistent kernel, and launching it.

#![allow(unsafe_code, reason = "calls to the driver")]

use std::sync::{MutexGuard, PoisonError};

use super::{
    Result,
    device::Device,
    driver::{Address, LaunchAttribute},
    launch::Arguments,
    operations::{OperationWeights, Operations, PersistentKernel, Piece},
};
use crate::profile;

/// After this many operations an idle device is given what is queued.
const LOOK: usize = 32;
/// The smallest piece.
const LEAST_BYTES: usize = 1 << 18;

impl Device {
    fn operations(&self) -> MutexGuard<'_, Operations> {
        self.operations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues an operation of `kernel`, after all that was queued before; `weights` are those of a
    /// product.
    ///
    /// # Errors
    /// The device failed.
    ///
    /// # Panics
    /// If the operation has more bytes than the kernel takes.
    pub fn queue(
        &self,
        kernel: &'static PersistentKernel,
        name: &'static str,
        kind: i32,
        arguments: &Arguments,
        weights: Option<OperationWeights>,
    ) -> Result<()> {
        let mut queued = self.operations();
        let start = queued.words.len();
        queued.starts.push(start);
        queued.words.push(kind as u32 as u64);
        queued.words.extend_from_slice(arguments.words());
        // Copies are of multiples of 16 bytes.
        if queued.words.len() % 2 == 1 {
            queued.words.push(0);
        }
        let bytes = (queued.words.len() - start) * 8;
        assert!(bytes <= kernel.operation_bytes, "{name} has {bytes} bytes");
        queued.weights.extend(weights);
        queued.kernel = Some(kernel);
        queued.last_kind = Some(kind);
        let many = queued.starts.len().is_multiple_of(LOOK);
        drop(queued);
        if profile::times_on_device() {
            self.timed(name, || self.launch_operations())
        } else if many && self.is_idle() {
            self.launch_operations()
        } else {
            Ok(())
        }
    }

    /// The kind of the last queued operation, which may have been launched already.
    pub fn last_queued(&self) -> Option<i32> {
        self.operations().last_kind
    }

    /// Whether operations are queued that nothing has launched yet.
    pub fn has_queued(&self) -> bool {
        !self.operations().starts.is_empty()
    }

    /// Whether the device has done everything launched so far, or has failed.
    fn is_idle(&self) -> bool {
        const NOT_READY: i32 = 600;
        // SAFETY: the stream exists as long as the process.
        unsafe { (self.enter().query_stream)(self.stream) != NOT_READY }
    }

    /// Launches what is queued.
    ///
    /// # Errors
    /// The device failed.
    pub fn launch_operations(&self) -> Result<()> {
        let mut queued = self.operations();
        let Some(kernel) = queued.kernel.take() else { return Ok(()) };
        let (words, [first, second]) = queued.take();
        let count = std::mem::take(&mut queued.starts).len() as u32;
        let weights = std::mem::take(&mut queued.weights);
        let turn = queued.turn;
        queued.turn = (turn + 1) % queued.pieces.len();
        let bytes = words.len() * 8 + std::mem::size_of_val(&weights[..]);
        let grid = self.multiprocessors;
        let counter = self.counter(&mut queued)?;
        let piece = self.piece(&mut queued.pieces[turn], bytes)?;
        piece.pinned.fill(&[bytemuck::cast_slice(&words), bytemuck::cast_slice(&weights)]);
        let driver = self.enter();
        // SAFETY: the memory has room for the bytes, and is used again only after the event.
        unsafe {
            driver.check(
                (driver.upload)(piece.memory, piece.pinned.memory, bytes, self.stream),
                "copy to the device",
            )?;
            driver.check((driver.record_event)(piece.pinned.event, self.stream), "record an event")?;
        }
        let arguments = Arguments::new()
            .with(piece.memory)
            .with(first as i32)
            .with(second as i32)
            .with(piece.memory + words.len() as u64 * 8)
            .with(weights.len() as i32)
            .with(counter)
            .with(queued.counted);
        queued.counted = queued.counted.wrapping_add(grid * count);
        drop(queued);
        let size = ([grid, 1, 1], kernel.threads, kernel.shared);
        let launch = || self.launch_now(kernel.name, size, &LaunchAttribute::COOPERATIVE, &arguments);
        // Otherwise the operation counts.
        if !profile::times_on_device() {
            profile::launched(kernel.name);
        }
        launch()
    }

    fn counter(&self, queued: &mut Operations) -> Result<Address> {
        if queued.counter == 0 {
            let driver = self.enter();
            let counter = self.allocate(512)?;
            // SAFETY: memory of the device alone changes.
            driver.check(unsafe { (driver.fill)(counter, 0, 512, self.stream) }, "clear memory")?;
            queued.counter = counter;
        }
        Ok(queued.counter)
    }

    /// A piece of at least that many bytes that the device does not read any more.
    fn piece<'a>(&self, piece: &'a mut Option<Piece>, bytes: usize) -> Result<&'a mut Piece> {
        let driver = self.enter();
        // One that is too small stays allocated: sizes double, so all take twice the largest.
        let own = match piece.take().filter(|piece| piece.bytes >= bytes) {
            Some(own) => own,
            None => {
                let size = bytes.next_power_of_two().max(LEAST_BYTES);
                Piece { memory: self.allocate(size)?, bytes: size, pinned: self.new_pinned(size)? }
            }
        };
        // SAFETY: the event exists as long as the process; one that was never recorded is reached.
        let status = profile::waited(|| unsafe { (driver.wait_for_event)(own.pinned.event) });
        driver.check(status, "finish a kernel")?;
        Ok(piece.insert(own))
    }
}

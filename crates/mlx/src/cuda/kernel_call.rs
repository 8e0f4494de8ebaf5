//! A kernel with its parameters and sizes.

#![allow(unsafe_code, reason = "calls to the driver")]

use std::{ffi::c_void, mem::size_of, ptr};

use super::{
    Result,
    driver::{Driver, Handle, LaunchAttribute, LaunchConfig, NodeParameters},
};

/// Parameters of a kernel, in its order.
#[derive(PartialEq, Eq)]
pub struct Arguments {
    /// Aligned for every parameter.
    words: Vec<u64>,
    /// The index of each parameter's first word.
    starts: Vec<usize>,
}

impl Arguments {
    #[allow(clippy::new_without_default, reason = "no caller needs it")]
    pub fn new() -> Arguments {
        Arguments { words: Vec::with_capacity(64), starts: Vec::with_capacity(16) }
    }

    /// One more parameter: a number, an address, or a struct laid out as in C, which names its
    /// padding: all its bytes are compared.
    #[must_use]
    pub fn with<T: Copy + 'static>(mut self, value: T) -> Arguments {
        const { assert!(align_of::<T>() <= 8) };
        self.starts.push(self.words.len());
        let words = size_of::<T>().div_ceil(8);
        self.words.resize(self.words.len() + words, 0);
        let at = self.words.len() - words;
        // SAFETY: there is room for a `T` at an aligned place.
        unsafe { self.words.as_mut_ptr().add(at).cast::<T>().write(value) };
        self
    }

    fn pointers(&self) -> Vec<*const c_void> {
        self.starts.iter().map(|&at| self.words[at..].as_ptr().cast()).collect()
    }
}

/// A kernel with its parameters and sizes.
#[derive(PartialEq, Eq)]
pub(super) struct Launch {
    pub name: &'static str,
    pub function: Handle,
    pub grid: [u32; 3],
    pub threads: u32,
    pub shared: u32,
    pub arguments: Arguments,
}

impl Launch {
    /// Queues the kernel.
    pub(super) fn queue(&self, driver: &Driver, stream: Handle) -> Result<()> {
        let pointers = self.arguments.pointers();
        let config = LaunchConfig {
            grid: self.grid,
            block: [self.threads, 1, 1],
            shared: self.shared,
            stream,
            attributes: &LaunchAttribute::DEPENDENT,
            num_attributes: 1,
        };
        // SAFETY: the driver copies the parameters now, which are as many and as large as the
        // kernel's; the kernel touches memory of the device alone.
        let status = unsafe { (driver.launch)(&config, self.function, pointers.as_ptr(), ptr::null()) };
        driver.check(status, self.name)
    }

    /// Calls `f` with the kernel as a node of a graph, whose pointers are valid during the call.
    pub(super) fn as_node<T>(&self, f: impl FnOnce(&NodeParameters) -> T) -> T {
        let pointers = self.arguments.pointers();
        f(&NodeParameters {
            function: self.function,
            grid: self.grid,
            block: [self.threads, 1, 1],
            shared: self.shared,
            parameters: pointers.as_ptr(),
            extra: 0,
            kernel: 0,
            context: 0,
        })
    }
}

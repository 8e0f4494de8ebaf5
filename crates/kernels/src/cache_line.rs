//! 64 bytes that kernels load and store at once.

/// A cache line of 16 words; their type depends on the kernel.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct CacheLine(pub [u32; 16]);

impl CacheLine {
    pub(crate) const ZERO: CacheLine = CacheLine([0; 16]);
}

//! Operations that a persistent kernel executes, one after another in one launch. They are queued
//! on the host until something else has to follow them in the device's order.

use super::{download::Pinned, driver::Address};

/// A kernel that executes a list of operations.
///
/// It has seven parameters:
/// - the address of the operations, each of which begins with its kind and the sizes of the next
///   two in bytes;
/// - two: the sizes of the first two operations in bytes;
/// - the address of an [`OperationWeights`] for each product, and the number of products;
/// - the address of a counter, to which each block of threads adds 1 after each operation, and the
///   counter's value before the launch.
#[derive(Debug)]
pub struct PersistentKernel {
    pub name: &'static str,
    pub threads: u32,
    /// Bytes of shared memory of a block, of which there is one on each multiprocessor.
    pub shared: usize,
    /// Most bytes of an operation.
    pub operation_bytes: usize,
}

/// Where the weights of an operation are, in the kernel's layout.
pub type OperationWeights = [u64; 7];

/// Queued operations, and memory for them on the device.
#[derive(Default)]
pub(super) struct Operations {
    pub kernel: Option<&'static PersistentKernel>,
    pub words: Vec<u64>,
    /// The first word of each operation.
    pub starts: Vec<usize>,
    pub weights: Vec<OperationWeights>,
    /// The kind of the last queued operation, which may have been launched already.
    pub last_kind: Option<i32>,
    /// Pieces used in turns: the device may still read an earlier one.
    pub pieces: [Option<Piece>; 4],
    pub turn: usize,
    pub counter: Address,
    /// The counter's value once every launched kernel has ended.
    pub counted: u32,
}

/// Memory for the operations of one launch, on the device and on its way there.
pub(super) struct Piece {
    pub memory: Address,
    pub bytes: usize,
    pub pinned: Pinned,
}

impl Operations {
    /// The words of all operations, each with the bytes of the next two, and those of the first
    /// two. 0: there is none.
    pub(super) fn take(&mut self) -> (Vec<u64>, [usize; 2]) {
        let mut words = std::mem::take(&mut self.words);
        let ends = self.starts.iter().skip(1).copied().chain([words.len()]);
        let bytes: Vec<usize> = self.starts.iter().zip(ends).map(|(start, end)| (end - start) * 8).collect();
        let of = |i: usize| bytes.get(i).copied().unwrap_or(0);
        for (i, &start) in self.starts.iter().enumerate() {
            words[start] |= (of(i + 1) as u64) << 32 | (of(i + 2) as u64) << 48;
        }
        (words, [of(0), of(1)])
    }
}

//! How to run a model; fixed for the life of an engine.

use std::{num::NonZeroUsize, path::PathBuf, sync::Arc};

pub use mlx::Precision;

use crate::speculate::table::Table;

#[derive(Clone, Debug)]
pub struct Options {
    /// `None` takes the GPU if the MLX library has one, else the CPU.
    pub device: Option<Device>,
    /// Type of the activations; `None` means float32 on the CPU, the checkpoint's type on a GPU.
    pub dtype: Option<Dtype>,
    /// What matrix products on the CPU round their factors to; on a GPU MLX decides.
    pub precision: Precision,
    /// Threads that compute on the CPU; `None` takes one for each physical core. The first engine of a process decides.
    pub threads: Option<NonZeroUsize>,
    /// Most prompt tokens computed in one step.
    pub prefill_chunk: usize,
    /// Most requests stepped together; the others wait their turn.
    pub max_batch: usize,
    /// Most requests that wait for their turn; more are refused.
    pub queue_limit: usize,
    /// Lowers the model's context length.
    pub max_context: Option<usize>,
    /// Most bytes of past sequences' state kept for those that begin alike; 0 keeps none.
    pub prefix_cache_bytes: usize,
    /// Also keeps that state on a disk, where it outlives the engine; needs a prefix cache.
    pub disk_cache: Option<DiskCache>,
    /// Tokens of a long prompt after which state that cannot be cut out of later state is kept; 0 keeps none on the way.
    pub checkpoint_every: usize,
    /// Most bytes for weights, steps and state together; what is kept of past sequences makes room for running ones.
    pub memory_limit: Option<usize>,
    /// What happens to a request that would fit under the memory limit, but not beside those that run.
    pub when_full: WhenFull,
    /// What tends to follow in texts like those that will be asked for: where drafts come from when a sequence itself
    /// holds no example. Made with the model's tokenizer.
    pub ngram_table: Option<Arc<Table>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It waits, and those that come later wait behind it.
    #[default]
    Wait,
    /// It fails with [`RequestError::MemoryFull`](crate::RequestError::MemoryFull).
    Refuse,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            device: None,
            dtype: None,
            precision: Precision::Rounded,
            threads: None,
            prefill_chunk: 512,
            max_batch: 16,
            queue_limit: 256,
            max_context: None,
            prefix_cache_bytes: 1 << 30,
            disk_cache: None,
            checkpoint_every: 2048,
            memory_limit: None,
            when_full: WhenFull::Wait,
            ngram_table: None,
        }
    }
}

/// Where past sequences' state is kept on a disk. Several engines may share a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCache {
    pub folder: PathBuf,
    /// Most bytes in the folder, whoever wrote them.
    pub bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    Cpu,
    Gpu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    Float32,
    Float16,
    Bfloat16,
}

/// Load progress, for a bar on stderr.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub loaded_bytes: usize,
    pub total_bytes: usize,
}

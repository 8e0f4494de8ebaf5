//! What callers hand to the engine and get back: plain data. Imports nothing else of this crate.

mod bytes;
mod cache;
mod checkpoint;
mod constraint;
pub mod error;
mod event;
mod info;
mod memory;
mod memory_account;
mod metrics;
pub mod ngram_table;
mod options;
mod request;
mod request_error;
pub mod sampling_range;
mod state_size;

pub use self::{
    bytes::megabytes,
    cache::{CacheReport, CacheSource, CacheStats, Miss, MissReason},
    checkpoint::Checkpoint,
    constraint::{Constraint, ConstraintState, TokenSet},
    error::LoadError,
    event::{Drafted, Event, FinishReason, Lossy, TokenLogprobs, Usage},
    info::{ModelInfo, WeightReads, WeightSummary},
    memory::Memory,
    memory_account::{MemoryAccount, MemoryClass, Reservation},
    metrics::{Counter, Distribution, Drafts, Gauge, Histogram, Metrics},
    options::{
        CacheBits, Device, DiskCache, Dtype, MAX_DEPTH, Options, Precision, Progress, Speculate, WhenFull,
    },
    request::{Pooling, Priority, Request, Sampling},
    request_error::RequestError,
    sampling_range::SamplingRange,
    state_size::StateSize,
};

//! Data that callers pass to the engine and get back. Imports nothing else of this crate.

mod bytes;
mod cache;
mod cache_salt;
mod checkpoint;
mod constraint;
pub(crate) mod error;
mod event;
mod image;
mod info;
mod memory;
mod memory_account;
mod metrics;
pub mod ngram_table;
mod options;
mod request;
mod request_error;
pub(crate) mod sampling;
mod state_size;
mod step_gate;

pub(crate) use self::{bytes::megabytes, memory_account::Reservation, step_gate::GateMember};
pub use self::{
    cache::{CacheReport, CacheSource, CacheStats, Miss, MissReason},
    cache_salt::CacheSalt,
    checkpoint::Checkpoint,
    constraint::{Constraint, ConstraintState, TokenSet},
    error::LoadError,
    event::{Drafted, Event, FinishReason, Lossy, TokenLogprobs, Usage},
    image::{Image, ImageTensor, Vision},
    info::{Gpu, ModelInfo, WeightReads, WeightSummary},
    memory::Memory,
    memory_account::{CachePressure, MemoryAccount, MemoryClass},
    metrics::{Counter, Distribution, Drafts, Gauge, Histogram, Metrics},
    options::{
        CacheBits, Device, DiskCache, Dtype, MAX_DEPTH, Options, Precision, Progress, Speculate, WhenFull,
    },
    request::{Pooling, Priority, Request},
    request_error::RequestError,
    sampling::{Sampling, SamplingRange},
    state_size::StateSize,
    step_gate::StepGate,
};

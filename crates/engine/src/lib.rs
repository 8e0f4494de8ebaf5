//! Tokens in, tokens out: one thread owns the model and steps many requests together. No HTTP, no text, no
//! async.

// Elsewhere a panic in a step would end the process instead of failing the requests in it.
#[cfg(not(panic = "unwind"))]
compile_error!("build with panic = \"unwind\": a panic in a step must fail its requests, never the process");

mod account;
mod batch;
mod begin;
mod cache;
mod checkpoint;
mod constrain;
mod error;
mod fault;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod generation_config;
mod handle;
mod heartbeat;
mod load_room;
mod logprobs;
mod memory;
mod metrics;
mod models;
mod options;
mod places;
mod prefix;
pub mod quantize;
mod queue;
mod request;
mod room;
mod row;
mod run;
mod sample;
mod sampling_range;
mod schedule;
pub mod scripted;
mod sequence;
mod speculate;
mod speculation;
mod start;
mod step;
#[cfg(test)]
mod tests;
mod weights;

pub use account::{MemoryAccount, MemoryClass};
pub use checkpoint::Checkpoint;
pub use constrain::{Constraint, Next, TokenSet};
pub use error::LoadError;
pub use handle::{Engine, Ticket};
pub use heartbeat::Health;
pub use memory::Memory;
pub use metrics::{Counter, Distribution, Drafts, Gauge, Histogram, Metrics};
/// Ends the process while an engine may still compute.
pub use mlx::exit_now;
/// Counters, memory and speed of the process, for whoever measures an engine.
pub use mlx::{peak_memory, profile, reset_peak_memory};
pub use models::families;
pub use nn::{read_bandwidth, simd_level, threads};
pub use options::{CacheBits, Device, DiskCache, Dtype, Options, Precision, Progress, Speculate, WhenFull};
pub use places::Place;
pub use prefix::{StateSize, disk_cache};
pub use request::{
    CacheReport, CacheSource, CacheStats, Drafted, Event, FinishReason, Lossy, Miss, MissReason, ModelInfo,
    Priority, Request, RequestError, Sampling, TokenLogprobs, Usage, WeightReads, WeightSummary,
};
pub use sampling_range::SamplingRange;
/// Tables of what tends to follow, for drafts.
pub use speculate::drafters::ngram_table as ngrams;
pub use speculate::{Script, StepTimes};
pub use start::{start, start_scripted};

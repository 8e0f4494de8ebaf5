//! Tokens in, tokens out: one thread owns the model and steps many requests together. No HTTP, no
//! text, no async.
//!
//! ```
//! use lanner_engine::{Checkpoint, Event, Options, Request, start};
//!
//! let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/merlin");
//! let engine = start(Checkpoint::Folder(folder.into()), Options::default(), |_| {})?;
//! let (sender, events) = std::sync::mpsc::channel();
//! let _handle = engine.submit(Request::new(vec![1, 20, 300], 2), move |event| {
//!     let _ = sender.send(event);
//! })?;
//! let last = events.iter().last();
//! assert!(matches!(last, Some(Event::Finished { .. })), "{last:?}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(missing_docs)]

// Elsewhere a panic in a step would end the process instead of failing the requests in it.
#[cfg(not(panic = "unwind"))]
compile_error!("build with panic = \"unwind\": a panic in a step must fail its requests, never the process");

mod api;
mod batch;
mod cache;
mod checkpoint_files;
mod engine_loop;
mod footprint;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod generation_config;
mod guard;
mod load;
mod masks;
mod memory_estimate;
mod models;
mod prefix;
pub mod quantize;
mod sample;
mod speculate;
#[cfg(test)]
mod tests;
mod weights;

use api::error;
/// N-gram tables, for drafts.
pub use api::ngram_table as ngrams;
pub use api::{
    CacheBits, CachePressure, CacheReport, CacheSalt, CacheSource, CacheStats, Checkpoint, Constraint,
    ConstraintState, Counter, Device, DiskCache, Distribution, Drafted, Drafts, Dtype, Event, FinishReason,
    Gauge, Gpu, Histogram, Image, ImageTensor, LoadError, Lossy, MAX_DEPTH, Memory, MemoryAccount,
    MemoryClass, Metrics, Miss, MissReason, ModelInfo, Options, Pooling, Precision, Priority, Progress,
    Request, RequestError, Sampling, SamplingRange, Speculate, StateSize, StepGate, TokenLogprobs, TokenSet,
    Usage, Vision, WeightReads, WeightSummary, WhenFull,
};
pub use engine_loop::{
    admission::Permit,
    handle::{Engine, RequestHandle},
    heartbeat::Health,
    scripted,
    start::{start, start_scripted},
};
pub use footprint::{Footprint, Headers, TensorHeader};
/// Whether a library of NVIDIA's is there, for `lanner doctor`.
pub use mlx::cuda::has_library;
/// Ends the process while an engine may still compute.
pub use mlx::exit_now;
/// Counters, memory and speed of the process, for measurements.
pub use mlx::{peak_memory, profile, reset_peak_memory};
pub use models::families;
/// How an NVIDIA GPU is opened; for the start of a program.
pub use nn::{KernelOptions, set_kernel_options};
pub use nn::{read_bandwidth, simd_level, threads};
pub use prefix::disk_cache;
pub use speculate::{Script, StepTimes};

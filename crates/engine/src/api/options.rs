//! How to run a model; fixed for the life of an engine.

use std::{fmt, num::NonZeroUsize, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

pub use nn::Precision;
use serde::{Deserialize, Serialize};

use super::{checkpoint::Checkpoint, metrics::Metrics, ngram_table::NgramTable, step_gate::StepGate};

/// Maximum tokens of a draft.
pub const MAX_DEPTH: usize = 32;

/// How an engine is set up; fixed for its life.
#[derive(Clone, Debug)]
pub struct Options {
    /// `None` takes the GPU if the MLX library has one, else the CPU.
    pub device: Option<Device>,
    /// Type of the activations; `None` means float32 on the CPU, the checkpoint's type on a GPU.
    pub dtype: Option<Dtype>,
    /// Type to which matrix products on the CPU round their factors, except routers, which round
    /// nothing; on a GPU MLX decides.
    pub precision: Precision,
    /// Type of stored keys and values; `None` means the type of the activations. On the CPU it may
    /// be bfloat16 while those are float32, which halves the memory.
    pub kv_cache_dtype: Option<Dtype>,
    /// Threads that compute on the CPU; `None` takes one for each physical core. The first engine
    /// of a process decides.
    pub threads: Option<NonZeroUsize>,
    /// Maximum prompt tokens computed in one step.
    pub prefill_chunk: usize,
    /// Maximum requests stepped together; the others wait.
    pub max_batch: usize,
    /// Maximum waiting requests; more are refused.
    pub queue_limit: usize,
    /// Lowers the model's context length.
    pub max_context: Option<usize>,
    /// Maximum bytes of the prefix cache in memory; 0 turns it off.
    pub prefix_cache_bytes: usize,
    /// Also keeps the prefix cache's state on a disk, where it outlives the engine; needs a prefix
    /// cache in memory.
    pub disk_cache: Option<DiskCache>,
    /// Tokens between state snapshots of a long prompt, for models with recurrences, convolutions
    /// or windows; 0 takes none.
    pub snapshot_interval: usize,
    /// Maximum bytes for weights, steps and state together; the prefix cache shrinks for running
    /// sequences.
    pub memory_limit: Option<usize>,
    /// Maximum bytes of freed buffers that MLX keeps on a GPU for reuse; `None`: MLX's own limit.
    /// The CPU keeps none. The engine that was loaded last decides.
    pub buffer_cache_bytes: Option<usize>,
    /// The tokenizer's end-of-sequence tokens, for a model whose config.json and
    /// generation_config.json name none.
    pub eos_ids: Vec<u32>,
    /// Treatment of a request that would fit under the memory limit, but not beside those that
    /// run.
    pub when_full: WhenFull,
    /// Drafts for when the sequence itself has no match; built with the model's tokenizer.
    pub ngram_table: Option<Arc<NgramTable>>,
    /// A smaller model to draft with. The caller makes sure that it has the same tokens.
    pub draft_model: Option<Checkpoint>,
    /// Speculation of requests that do not set it.
    pub speculate: Speculate,
    /// Whether a step is queued before the one before it is read; `None`: where the device computes
    /// while steps are built, which is where it gains time. Never changes an answer.
    pub queue_ahead: Option<bool>,
    /// A step counts as stuck after this time, or after ten times the longest step so far if that
    /// is longer.
    pub stuck_after: Duration,
    /// Metrics of the engine; engines with the same [`Metrics`] count together and share the memory
    /// limit and the bytes of the prefix cache.
    pub metrics: Arc<Metrics>,
    /// Engines loaded with the same gate take turns, by the priorities of their requests.
    pub gate: Arc<StepGate>,
}

/// Speculative decoding: it changes the speed of an answer, never the answer, except
/// [`Lossy`](Speculate::Lossy).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Speculate {
    /// No drafts.
    Off,
    /// Measurements choose the drafter and the depth; on a GPU only for a request that runs alone.
    #[default]
    Auto,
    /// Always this drafter, whenever it has a draft.
    Fixed {
        /// Name of the drafter.
        drafter: String,
        /// Maximum tokens of a draft; `None`: the drafter's default.
        depth: Option<usize>,
    },
    /// After the prompt the model skips its least important layers, and nothing verifies the
    /// output. Never chosen by measurements; [`Usage`](crate::Usage) reports it.
    Lossy,
}

impl fmt::Display for Speculate {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Speculate::Off => f.write_str("off"),
            Speculate::Auto => f.write_str("auto"),
            Speculate::Fixed { drafter, depth: None } => f.write_str(drafter),
            Speculate::Fixed { drafter, depth: Some(depth) } => write!(f, "{drafter}:{depth}"),
            Speculate::Lossy => f.write_str("self:lossy"),
        }
    }
}

impl FromStr for Speculate {
    type Err = String;

    /// `auto`, `off`, `NAME`, `NAME:DEPTH` or `self:lossy`.
    fn from_str(text: &str) -> Result<Speculate, String> {
        let (drafter, depth) = match text.split_once(':') {
            None => (text, None),
            Some(("self", "lossy")) => return Ok(Speculate::Lossy),
            Some((_, "lossy")) => return Err(format!("`{text}`: only self has a lossy form")),
            Some((drafter, depth)) => {
                let depth = depth.parse().ok().filter(|depth| *depth <= MAX_DEPTH);
                let wrong = || format!("`{text}`: a draft has 0 to {MAX_DEPTH} tokens");
                (drafter, Some(depth.ok_or_else(wrong)?))
            }
        };
        match (drafter, depth) {
            ("off", None) => Ok(Speculate::Off),
            ("auto", None) => Ok(Speculate::Auto),
            ("" | "off" | "auto", _) => Err(format!("`{text}` is not auto, off, NAME or NAME:DEPTH")),
            _ => Ok(Speculate::Fixed { drafter: drafter.into(), depth }),
        }
    }
}

/// Treatment of a request whose memory does not fit now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It waits, and later requests wait after it.
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
            kv_cache_dtype: None,
            threads: None,
            prefill_chunk: 512,
            max_batch: 64,
            queue_limit: 256,
            max_context: None,
            prefix_cache_bytes: 1 << 30,
            disk_cache: None,
            snapshot_interval: 2048,
            memory_limit: None,
            buffer_cache_bytes: None,
            eos_ids: vec![],
            when_full: WhenFull::Wait,
            ngram_table: None,
            draft_model: None,
            speculate: Speculate::Auto,
            queue_ahead: None,
            stuck_after: Duration::from_secs(60),
            metrics: Arc::default(),
            gate: Arc::default(),
        }
    }
}

/// Where past sequences' state is kept on a disk. Several engines may share a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCache {
    /// The folder, which is created if it does not exist.
    pub folder: PathBuf,
    /// Maximum bytes in the folder, written by any engine.
    pub bytes: usize,
    /// Compresses keys and values on the disk. Lossy: an answer that resumes from them may differ,
    /// and its usage says so. `None` stores them exactly.
    pub bits: Option<CacheBits>,
}

/// Bits per key or value on the disk, besides 1 for the minimum and scale of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "u8", into = "u8")]
pub enum CacheBits {
    /// 4 bits.
    Four,
    /// 8 bits.
    Eight,
}

impl From<CacheBits> for u8 {
    fn from(bits: CacheBits) -> u8 {
        match bits {
            CacheBits::Four => 4,
            CacheBits::Eight => 8,
        }
    }
}

impl TryFrom<u8> for CacheBits {
    type Error = String;

    fn try_from(bits: u8) -> Result<CacheBits, String> {
        match bits {
            4 => Ok(CacheBits::Four),
            8 => Ok(CacheBits::Eight),
            _ => Err(format!("{bits} bits are not 8 or 4")),
        }
    }
}

impl FromStr for CacheBits {
    type Err = String;

    fn from_str(text: &str) -> Result<CacheBits, String> {
        text.parse::<u8>().map_err(|_| format!("`{text}` is not 8 or 4")).and_then(CacheBits::try_from)
    }
}

/// Device that computes a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The processor.
    Cpu,
    /// The graphics processor.
    Gpu,
}

/// Type of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// 32 bits.
    Float32,
    /// 16 bits, 5 of them exponent.
    Float16,
    /// 16 bits, 8 of them exponent.
    Bfloat16,
}

/// Load progress, for a bar on stderr.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Bytes that are done.
    pub loaded_bytes: usize,
    /// Bytes in all.
    pub total_bytes: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speculate_parses_what_it_displays() {
        let fixed = |drafter: &str, depth| Speculate::Fixed { drafter: drafter.into(), depth };
        let check = |text: &str, expected: Speculate| {
            assert_eq!((text.parse(), expected.to_string()), (Ok(expected.clone()), text.to_string()));
        };
        check("off", Speculate::Off);
        check("auto", Speculate::Auto);
        check("ngram", fixed("ngram", None));
        check("mtp:3", fixed("mtp", Some(3)));
        check("mtp:0", fixed("mtp", Some(0)));
        check("self:lossy", Speculate::Lossy);
        for wrong in
            ["ngram:lossy", "self:lossy:4", "", ":3", "off:2", "auto:1", "mtp:", "mtp:x", "mtp:-1", "mtp:33"]
        {
            assert!(wrong.parse::<Speculate>().is_err(), "{wrong}");
        }
    }
}

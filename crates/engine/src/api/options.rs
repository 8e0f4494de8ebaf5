//! How to run a model; fixed for the life of an engine.

use std::{fmt, num::NonZeroUsize, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

pub use nn::Precision;
use serde::{Deserialize, Serialize};

use super::{checkpoint::Checkpoint, metrics::Metrics, ngram_table::NgramTable};

/// Most tokens of a draft.
pub(crate) const MAX_DEPTH: usize = 32;

/// How an engine is set up; fixed for its life.
#[derive(Clone, Debug)]
pub struct Options {
    /// `None` takes the GPU if the MLX library has one, else the CPU.
    pub device: Option<Device>,
    /// Type of the activations; `None` means float32 on the CPU, the checkpoint's type on a GPU.
    pub dtype: Option<Dtype>,
    /// Type to which matrix products on the CPU round their factors, but for routers, which round
    /// nothing; on a GPU MLX decides.
    pub precision: Precision,
    /// Type of stored keys and values; `None` means the type of the activations. On the CPU it may
    /// be bfloat16 while those are float32, which halves the memory.
    pub kv_cache_dtype: Option<Dtype>,
    /// Threads that compute on the CPU; `None` takes one for each physical core. The first engine
    /// of a process decides.
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
    /// Tokens of a long prompt after which state that cannot be cut out of later state is kept; 0
    /// keeps none on the way.
    pub snapshot_interval: usize,
    /// Most bytes for weights, steps and state together; what is kept of past sequences makes room
    /// for running ones.
    pub memory_limit: Option<usize>,
    /// The tokenizer's end-of-sequence tokens, for a model whose config.json and
    /// generation_config.json name none.
    pub eos_ids: Vec<u32>,
    /// Treatment of a request that would fit under the memory limit, but not beside those that
    /// run.
    pub when_full: WhenFull,
    /// Likely continuations in texts like those that will be asked for: where drafts come from when
    /// a sequence itself holds no example. Made with the model's tokenizer.
    pub ngram_table: Option<Arc<NgramTable>>,
    /// A smaller model with the same tokens, to draft with. Whether they are the same is for the
    /// caller to know.
    pub draft_model: Option<Checkpoint>,
    /// Drafts for requests that do not say themselves.
    pub speculate: Speculate,
    /// No step counts as stuck earlier; one that takes ten times as long as any before it does.
    pub stuck_after: Duration,
    /// Where the engine counts what it does; engines loaded with the same options count together,
    /// and share the memory limit.
    pub metrics: Arc<Metrics>,
}

/// Whether tokens are drafted before they are computed, several at a time: that changes how fast an
/// answer comes, and nothing else. [`Lossy`](Speculate::Lossy) alone changes the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Speculate {
    /// No drafts.
    Off,
    /// By whom and how far measurements decide, for a request that is alone.
    #[default]
    Auto,
    /// Always this drafter, if it has an idea.
    Fixed {
        /// Name of the drafter.
        drafter: String,
        /// Most tokens of a draft; `None`: what is usual for it.
        depth: Option<usize>,
    },
    /// After the prompt the model skips its least important layers, and nothing verifies the
    /// output. Never chosen by measurements; [`Usage`](crate::Usage) tells of it.
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
            eos_ids: vec![],
            when_full: WhenFull::Wait,
            ngram_table: None,
            draft_model: None,
            speculate: Speculate::Auto,
            stuck_after: Duration::from_secs(60),
            metrics: Arc::default(),
        }
    }
}

/// Where past sequences' state is kept on a disk. Several engines may share a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCache {
    /// The folder, which is created if it does not exist.
    pub folder: PathBuf,
    /// Most bytes in the folder, written by any engine.
    pub bytes: usize,
    /// Compresses keys and values there. That is lossy: a request which goes on from them says so,
    /// and may get another answer than without. `None` keeps their bits.
    pub bits: Option<CacheBits>,
}

/// Bits of each key and value on the disk, beside 1 for what a group of them shares.
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

/// Where a model is computed.
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
    fn speculation_as_written() {
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

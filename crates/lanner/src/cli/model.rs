//! Arguments on the model, how it runs, and its caches; sections `[model]` and `[cache]` of the
//! config file.

use std::{
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
};

use clap::{Args, ValueEnum};
use serde::Deserialize;

use super::values::{Bytes, SpeculateArg};

/// Which model to load, and how to run it; `[model]` in the config file.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// A folder with config.json, tokenizer.json and *.safetensors; a safetensors file in such a
    /// folder; ORG/NAME[@REVISION][:PART] of a downloaded model; or a short name. A path that
    /// exists takes precedence [default: the built-in model].
    #[arg(long, short, env = "LANNER_MODEL", value_name = "MODEL")]
    #[serde(rename = "path")]
    pub model: Option<String>,
    /// Device to compute on [default: the GPU if there is one].
    #[arg(long, env = "LANNER_DEVICE")]
    pub device: Option<Device>,
    /// Type of the activations [default: float32 on the CPU, the checkpoint's on a GPU].
    #[arg(hide_short_help = true, long, env = "LANNER_DTYPE")]
    pub dtype: Option<Dtype>,
    /// Rounding of activations in matrix products on the CPU. `rounded`: to 11-bit integers with a
    /// scale per group if the weights are quantised, to bfloat16 if they are bfloat16. `int8`: to
    /// 8-bit integers, less accurate, and faster where the processor multiplies bytes (AVX-512 with
    /// VNNI, AMX). `float32`: none. Weights are never rounded [default: rounded].
    #[arg(hide_short_help = true, long, env = "LANNER_PRECISION")]
    pub precision: Option<Precision>,
    /// Type of stored keys and values; with float32 activations on the CPU, bfloat16 halves their
    /// memory and rounds them [default: that of the activations].
    #[arg(hide_short_help = true, long, value_name = "DTYPE")]
    pub kv_cache_dtype: Option<Dtype>,
    /// Compute threads on the CPU [default: one per physical core].
    #[arg(hide_short_help = true, long, env = "LANNER_THREADS", value_name = "THREADS")]
    pub threads: Option<NonZeroUsize>,
    /// Most prompt tokens computed in one step [default: by --memory; 512].
    #[arg(hide_short_help = true, long, value_name = "TOKENS")]
    pub prefill_chunk: Option<usize>,
    /// Most sequences in a batch [default: by --memory; 64].
    #[arg(hide_short_help = true, long, value_name = "REQUESTS")]
    pub max_batch: Option<usize>,
    /// Most requests in the queue; the server rejects more with 429 [default: 256].
    #[arg(hide_short_help = true, long, value_name = "REQUESTS")]
    pub queue_limit: Option<usize>,
    /// Lower the model's context length.
    #[arg(long, value_name = "TOKENS")]
    pub max_context: Option<usize>,
    /// Most memory for weights, steps and state, in bytes or as 500M or 4G; the prefix cache is
    /// evicted before a request is deferred [default: by --memory; off].
    #[arg(long, env = "LANNER_MEMORY_LIMIT", value_name = "BYTES|off")]
    pub memory_limit: Option<Bytes>,
    /// What happens to a request that fits under the memory limit, but not now [default: wait].
    #[arg(hide_short_help = true, long, value_name = "POLICY")]
    pub when_full: Option<WhenFull>,
    /// Draft tokens from this n-gram table where the request's own text has no match; lanner ngram
    /// build makes one [default: none].
    #[arg(hide_short_help = true, long, env = "LANNER_NGRAM_TABLE", value_name = "FILE")]
    pub ngram_table: Option<PathBuf>,
    /// A smaller model with the same tokenizer, for the drafter draft_model; takes what --model
    /// takes. A block drafter trained for the model (DFlash) becomes the drafter block
    /// [default: none].
    #[arg(hide_short_help = true, long, env = "LANNER_DRAFT_MODEL", value_name = "MODEL")]
    pub draft_model: Option<String>,
    /// Most tokens of an image; larger images are made smaller before the model sees them
    /// [default: 4096].
    #[arg(hide_short_help = true, long, env = "LANNER_MAX_IMAGE_TOKENS", value_name = "TOKENS")]
    pub max_image_tokens: Option<NonZeroU32>,
    /// A flag of some commands only: see [`SpeculateArgs`].
    #[arg(skip)]
    pub speculate: Option<SpeculateArg>,
    /// A flag of some commands only: see [`MemoryArgs`].
    #[arg(skip)]
    pub memory: Option<MemoryMode>,
}

/// A flag of the commands that answer, in the config file's section `[model]`.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Model")]
pub struct MemoryArgs {
    /// A preset of everything that takes memory: `full` for a machine of its own, `eco` beside
    /// other programs; docs/memory.md has the values. Flags of single values win over it. Caches
    /// shrink while the system is short of memory [default: balanced].
    #[arg(long, env = "LANNER_MEMORY", value_name = "MODE")]
    pub memory: Option<MemoryMode>,
}

/// A flag of the commands that answer, in the config file's section `[model]`; `lanner bench` has
/// its own.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Model")]
pub struct SpeculateArgs {
    /// Speculative decoding. Drafts are verified and never change an answer. `auto` chooses by
    /// measurement, on GPUs only for a request that runs alone; NAME (ngram, mtp, draft_model,
    /// block, self) fixes the drafter, and :DEPTH the most tokens of a draft. self:lossy verifies
    /// nothing and does change answers: the model skips some layers [default: auto].
    #[arg(
        hide_short_help = true,
        long,
        env = "LANNER_SPECULATE",
        value_name = "auto|off|NAME[:DEPTH]|self:lossy"
    )]
    pub speculate: Option<SpeculateArg>,
}

/// Reuse of the state of earlier requests with the same prefix; `[cache]` in the config file.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[command(next_help_heading = "Cache")]
pub struct CacheArgs {
    /// Most memory of the prefix cache, in bytes or as 500M or 4G; `off` disables it
    /// [default: by --memory; an eighth of the machine's memory, at most 8G].
    #[arg(long, env = "LANNER_PREFIX_CACHE", value_name = "BYTES|off")]
    pub prefix_cache: Option<Bytes>,
    /// Most disk space of the prefix cache, which then outlives the process; `off` disables it
    /// [default: by --memory; 3G for serve if there is a prefix cache, off for chat unless there is
    /// a --cache-dir].
    #[arg(long, env = "LANNER_DISK_CACHE", value_name = "BYTES|off")]
    pub disk_cache: Option<Bytes>,
    /// Compress keys and values on the disk to this many bits, plus a scale and a bias per group.
    /// This is lossy: a request that reuses them, or state computed from them, says
    /// `compressed_cache` in `usage.lanner.lossy`, and its answer may differ
    /// [default: no compression].
    #[arg(hide_short_help = true, long, env = "LANNER_DISK_CACHE_BITS", value_name = "8|4")]
    pub disk_cache_bits: Option<engine::CacheBits>,
    /// Folder of the disk cache; several servers may share it and its space. It holds users' texts
    /// as token ids [default: lanner/state in $XDG_CACHE_HOME or ~/.cache].
    #[arg(hide_short_help = true, long, env = "LANNER_CACHE_DIR", value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
    /// Lines at the head of system messages that change with every request, such as the time or
    /// Claude Code's billing line: `keep` leaves them and names them where they cost a cache hit;
    /// `normalize` changes the prompt so that they cost none [default: keep].
    #[arg(hide_short_help = true, long, env = "LANNER_VOLATILE_PREFIX", value_name = "RULE")]
    pub volatile_prefix: Option<VolatilePrefix>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum VolatilePrefix {
    #[default]
    Keep,
    Normalize,
}

#[derive(Clone, Copy, Debug, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum WhenFull {
    /// It waits until memory is free.
    Wait,
    /// It is rejected with 503.
    Refuse,
}

/// How much of the machine's memory to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum MemoryMode {
    /// Larger caches and chunks; caches shrink only when the system is about to swap.
    Full,
    /// An eighth of the memory for the prefix cache, which shrinks when memory is short.
    #[default]
    Balanced,
    /// At most half of the memory for everything, small caches and chunks.
    Eco,
}

#[derive(Clone, Copy, Debug, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    Cpu,
    Gpu,
}

#[derive(Clone, Copy, Debug, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    Float32,
    Rounded,
    Int8,
}

#[derive(Clone, Copy, Debug, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    Float32,
    Float16,
    Bfloat16,
}

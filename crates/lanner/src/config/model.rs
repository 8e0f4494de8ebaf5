//! How to load and run a model, and how much state to cache.

use std::{num::NonZeroU32, path::PathBuf};

use chat::{RenderMemory, tools::Dialect};

use super::{dirs::user_folder, error::ConfigError, thinking::ThinkingConfig};
use crate::{
    cli::{self, CacheArgs, MemoryMode, ModelArgs, VolatilePrefix},
    hub::HubConfig,
    memory::{self, Preset},
};

/// Renderings of chat templates take at most this part of a memory limit, as a divisor; without
/// one, of the machine's memory.
const RENDER_DIVISOR: usize = 8;
/// Prompts that a server renders at a time.
const RENDERINGS: usize = 8;
/// Tokens of an image of 4.2 megapixels for Qwen's models.
const MAX_IMAGE_TOKENS: u32 = 4096;

#[derive(Clone)]
pub struct ModelConfig {
    /// Name as the user wrote it; `None`: the built-in model.
    pub model: Option<String>,
    pub options: engine::Options,
    pub hub: HubConfig,
    pub volatile_prefix: VolatilePrefix,
    pub thinking: ThinkingConfig,
    /// Shared by the chat templates of all models.
    pub render_memory: RenderMemory,
    /// `None`: what the model's template and tokenizer show.
    pub tool_dialect: Option<Dialect>,
    /// An n-gram table to draft from; [`crate::drafting`] opens it.
    pub ngram_table: Option<PathBuf>,
    /// A smaller model to draft with; [`crate::drafting`] finds it.
    pub draft_model: Option<String>,
    /// Most tokens of an image; larger images are made smaller.
    pub max_image_tokens: u32,
    pub memory_mode: MemoryMode,
    /// Whether the user chose it.
    pub is_memory_mode_named: bool,
}

/// Sizes of the prefix cache in memory and on disk.
pub struct Caches {
    memory_bytes: usize,
    disk: Option<engine::DiskCache>,
}

impl ModelConfig {
    /// For commands that gain nothing from a prefix cache: they send one request, or measure.
    pub fn without_cache(args: ModelArgs, file: ModelArgs, hub: HubConfig) -> ModelConfig {
        let (defaults, mode) = (engine::Options::default(), memory_mode(&args, &file));
        let preset = mode.preset();
        let is_memory_mode_named = args.memory.or(file.memory).is_some();
        let options = engine::Options {
            device: args.device.or(file.device).map(device),
            dtype: args.dtype.or(file.dtype).map(dtype),
            precision: args.precision.or(file.precision).map_or(defaults.precision, precision),
            kv_cache_dtype: args.kv_cache_dtype.or(file.kv_cache_dtype).map(dtype),
            threads: args.threads.or(file.threads),
            prefill_chunk: args.prefill_chunk.or(file.prefill_chunk).unwrap_or(preset.prefill_chunk),
            max_batch: args.max_batch.or(file.max_batch).unwrap_or(preset.max_batch),
            queue_limit: args.queue_limit.or(file.queue_limit).unwrap_or(defaults.queue_limit),
            max_context: args.max_context.or(file.max_context),
            prefix_cache_bytes: 0,
            disk_cache: None,
            memory_limit: args
                .memory_limit
                .or(file.memory_limit)
                .map_or_else(
                    || memory::machine_bytes().zip(preset.memory_limit).map(|(a, b)| a / b),
                    |bytes| Some(bytes.0),
                )
                .filter(|bytes| *bytes > 0),
            buffer_cache_bytes: preset.buffer_cache,
            when_full: args.when_full.or(file.when_full).map_or(defaults.when_full, when_full),
            speculate: args.speculate.or(file.speculate).map_or(defaults.speculate, |arg| arg.0),
            // The tokenizer's end-of-sequence tokens, the n-gram table and the draft model are set
            // when the model is opened.
            ..defaults
        };
        ModelConfig {
            model: args.model.or(file.model),
            render_memory: render_memory(options.memory_limit),
            options,
            hub,
            volatile_prefix: VolatilePrefix::default(),
            thinking: ThinkingConfig::default(),
            tool_dialect: None,
            ngram_table: args.ngram_table.or(file.ngram_table),
            draft_model: args.draft_model.or(file.draft_model),
            max_image_tokens: args
                .max_image_tokens
                .or(file.max_image_tokens)
                .map_or(MAX_IMAGE_TOKENS, NonZeroU32::get),
            memory_mode: mode,
            is_memory_mode_named,
        }
    }

    pub fn with_cache(mut self, caches: Caches, args: &CacheArgs, file: &CacheArgs) -> ModelConfig {
        self.options.prefix_cache_bytes = caches.memory_bytes;
        self.options.disk_cache = caches.disk;
        self.volatile_prefix = args.volatile_prefix.or(file.volatile_prefix).unwrap_or_default();
        self
    }
}

/// The mode that a flag, a variable or the config file sets.
pub(super) fn memory_mode(args: &ModelArgs, file: &ModelArgs) -> MemoryMode {
    args.memory.or(file.memory).unwrap_or_default()
}

/// Half of it is for prompts that are rendered at the same time, the other half for those that need
/// more.
fn render_memory(limit: Option<usize>) -> RenderMemory {
    let Some(bytes) = limit.or_else(memory::machine_bytes).map(|bytes| bytes / RENDER_DIVISOR) else {
        return RenderMemory::default();
    };
    RenderMemory::new(bytes / 2 / RENDERINGS, bytes / 2)
}

/// The sizes that flags and config keys set, else the preset; without those the disk cache has
/// `default` bytes.
///
/// # Errors
/// There is to be a disk cache, but no prefix cache in memory or no folder; or bits without one.
pub(super) fn caches(
    args: &CacheArgs,
    file: &CacheArgs,
    preset: &Preset,
    default: Option<usize>,
) -> Result<Caches, ConfigError> {
    let from_machine = || preset.prefix_cache.of(memory::machine_bytes());
    let memory_bytes = args.prefix_cache.or(file.prefix_cache).map_or_else(from_machine, |bytes| bytes.0);
    let explicit = args.disk_cache.or(file.disk_cache).map(|bytes| bytes.0);
    let folder = args.cache_dir.clone().or_else(|| file.cache_dir.clone());
    // In the file the bits may be meant for other commands.
    let explicit_bits = args.disk_cache_bits.is_some();
    let bits = args.disk_cache_bits.or(file.disk_cache_bits);
    let default = default.or(folder.is_some().then_some(preset.disk_cache)).filter(|_| memory_bytes > 0);
    let Some(bytes) = explicit.or(default).filter(|bytes| *bytes > 0) else {
        return match explicit_bits {
            true => Err(ConfigError::BitsWithoutDiskCache),
            false => Ok(Caches { memory_bytes, disk: None }),
        };
    };
    if memory_bytes == 0 {
        return Err(ConfigError::DiskCacheAlone);
    }
    match folder.or_else(disk_cache_folder) {
        Some(folder) => Ok(Caches { memory_bytes, disk: Some(engine::DiskCache { folder, bytes, bits }) }),
        None if explicit.is_some() || explicit_bits => Err(ConfigError::NoCacheDir),
        None => Ok(Caches { memory_bytes, disk: None }),
    }
}

/// The default folder; `None` if the system has no home folder.
pub(super) fn disk_cache_folder() -> Option<PathBuf> {
    user_folder("XDG_CACHE_HOME", ".cache").map(|folder| folder.join("state"))
}

fn device(device: cli::Device) -> engine::Device {
    match device {
        cli::Device::Cpu => engine::Device::Cpu,
        cli::Device::Gpu => engine::Device::Gpu,
    }
}

fn dtype(dtype: cli::Dtype) -> engine::Dtype {
    match dtype {
        cli::Dtype::Float32 => engine::Dtype::Float32,
        cli::Dtype::Float16 => engine::Dtype::Float16,
        cli::Dtype::Bfloat16 => engine::Dtype::Bfloat16,
    }
}

fn precision(precision: cli::Precision) -> engine::Precision {
    match precision {
        cli::Precision::Float32 => engine::Precision::Float32,
        cli::Precision::Rounded => engine::Precision::Rounded,
        cli::Precision::Int8 => engine::Precision::Int8,
    }
}

fn when_full(policy: cli::WhenFull) -> engine::WhenFull {
    match policy {
        cli::WhenFull::Refuse => engine::WhenFull::Refuse,
        cli::WhenFull::Wait => engine::WhenFull::Wait,
    }
}

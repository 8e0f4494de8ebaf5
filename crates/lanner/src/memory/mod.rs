//! Memory modes: presets of everything that takes memory, and what a server gives back while the
//! system is short of it. Nothing here changes an answer.

mod monitor;
mod pressure;
#[cfg(test)]
mod tests;

use std::fmt::Write;

pub(crate) use self::{
    monitor::Monitor,
    pressure::{MemoryReading, Pressure},
};
use crate::{cli::MemoryMode, host::HostInfo, hub::megabytes};

/// The values of a mode; each has a flag of its own, which wins, except `buffer_cache` and
/// `reacts_at`.
#[derive(Debug)]
pub(crate) struct Preset {
    /// Share of the machine's memory.
    pub prefix_cache: Share,
    /// Bytes, for commands that have one by default.
    pub disk_cache: usize,
    /// Tokens.
    pub prefill_chunk: usize,
    pub max_batch: usize,
    /// Part of the machine's memory, as a divisor; `None`: no limit.
    pub memory_limit: Option<usize>,
    /// Bytes of freed buffers that MLX keeps on a GPU; `None`: MLX's own limit.
    pub buffer_cache: Option<usize>,
    /// The pressure from which on caches shrink.
    pub reacts_at: Pressure,
}

/// A part of the machine's memory, within bounds in bytes.
#[derive(Debug)]
pub(crate) struct Share {
    pub divisor: usize,
    pub least: usize,
    pub most: usize,
}

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

const FULL: Preset = Preset {
    prefix_cache: Share { divisor: 4, least: 256 * MIB, most: 32 * GIB },
    disk_cache: 10 * GIB,
    prefill_chunk: 1024,
    max_batch: 64,
    memory_limit: None,
    buffer_cache: None,
    reacts_at: Pressure::Critical,
};

const BALANCED: Preset = Preset {
    prefix_cache: Share { divisor: 8, least: 256 * MIB, most: 8 * GIB },
    disk_cache: 3 * GIB,
    prefill_chunk: 512,
    max_batch: 64,
    memory_limit: None,
    buffer_cache: None,
    reacts_at: Pressure::Warning,
};

const ECO: Preset = Preset {
    prefix_cache: Share { divisor: 32, least: 64 * MIB, most: GIB },
    disk_cache: 3 * GIB,
    prefill_chunk: 128,
    max_batch: 8,
    memory_limit: Some(2),
    buffer_cache: Some(64 * MIB),
    reacts_at: Pressure::Warning,
};

impl MemoryMode {
    pub(crate) fn preset(self) -> &'static Preset {
        match self {
            MemoryMode::Full => &FULL,
            MemoryMode::Balanced => &BALANCED,
            MemoryMode::Eco => &ECO,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            MemoryMode::Full => "full",
            MemoryMode::Balanced => "balanced",
            MemoryMode::Eco => "eco",
        }
    }
}

impl Share {
    /// Bytes on a machine with this memory; `None`: unknown.
    pub(crate) fn of(&self, machine: Option<usize>) -> usize {
        (machine.unwrap_or(0) / self.divisor).clamp(self.least, self.most)
    }
}

/// Bytes of memory of this machine, or what a control group allows of it.
pub(crate) fn machine_bytes() -> Option<usize> {
    HostInfo::here().usable_memory().map(|bytes| bytes as usize)
}

/// Watches the system's memory for the engines that share these options, until the result is
/// dropped.
pub(crate) fn watch(mode: MemoryMode, options: &engine::Options) -> Monitor {
    let account = &options.metrics.account;
    Monitor::start(account, options.prefix_cache_bytes, mode.preset().reacts_at)
}

/// The mode and what it comes to with all flags, in a sentence.
pub(crate) fn summary(mode: MemoryMode, options: &engine::Options) -> String {
    let human = |bytes: usize| megabytes(bytes as u64);
    let limit = options.memory_limit.map_or("no limit".into(), |bytes| format!("limit {}", human(bytes)));
    let prefixes = match options.prefix_cache_bytes {
        0 => "no prefix cache".into(),
        bytes => format!("prefix cache up to {}", human(bytes)),
    };
    let disk = match &options.disk_cache {
        Some(disk) => format!(" and {} on disk", human(disk.bytes)),
        None => String::new(),
    };
    let buffers = options.buffer_cache_bytes.map(|bytes| format!(", {} of buffers on a GPU", human(bytes)));
    format!(
        "memory mode {}: {limit}, {prefixes}{disk}, prompts in chunks of {} tokens, {} requests at a time{}; caches \
         shrink {}",
        mode.name(),
        options.prefill_chunk,
        options.max_batch,
        buffers.unwrap_or_default(),
        mode.preset().reacts_at.when()
    )
}

/// The modes as a Markdown table, for docs/memory.md.
pub fn mode_table() -> String {
    let modes = [MemoryMode::Full, MemoryMode::Balanced, MemoryMode::Eco];
    let human = |bytes: usize| match bytes {
        bytes if bytes >= GIB => format!("{} GiB", bytes / GIB),
        bytes => format!("{} MiB", bytes / MIB),
    };
    let mut table =
        String::from("| | flag | `full` | `balanced` (default) | `eco` |\n|---|---|---|---|---|\n");
    let mut row = |name: &str, flag: &str, value: &dyn Fn(&Preset) -> String| {
        let values = modes.map(|mode| value(mode.preset())).join(" | ");
        // Writing to a string does not fail.
        let _ = writeln!(table, "| {name} | {flag} | {values} |");
    };
    row("prefix cache in memory", "`--prefix-cache`", &|preset| {
        let Share { divisor, least, most } = preset.prefix_cache;
        format!("1/{divisor} of the memory, {} to {}", human(least), human(most))
    });
    row("prefix cache on disk (`serve`)", "`--disk-cache`", &|preset| human(preset.disk_cache));
    row("tokens of a prompt in one step", "`--prefill-chunk`", &|preset| preset.prefill_chunk.to_string());
    row("requests in a batch", "`--max-batch`", &|preset| preset.max_batch.to_string());
    row("memory limit", "`--memory-limit`", &|preset| match preset.memory_limit {
        None => "none".into(),
        Some(divisor) => format!("1/{divisor} of the memory"),
    });
    row("freed buffers that MLX keeps on a GPU", "", &|preset| {
        preset.buffer_cache.map_or("MLX's own limit".into(), human)
    });
    row("caches shrink", "", &|preset| preset.reacts_at.when().into());
    table
}

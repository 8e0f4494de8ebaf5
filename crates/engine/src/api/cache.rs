//! Prefix-cache reports: for one request, and of its contents.

/// State that a request reused from the prefix cache, and why it reused no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheReport {
    /// Where the reused state was stored; `None` if none was reused.
    pub source: Option<CacheSource>,
    /// Prompt tokens whose state was reused.
    pub reused: usize,
    /// Prompt tokens in common with the closest sequence that is or recently was stored; the last
    /// prompt token does not count.
    pub reusable: usize,
    /// The main reason why less than the whole prompt but its last token was reused; `None` also if
    /// the closest sequence ends where the reuse ended.
    pub miss: Option<Miss>,
}

/// Where reused state was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSource {
    /// All of it was in memory.
    Ram,
    /// All or some of it had to be read from a disk.
    Disk,
}

impl CacheSource {
    /// Every source, in the order of the variants.
    pub const ALL: [CacheSource; 2] = [CacheSource::Ram, CacheSource::Disk];
}

/// Why the rest of a prompt was not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// The cause.
    pub reason: MissReason,
    /// The first prompt token concerned.
    pub position: usize,
}

/// Why state was not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissReason {
    /// The closest stored sequence has another token at this position.
    Differs,
    /// The closest stored sequence has an image at this position that the prompt has no more, or
    /// another one.
    ImageDropped,
    /// State after this position was stored and evicted.
    Evicted,
    /// State after this position was never stored: the whole prefix exceeds the cache.
    TooLarge,
    /// More is stored, but this is the last position with a snapshot to resume from.
    NoSnapshot,
    /// The request wants the prompt's logits or mean, so all of it is computed.
    LogitsWanted,
    /// There is no prefix cache.
    Disabled,
}

impl MissReason {
    /// Every reason, in the order of the variants.
    pub const ALL: [MissReason; 7] = [
        MissReason::Differs,
        MissReason::ImageDropped,
        MissReason::Evicted,
        MissReason::TooLarge,
        MissReason::NoSnapshot,
        MissReason::LogitsWanted,
        MissReason::Disabled,
    ];
}

/// Content and counters of the prefix cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Maximum bytes; 0 if the cache is off.
    pub budget_bytes: usize,
    /// Bytes of all entries and snapshots.
    pub bytes: usize,
    /// KV spans, each stored once for all sequences that share it.
    pub entries: usize,
    /// Tokens of those spans.
    pub stored_tokens: usize,
    /// States of recurrences, convolutions and windows.
    pub snapshots: usize,
    /// Requests that began since the engine started.
    pub requests: usize,
    /// Requests that reused state.
    pub hits: usize,
    /// Prompt tokens of all these requests.
    pub prompt_tokens: usize,
    /// Prompt tokens whose state was reused.
    pub reused_tokens: usize,
    /// Prompt tokens in common with a sequence that is or recently was stored, reused or not.
    pub reusable_tokens: usize,
    /// Entries and snapshots that made room for others.
    pub evictions: usize,
    /// Bytes of state that were copied to be stored.
    pub copied_bytes: usize,
    /// Maximum bytes on the disk; 0 if nothing is kept there.
    pub disk_budget_bytes: usize,
    /// Bytes on the disk of this model's state.
    pub disk_bytes: usize,
    /// Files of this model's state.
    pub disk_files: usize,
    /// Invalid files that were removed.
    pub disk_rejected: usize,
    /// Times the cache was emptied after an internal error.
    pub failures: usize,
}

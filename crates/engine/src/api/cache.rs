//! Reports of the prefix cache: its work for one request, and its content.

/// State that a request reused from the prefix cache, and why it reused no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheReport {
    /// Where the reused state was stored; `None` if none was reused.
    pub source: Option<CacheSource>,
    /// Prompt tokens whose state was reused.
    pub reused: usize,
    /// Prompt tokens, without the last, in common with the closest sequence that is stored, or was
    /// not long ago.
    pub reusable: usize,
    /// Why not the whole prompt but its last token was reused, what cost most of it; `None` also if
    /// whatever was sent before ends where the reuse ended.
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
    pub const ALL: [MissReason; 6] = [
        MissReason::Differs,
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
    /// Most bytes; 0 if it is off.
    pub budget_bytes: usize,
    /// Bytes of all entries and snapshots.
    pub bytes: usize,
    /// Runs of tokens, each stored once for all sequences that share it.
    pub entries: usize,
    /// Tokens of those.
    pub stored_tokens: usize,
    /// States of recurrences, convolutions and windows.
    pub snapshots: usize,
    /// Requests that began since the engine started.
    pub requests: usize,
    /// Those of them that reused something.
    pub hits: usize,
    /// Prompt tokens of all these requests.
    pub prompt_tokens: usize,
    /// Those of them whose state was reused.
    pub reused_tokens: usize,
    /// Those of them that begin a sequence known to the cache, reused or not.
    pub reusable_tokens: usize,
    /// Entries and snapshots that made room for others.
    pub evictions: usize,
    /// Bytes of state that were copied to be stored.
    pub copied_bytes: usize,
    /// Most bytes on the disk; 0 if nothing is kept there.
    pub disk_budget_bytes: usize,
    /// Bytes on the disk of this model's state.
    pub disk_bytes: usize,
    /// Files of this model's state.
    pub disk_files: usize,
    /// Files removed because they did not hold what they should.
    pub disk_rejected: usize,
    /// Times it had to be emptied because of a bug of ours.
    pub failures: usize,
}

//! What the prefix cache did for a request, and what it holds.

/// What a request got from the prefix cache, and why it got no more.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSource {
    Ram,
    /// All or some of it had to be read from a disk.
    Disk,
}

impl CacheSource {
    pub const ALL: [CacheSource; 2] = [CacheSource::Ram, CacheSource::Disk];
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    pub reason: MissReason,
    /// The first prompt token concerned.
    pub position: usize,
}

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
    pub const ALL: [MissReason; 6] = [
        MissReason::Differs,
        MissReason::Evicted,
        MissReason::TooLarge,
        MissReason::NoSnapshot,
        MissReason::LogitsWanted,
        MissReason::Disabled,
    ];
}

/// What the prefix cache holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Most bytes; 0 if it is off.
    pub budget_bytes: usize,
    pub bytes: usize,
    /// Runs of tokens, each stored once for all sequences that share it.
    pub entries: usize,
    /// Tokens of those.
    pub stored_tokens: usize,
    /// States of recurrences, convolutions and windows.
    pub snapshots: usize,
    /// Since the engine started: requests that began, and those that reused something.
    pub requests: usize,
    pub hits: usize,
    /// Tokens of those requests, those they reused, and those they had in common with what was
    /// known.
    pub prompt_tokens: usize,
    pub reused_tokens: usize,
    pub reusable_tokens: usize,
    /// Entries and snapshots that made room for others.
    pub evictions: usize,
    /// Bytes of state that were copied to be stored.
    pub copied_bytes: usize,
    /// Most bytes on the disk; 0 if nothing is kept there.
    pub disk_budget_bytes: usize,
    /// Those of this model's state, and its files.
    pub disk_bytes: usize,
    pub disk_files: usize,
    /// Files removed because they did not hold what they should.
    pub disk_rejected: usize,
    /// Times it had to be emptied because of a bug of ours.
    pub failures: usize,
}

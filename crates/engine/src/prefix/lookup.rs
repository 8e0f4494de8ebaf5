//! Result of a lookup in the prefix cache, and why it did not match further.

use std::collections::BTreeSet;

use super::{state::StateRestore, tree::Lookup};
use crate::api::{CacheReport, Miss, MissReason};

/// The cached state that a sequence resumes from.
#[derive(Default)]
pub(crate) struct PrefixMatch {
    /// Number of tokens whose state is restored.
    pub position: usize,
    /// Copies the state into the caches.
    pub restore: Option<StateRestore>,
    /// Positions at which the sequence's state is to be copied into the cache.
    pub snapshot_at: BTreeSet<usize>,
    /// Whether any of the state differs from what the model would compute.
    pub lossy: bool,
    pub report: CacheReport,
}

impl PrefixMatch {
    /// Reuses nothing.
    pub(crate) fn none(reason: MissReason) -> PrefixMatch {
        let miss = Some(Miss { reason, position: 0 });
        PrefixMatch { report: CacheReport { miss, ..CacheReport::default() }, ..PrefixMatch::default() }
    }
}

/// Why a sequence that resumes at `position` does not resume at `limit`: the reason that costs most
/// tokens.
pub(super) fn miss(found: &Lookup, position: usize, limit: usize) -> Option<Miss> {
    let (stored, known) = (found.stored.min(limit), found.known.min(limit));
    let differs = if found.differs { limit - known } else { 0 };
    let other = if found.image_dropped { MissReason::ImageDropped } else { MissReason::Differs };
    let too_large_from = found.too_large_from.max(stored);
    let too_large = found.too_large.min(known.saturating_sub(too_large_from));
    let reasons = [
        (differs, other, known),
        (known - stored - too_large, MissReason::Evicted, stored),
        (too_large, MissReason::TooLarge, too_large_from),
        (stored - position, MissReason::NoSnapshot, position),
    ];
    let (cost, reason, position) = reasons.into_iter().max_by_key(|(cost, ..)| *cost)?;
    (cost > 0).then_some(Miss { reason, position })
}

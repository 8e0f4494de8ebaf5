//! The draft model's state of one sequence, which can return to an earlier position.

use std::collections::BTreeSet;

use nn::Recurrence;

use crate::{api::CacheSalt, cache::Cache, prefix::common};

/// Maximum positions of a draft to which recurrent state can return without being computed again.
pub(crate) const ROLLBACK_POINTS: usize = 8;

pub(crate) struct DraftContext {
    pub caches: Vec<Cache>,
    /// That of the sequence.
    pub cache_salt: Option<CacheSalt>,
    /// Tokens whose state is in the caches; the last ones may be drafted.
    pub tokens: Vec<u32>,
    /// Number of these that are not drafted.
    pub num_known: usize,
    /// Positions at which to copy the state for other sequences.
    pub snapshot_at: BTreeSet<usize>,
    /// Positions and the recurrent states there, in the order of the caches.
    rollback_points: Vec<(usize, Vec<Recurrence>)>,
}

impl DraftContext {
    /// `caches` hold `tokens`, none of which is drafted.
    pub(crate) fn new(
        caches: Vec<Cache>,
        cache_salt: Option<CacheSalt>,
        tokens: Vec<u32>,
        snapshot_at: BTreeSet<usize>,
    ) -> DraftContext {
        let num_known = tokens.len();
        DraftContext { num_known, caches, cache_salt, tokens, snapshot_at, rollback_points: vec![] }
    }

    /// Adds known tokens, which are computed next.
    pub(crate) fn extend(&mut self, tokens: &[u32]) {
        self.tokens.extend(tokens);
        self.num_known = self.tokens.len();
        self.rollback_points.clear();
    }

    /// Remembers the recurrent state after `drafted` tokens of a draft.
    pub(crate) fn add_rollback_point(&mut self, drafted: usize) {
        if drafted < ROLLBACK_POINTS {
            let recurrent = self.caches.iter().filter_map(|cache| match cache {
                Cache::Recurrent(recurrent) => Some(recurrent.clone()),
                Cache::Kv(_) => None,
            });
            self.rollback_points.push((self.num_known + drafted, recurrent.collect()));
        }
    }

    /// Returns to a common prefix with `tokens`, without their last one; `None` if its state is
    /// gone.
    pub(crate) fn rewind_to_match(self, tokens: &[u32]) -> Option<DraftContext> {
        let common = common(&self.tokens, &tokens[..tokens.len() - 1]);
        self.rewind_to(common)
    }

    /// Returns to its first `length` tokens, or a few less; `None` if their state is gone.
    pub(crate) fn rewind_to(mut self, length: usize) -> Option<DraftContext> {
        if length < self.tokens.len() {
            let point = self.rollback_points.iter().rev().find(|(at, _)| *at <= length);
            let is_recurrent = self.caches.iter().any(|cache| matches!(cache, Cache::Recurrent(_)));
            let length = if is_recurrent { point?.0 } else { length };
            let mut states = point.iter().flat_map(|(_, states)| states);
            for cache in &mut self.caches {
                match cache {
                    Cache::Recurrent(recurrent) => *recurrent = states.next()?.clone(),
                    kv => kv.rewind(self.tokens.len() - length).ok()?,
                }
            }
            self.tokens.truncate(length);
        }
        self.num_known = self.tokens.len();
        self.rollback_points.clear();
        Some(self)
    }
}

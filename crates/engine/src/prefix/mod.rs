//! Prefix cache: state of past sequences, reused by sequences that begin with the same tokens.
//!
//! Keys and values are stored once for all sequences that share them and can be reused up to any
//! token. State that cannot be cut out of a later one (recurrences, convolutions, windows) is
//! stored as snapshots. A sequence that resumes computes the same bits as one that starts at its
//! first token. Running sequences own their state: the cache holds copies.

mod copy;
mod disk;
mod key;
mod lookup;
mod size;
mod state;
mod tree;

/// The contents of a disk cache's folder, for callers without an engine.
pub mod disk_cache {
    #[cfg(any(test, feature = "fuzzing"))]
    pub use super::disk::check_file;
    pub use super::disk::{StoredModel, clear, list};
}

use std::{cell::OnceCell, collections::BTreeSet, thread, time::Duration};

use mlx::Array;

pub(crate) use self::{
    copy::{CopiedState, CopyProgress, CopySource, StateCopy},
    disk::{DiskTier, Fingerprint, LAYER_PROFILE_FILE, write_atomic},
    key::{OwnedPrefixKey, PrefixKey, common, image_salt, prompt_keys},
    lookup::PrefixMatch,
    state::StateRestore,
};
use self::{
    copy::{SPAN, span_ranges},
    state::{KvSpan, StateSnapshot},
    tree::{Lookup, RadixTree},
};

use crate::{
    api::{CacheReport, CacheSource, CacheStats, Miss, MissReason, Options, Request, StateSize},
    cache::Cache,
};

/// A snapshot that costs a step of its own must save at least this many tokens.
const MIN_SAVED_TOKENS: usize = 16;
/// Bytes that may be copied between two steps, besides the copies built into the steps: about ten
/// milliseconds.
const COPY_BUDGET: usize = 32 << 20;

pub(crate) struct PrefixCache {
    tree: RadixTree<KvSpan, StateSnapshot>,
    /// Holds state that outlives the engine or was evicted from memory.
    disk: Option<DiskTier>,
    /// Maximum bytes of state; 0 disables the cache.
    budget: usize,
    /// Bytes of state per token; unknown until the first copy.
    size: OnceCell<StateSize>,
    /// Whether part of the model's state can be resumed only at snapshots.
    needs_snapshots: bool,
    /// Tokens between snapshots of long prompts.
    snapshot_interval: usize,
    /// Maximum prompt tokens of a step.
    prefill_chunk: usize,
    /// Bytes that may still be copied before the next step.
    pub copy_budget: usize,
    stats: CacheStats,
    /// Incremented whenever the contents may have changed.
    pub version: u64,
}

/// The disk load that a sequence waits for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DiskFetch {
    waits_for: Option<u64>,
    /// Whether the sequence has started a load; it starts at most one, successful or not.
    started: bool,
}

impl PrefixCache {
    /// For sequences that begin with `caches`; `size` is `None` if it is not known yet.
    pub(crate) fn new(
        options: &Options,
        caches: &[Cache],
        size: Option<StateSize>,
        disk: Option<DiskTier>,
    ) -> PrefixCache {
        let needs_snapshots = needs_snapshots(caches);
        PrefixCache {
            tree: RadixTree::new(needs_snapshots),
            disk,
            budget: options.prefix_cache_bytes,
            size: size.map_or_else(OnceCell::new, OnceCell::from),
            prefill_chunk: options.prefill_chunk.max(1),
            copy_budget: COPY_BUDGET,
            needs_snapshots,
            snapshot_interval: options.snapshot_interval,
            stats: CacheStats { budget_bytes: options.prefix_cache_bytes, ..CacheStats::default() },
            version: 0,
        }
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.budget > 0
    }

    /// Maximum bytes stored; copies in flight may take as much again.
    pub(crate) fn budget_bytes(&self) -> usize {
        self.budget
    }

    pub(crate) fn needs_snapshots(&self) -> bool {
        self.needs_snapshots
    }

    /// Maximum tokens of a sequence whose state fits into the budget.
    pub(crate) fn max_tokens(&self) -> usize {
        self.size.get().map_or(usize::MAX, |size| size.tokens_within(self.budget))
    }

    /// The position that a sequence of `tokens` could resume from now. The last token is always
    /// computed, for the logits of the next one.
    pub(crate) fn resumable(&self, key: PrefixKey) -> usize {
        let limit = key.tokens.len() - 1;
        let max_tokens = limit.min(self.max_tokens());
        let on_disk = self.disk.as_ref().map_or(0, |disk| disk.find(key, max_tokens).1);
        self.tree.resumable(&self.tree.find(key), limit).max(on_disk)
    }

    /// Whether a sequence of `tokens` must wait for state that is read from the disk. Starts the
    /// read if there is none, once per sequence.
    pub(crate) fn should_wait_for_disk(
        &mut self,
        request: &Request,
        tokens: &[u32],
        fetch: &mut DiskFetch,
    ) -> bool {
        if !self.is_enabled() || request.computes_whole_prompt() {
            return false;
        }
        let (key, limit) = (PrefixKey::of(request, tokens), (tokens.len() - 1).min(self.max_tokens()));
        let Some(disk) = &mut self.disk else { return false };
        let found = self.tree.find(key);
        let in_memory = self.tree.resumable(&found, limit);
        if let Some(id) = disk.active_load() {
            if disk.has_more(key, limit, in_memory) {
                fetch.waits_for = Some(id);
            }
            return fetch.waits_for == Some(id);
        }
        if !fetch.started {
            fetch.waits_for = disk.start_load(key, limit, found.stored, in_memory);
            fetch.started = fetch.waits_for.is_some();
            return fetch.started;
        }
        false
    }

    /// Allows the copies of the next interval between two steps.
    pub(crate) fn reset_copy_budget(&mut self) {
        self.copy_budget = COPY_BUDGET;
    }

    /// Whether state is being read from or written to the disk.
    pub(crate) fn is_disk_busy(&self) -> bool {
        self.disk.as_ref().is_some_and(DiskTier::is_busy)
    }

    /// Stores state that was read from the disk and hands pending state to the writer, within the
    /// copy budget.
    ///
    /// # Errors
    /// Out of memory for the state that was read.
    pub(crate) fn poll_disk(&mut self) -> mlx::Result<()> {
        let Some(disk) = &mut self.disk else { return Ok(()) };
        for loaded in disk.poll_load(&mut self.copy_budget, &self.tree)? {
            self.version += 1;
            let key = loaded.key.as_key().first(loaded.end);
            self.tree.insert(key, loaded.from, loaded.span, loaded.snapshot);
        }
        disk.advance_writes(&self.tree, &mut self.copy_budget)
    }

    /// Copies the stored state of `tokens` into new `caches`.
    ///
    /// # Errors
    /// Out of memory.
    #[track_caller]
    pub(crate) fn attach_and_restore(
        &mut self,
        request: &Request,
        tokens: &[u32],
        caches: &mut [Cache],
    ) -> mlx::Result<PrefixMatch> {
        let mut matched = self.attach(request, tokens, caches);
        if let Some(mut restore) = matched.restore.take() {
            let mut unlimited = usize::MAX;
            restore.advance(caches, &mut unlimited)?;
        }
        Ok(matched)
    }

    /// Finds the stored state of `tokens`. It must be [copied](StateRestore::advance) into new
    /// `caches` before they are used.
    #[track_caller]
    pub(crate) fn attach(&mut self, request: &Request, tokens: &[u32], caches: &[Cache]) -> PrefixMatch {
        let limit = tokens.len() - 1;
        self.version += 1;
        if !self.is_enabled() {
            return PrefixMatch::none(MissReason::Disabled);
        }
        let wants_all = request.computes_whole_prompt();
        let key = PrefixKey::of(request, tokens);
        let on_disk = self.disk.as_ref().map(|disk| disk.find(key, limit).0).unwrap_or_default();
        let found = self.tree.find(key);
        let known = found.merge(&on_disk);
        let reusable = known.known.min(limit);
        let position = if wants_all { 0 } else { self.resumable_outside_images(request, &found, limit) };
        let mut matched = self.restore(&found, position, caches, tokens.len());
        matched.report.reusable = reusable;
        matched.report.miss = match wants_all {
            true => Some(Miss { reason: MissReason::LogitsWanted, position: 0 }),
            false => lookup::miss(&known, position, limit),
        };
        matched.snapshot_at = self.snapshot_positions(request, tokens.len(), position, reusable);
        self.tree.touch(&found, position);
        self.disk.iter_mut().for_each(|disk| disk.touch(key, position));
        self.count(tokens.len(), &matched.report);
        // The match shares the arrays it found, so evicting them here is safe.
        self.stats.evictions += self.tree.shrink(self.budget);
        matched
    }

    /// The last position up to `limit`, in no image, whose state is stored completely.
    fn resumable_outside_images(&self, request: &Request, found: &Lookup, mut limit: usize) -> usize {
        loop {
            let position = self.tree.resumable(found, limit);
            limit = request.outside_images(position);
            if limit == position {
                return position;
            }
        }
    }

    /// A match that restores the state of the first `position` of `length` tokens.
    #[track_caller]
    fn restore(&self, found: &Lookup, position: usize, caches: &[Cache], length: usize) -> PrefixMatch {
        if position == 0 {
            return PrefixMatch::default();
        }
        let spans: Vec<(&KvSpan, usize)> = self.tree.spans(found, position).collect();
        let snapshot = self.tree.snapshot(found, position);
        let from_disk = spans.iter().map(|(span, _)| &span.from_disk);
        let from_disk = from_disk.chain(snapshot.map(|snapshot| &snapshot.from_disk));
        let from_disk = from_disk.fold(false, |any, flag| any | flag.replace(false));
        let source = if from_disk { CacheSource::Disk } else { CacheSource::Ram };
        PrefixMatch {
            position,
            restore: Some(StateRestore::new(&spans, snapshot, caches, length - position)),
            lossy: spans.iter().any(|(span, _)| span.lossy) || snapshot.is_some_and(|s| s.lossy),
            report: CacheReport { source: Some(source), reused: position, ..CacheReport::default() },
            ..PrefixMatch::default()
        }
    }

    /// Positions at which the state of a sequence that resumes at `position` is worth a snapshot;
    /// `branch` is where it differs from the closest stored sequence.
    fn snapshot_positions(
        &self,
        request: &Request,
        length: usize,
        position: usize,
        branch: usize,
    ) -> BTreeSet<usize> {
        let end = request.prompt.len();
        if !self.needs_snapshots {
            // Keys and values at the end include those of every earlier position.
            return [end].into();
        }
        let (max_tokens, interval) = (self.max_tokens(), self.snapshot_interval);
        let named = request.cache_breakpoints.iter().copied();
        let branch = (branch >= position + MIN_SAVED_TOKENS).then_some(branch);
        let sparse = (1..).map(|i| i * interval).take_while(|&at| interval > 0 && at < length);
        // The last end of a chunk that fits, if the prompt does not.
        let largest =
            max_tokens.saturating_sub(position) / self.prefill_chunk * self.prefill_chunk + position;
        let largest = (max_tokens < end && largest >= position + MIN_SAVED_TOKENS).then_some(largest);
        let all = named.chain(branch).chain(sparse).chain(largest).filter(|&at| at <= max_tokens);
        // A repeated prompt resumes before its last token, whose logits it needs; a longer one
        // computes that token again. This snapshot costs no step of its own. State that does not
        // fit is recorded at the end.
        let end = if end <= max_tokens && end > 1 { end - 1 } else { end };
        let all = all.chain([end]).map(|at| request.outside_images(at));
        all.filter(|&at| at > position && at <= length).collect()
    }

    /// Plans the copies of state that is not stored yet; `None` if there is none. Evaluate the
    /// copies, then [store](PrefixCache::store) them.
    #[track_caller]
    pub(crate) fn start_copy(&self, source: &CopySource, progress: CopyProgress) -> Option<StateCopy> {
        if !self.is_enabled() {
            return None;
        }
        if self.size.get().is_none() {
            // The size depends on the model alone.
            StateSize::of(source.caches).into_iter().for_each(|size| _ = self.size.set(size));
        }
        let (length, max_tokens) = (source.key.tokens.len(), self.max_tokens());
        let found = self.tree.find(source.key);
        // Part of a snapshot is useless.
        let position = if self.needs_snapshots && length > max_tokens { 0 } else { length.min(max_tokens) };
        let in_flight = found.stored >= progress.stored;
        let from = if in_flight { found.stored.max(progress.copied) } else { found.stored };
        // Evicted state is copied again once, when the sequence ends.
        let ranges = match self.needs_snapshots || in_flight {
            true => span_ranges(from, position),
            false => vec![],
        };
        let snapshot = self.needs_snapshots && position > 0 && self.tree.snapshot(&found, position).is_none();
        let too_large = found.known < length || found.stored + found.too_large < length;
        let needed = !ranges.is_empty() || snapshot || (position < length && too_large);
        needed.then(|| StateCopy::new([length, position], ranges, snapshot, source))
    }

    /// Whether enough of a sequence is neither stored nor in flight to copy it before the prompt
    /// ends; never true where only snapshots can be resumed.
    pub(crate) fn is_worth_copying(&self, key: PrefixKey, progress: CopyProgress) -> bool {
        let length = key.tokens.len();
        if self.needs_snapshots || !self.is_enabled() || length < progress.copied + SPAN {
            return false;
        }
        let end = length.min(self.max_tokens());
        let stored = self.tree.find(key).stored;
        // Evicted state is not copied again and again.
        stored >= progress.stored && end >= stored.max(progress.copied) + SPAN
    }

    /// Stores copies of the state after the first of `tokens`.
    pub(crate) fn store(&mut self, tokens: &[u32], copied: CopiedState) {
        self.version += 1;
        self.stats.copied_bytes += copied.arrays().map(Array::nbytes).sum::<usize>();
        let (length, position) = (copied.length(), copied.position());
        let CopiedState { salt, spans, snapshot, .. } = copied;
        let key = PrefixKey { salt, tokens };
        let ends: Vec<usize> = spans.iter().skip(1).map(|(from, _)| *from).chain([position]).collect();
        for ((from, span), end) in spans.into_iter().zip(ends) {
            self.tree.insert(key.first(end), from, Some(span), None);
        }
        self.tree.insert(key.first(position), position, None, snapshot);
        if position < length {
            self.tree.set_too_large(key.first(length));
        }
        if position > 0
            && let Some(disk) = &mut self.disk
        {
            disk.enqueue_write(key.first(position));
        }
        self.stats.evictions += self.tree.shrink(self.budget);
    }

    /// Limits the cache to `bytes`, at most its original budget.
    pub(crate) fn set_budget(&mut self, bytes: usize) {
        // 0 would disable the cache.
        self.budget = bytes.max(1).min(self.stats.budget_bytes);
        let evicted = self.tree.shrink(self.budget);
        self.version += evicted as u64;
        self.stats.evictions += evicted;
    }

    pub(crate) fn stats(&self) -> CacheStats {
        let (stored_tokens, entries) = self.tree.stored();
        let (disk_bytes, disk_files) = self.disk.as_ref().map_or((0, 0), DiskTier::usage);
        CacheStats {
            bytes: self.tree.bytes(),
            stored_tokens,
            entries,
            snapshots: self.tree.snapshots(),
            disk_budget_bytes: self.disk.as_ref().map_or(0, DiskTier::budget_bytes),
            disk_bytes,
            disk_files,
            disk_rejected: self.disk.as_ref().map_or(0, |disk| disk.rejected),
            ..self.stats
        }
    }

    /// Removes all state, then calls `done`; another thread removes the files.
    pub(crate) fn clear(&mut self, done: impl FnOnce() + Send + 'static) {
        self.version += 1;
        self.tree.clear();
        match &mut self.disk {
            Some(disk) => {
                // This thread freed the arrays, and the other one gives their memory back.
                mlx::flush_thread_cache();
                disk.clear(done);
            }
            None => done(),
        }
    }

    /// Removes all state after an internal error, and counts the failure.
    pub(crate) fn clear_after_failure(&mut self) {
        self.stats.failures += 1;
        self.clear(|| {});
    }

    fn count(&mut self, tokens: usize, report: &CacheReport) {
        self.stats.requests += 1;
        self.stats.hits += usize::from(report.reused > 0);
        self.stats.prompt_tokens += tokens;
        self.stats.reused_tokens += report.reused;
        self.stats.reusable_tokens += report.reusable;
    }
}

/// Whether part of the state in `caches` can be resumed only at snapshots.
pub(crate) fn needs_snapshots(caches: &[Cache]) -> bool {
    caches.iter().any(|cache| cache.as_full_attention().is_none())
}

impl Drop for PrefixCache {
    /// Hands all pending state to the writer.
    fn drop(&mut self) {
        let Some(disk) = self.disk.as_mut().filter(|_| !thread::panicking()) else { return };
        while disk.is_writing() {
            let mut unlimited = usize::MAX;
            match disk.advance_writes(&self.tree, &mut unlimited) {
                Ok(()) if disk.is_writing() => thread::sleep(Duration::from_millis(1)),
                Ok(()) => {}
                Err(error) => {
                    tracing::warn!("state is not written to the disk cache: {error}");
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;

//! State of past sequences, for those that begin with the same tokens.
//!
//! Keys and values are stored once per run of tokens that sequences share and are reused to the token; states that
//! cannot be cut out of later ones (recurrences, convolutions, windows) as checkpoints. A sequence that resumes computes
//! the very bits of one that began at its first token. Running sequences own their state: everything here is a copy.

mod copy;
mod disk;
mod size;
mod state;
mod tree;

/// What lies in a disk cache's folder, for whoever looks at it without an engine.
pub mod disk_cache {
    #[cfg(any(test, feature = "fuzzing"))]
    pub use super::disk::check_file;
    pub use super::disk::{StoredModel, clear, list};
}

use std::{cell::OnceCell, collections::BTreeSet, thread, time::Duration};

use mlx::Array;

pub use self::{
    copy::{CopiedState, StateCopy},
    disk::{Disk, Fingerprint, LAYER_PROFILE_FILE, write_atomic},
    size::StateSize,
    state::StateRestore,
    tree::common,
};
use self::{
    state::{Checkpoint, Run},
    tree::{Found, Tree},
};

use crate::{
    Options,
    cache::Cache,
    request::{CacheReport, CacheSource, CacheStats, Miss, MissReason, Request},
};

/// Tokens that a checkpoint must save to be worth a step that ends there.
const WORTH_SAVING: usize = 16;
/// Tokens of a stored run of keys and values that can be resumed anywhere: each can be evicted by itself.
const SPAN: usize = 256;
/// Bytes that may be copied between two steps, beside what the steps themselves leave behind: some ten milliseconds.
const COPY_BUDGET: usize = 32 << 20;

pub struct PrefixCache {
    tree: Tree<Run, Checkpoint>,
    /// Where state outlives the engine and what had to make room.
    disk: Option<Disk>,
    /// Most bytes of state; 0 stores nothing.
    budget: usize,
    /// Bytes of state, once a sequence has shown it.
    size: OnceCell<StateSize>,
    /// Whether a part of the model's state can be resumed at checkpoints alone.
    needs_snapshots: bool,
    /// Tokens between checkpoints of long prompts.
    every: usize,
    /// Most tokens of a prompt in a step.
    chunk: usize,
    /// Bytes that may still be copied before the next step.
    pub copy_budget: usize,
    stats: CacheStats,
    /// How often what is held may have changed.
    pub version: u64,
}

/// How a sequence begins.
pub struct PrefixMatch {
    /// Tokens whose state is in the caches, or will be.
    pub position: usize,
    /// What has to be copied into the caches first.
    pub restore: Option<StateRestore>,
    /// Where its state is to be copied on the way.
    pub snapshot_at: BTreeSet<usize>,
    /// Whether any of the state is not what the model computes.
    pub lossy: bool,
    pub report: CacheReport,
}

/// What a sequence waits for that is read from the disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskFetch {
    waits_for: Option<u64>,
    /// Whether it has asked itself: it does so once, whatever becomes of what was read.
    own: bool,
}

/// What a sequence has copied already, so that nothing is copied twice while a copy is on its way.
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyProgress {
    /// Tokens that are stored, as far as the sequence knows.
    pub stored: usize,
    /// Those, and tokens of copies on their way.
    pub copied: usize,
}

impl PrefixCache {
    /// For sequences that begin with `caches`, whose state has a `size`; `None` if that is not known yet.
    pub fn new(
        options: &Options,
        caches: &[Cache],
        size: Option<StateSize>,
        disk: Option<Disk>,
    ) -> PrefixCache {
        let needs_snapshots = needs_snapshots(caches);
        PrefixCache {
            tree: Tree::new(needs_snapshots),
            disk,
            budget: options.prefix_cache_bytes,
            size: size.map_or_else(OnceCell::new, OnceCell::from),
            chunk: options.prefill_chunk.max(1),
            copy_budget: COPY_BUDGET,
            needs_snapshots,
            every: options.snapshot_interval,
            stats: CacheStats { budget_bytes: options.prefix_cache_bytes, ..CacheStats::default() },
            version: 0,
        }
    }

    pub fn is_enabled(&self) -> bool {
        self.budget > 0
    }

    /// Most bytes that it holds, and as many again that are on their way.
    pub fn budget_bytes(&self) -> usize {
        self.budget
    }

    pub fn needs_snapshots(&self) -> bool {
        self.needs_snapshots
    }

    /// Most tokens of a sequence whose state fits into the budget.
    pub fn max_tokens(&self) -> usize {
        self.size.get().map_or(usize::MAX, |size| size.tokens_within(self.budget))
    }

    /// The position that a sequence of `tokens` could resume from now. The last token is always computed: it gives the
    /// logits of the next.
    pub fn resumable(&self, tokens: &[u32]) -> usize {
        let limit = tokens.len() - 1;
        let on_disk = self.disk.as_ref().map_or(0, |disk| disk.find(tokens, limit.min(self.max_tokens())).1);
        self.tree.resumable(&self.tree.find(tokens), limit).max(on_disk)
    }

    /// Whether a sequence of `tokens` is to wait for state that is being read from the disk; begins to read it if need
    /// be, once for each sequence.
    pub fn should_wait_for_disk(&mut self, request: &Request, tokens: &[u32], fetch: &mut DiskFetch) -> bool {
        if !self.is_enabled() || request.wants_prompt_logits() {
            return false;
        }
        let limit = (tokens.len() - 1).min(self.max_tokens());
        let Some(disk) = &mut self.disk else { return false };
        let found = self.tree.find(tokens);
        let beyond = self.tree.resumable(&found, limit);
        if let Some(id) = disk.reading() {
            if disk.has_more(tokens, limit, beyond) {
                fetch.waits_for = Some(id);
            }
            return fetch.waits_for == Some(id);
        }
        if !fetch.own {
            fetch.waits_for = disk.start_reading(tokens, limit, found.stored, beyond);
            fetch.own = fetch.waits_for.is_some();
            return fetch.own;
        }
        false
    }

    /// Begins a time between two steps.
    pub fn reset_copy_budget(&mut self) {
        self.copy_budget = COPY_BUDGET;
    }

    /// Whether state is being read from the disk or written to it.
    pub fn is_disk_busy(&self) -> bool {
        self.disk.as_ref().is_some_and(Disk::is_busy)
    }

    /// Takes in what was read from the disk and hands over what is to be written, as far as the time between two steps
    /// allows.
    ///
    /// # Errors
    /// There is no memory for what was read.
    pub fn poll_disk(&mut self) -> mlx::Result<()> {
        let Some(disk) = &mut self.disk else { return Ok(()) };
        for read in disk.take_read(&mut self.copy_budget, &self.tree)? {
            self.version += 1;
            let tokens = &read.tokens[..read.end];
            self.tree.insert(tokens, read.from, read.run, read.checkpoint);
        }
        disk.save_some(&self.tree, &mut self.copy_budget)
    }

    /// Puts what is stored of `tokens` into new `caches`.
    ///
    /// # Errors
    /// There is no memory for it.
    #[track_caller]
    pub fn attach_and_restore(
        &mut self,
        request: &Request,
        tokens: &[u32],
        caches: &mut [Cache],
    ) -> mlx::Result<PrefixMatch> {
        let mut begun = self.attach(request, tokens, caches);
        if let Some(mut resume) = begun.restore.take() {
            let mut all = usize::MAX;
            resume.advance(caches, &mut all)?;
        }
        Ok(begun)
    }

    /// Finds what is stored of `tokens`, which has to be [copied](StateRestore::advance) into new `caches` before they are used.
    #[track_caller]
    pub fn attach(&mut self, request: &Request, tokens: &[u32], caches: &[Cache]) -> PrefixMatch {
        let limit = tokens.len() - 1;
        self.version += 1;
        if !self.is_enabled() {
            return PrefixMatch::none(MissReason::Disabled);
        }
        let wants_logits = request.wants_prompt_logits();
        let on_disk = self.disk.as_ref().map(|disk| disk.find(tokens, limit).0).unwrap_or_default();
        let found = self.tree.find(tokens);
        let known = found.or_longer(&on_disk);
        let reusable = known.known.min(limit);
        let position = if wants_logits { 0 } else { self.tree.resumable(&found, limit) };
        let (mut lossy, mut from_disk, mut resume) = (false, false, None);
        if position > 0 {
            let runs: Vec<(&Run, usize)> = self.tree.spans(&found, position).collect();
            let checkpoint = self.tree.checkpoint(&found, position);
            resume = Some(StateRestore::new(&runs, checkpoint, caches, tokens.len() - position));
            lossy = runs.iter().any(|(run, _)| run.lossy) || checkpoint.is_some_and(|kept| kept.lossy);
            let fresh = runs.iter().map(|(run, _)| &run.from_disk);
            let fresh = fresh.chain(checkpoint.map(|kept| &kept.from_disk));
            from_disk = fresh.fold(false, |any, fresh| any | fresh.replace(false));
        }
        let report = CacheReport {
            source: (position > 0).then_some(if from_disk { CacheSource::Disk } else { CacheSource::Ram }),
            reused: position,
            reusable,
            miss: match wants_logits {
                true => Some(Miss { reason: MissReason::LogitsWanted, position: 0 }),
                false => miss(&known, position, limit),
            },
        };
        self.tree.touch(&found, position);
        self.disk.iter_mut().for_each(|disk| disk.touch(tokens, position));
        self.count(tokens.len(), &report);
        // What was found stays until it is copied: the sequence holds it too.
        self.stats.evictions += self.tree.shrink(self.budget);
        PrefixMatch {
            position,
            resume,
            snapshot_at: self.snapshot_positions(request, tokens.len(), position, reusable),
            lossy,
            report,
        }
    }

    /// Where the state of a sequence that resumes at `position` is worth a copy; `branch` is where it leaves others.
    fn snapshot_positions(
        &self,
        request: &Request,
        length: usize,
        position: usize,
        branch: usize,
    ) -> BTreeSet<usize> {
        let end = request.prompt.len();
        if !self.needs_snapshots {
            // Keys and values at the end hold those of every position before.
            return [end].into();
        }
        let most = self.max_tokens();
        let named = request.cache_breakpoints.iter().copied();
        let branch = (branch >= position + WORTH_SAVING).then_some(branch);
        let sparse = (1..).map(|i| i * self.every).take_while(|&at| self.every > 0 && at < length);
        // As much as fits of what does not, where a step ends anyway.
        let largest = most.saturating_sub(position) / self.chunk * self.chunk + position;
        let largest = (most < end && largest >= position + WORTH_SAVING).then_some(largest);
        let all = named.chain(branch).chain(sparse).chain(largest).filter(|&at| at <= most);
        // Costs no step of its own. Who sends the same again goes on before the last token, whose logits are needed; who
        // comes back with more behind this prompt computes that token too. What does not fit is noted at the end.
        let end = if end <= most && end > 1 { end - 1 } else { end };
        all.chain([end]).filter(|&at| at > position && at <= length).collect()
    }

    /// Copies what is not stored yet of the state behind `tokens`, which is what `caches` hold but for their last `back`
    /// tokens; `lossy` if that came of state that was. The copies are to be evaluated, and then
    /// [stored](PrefixCache::store). `None` if there is nothing to store.
    #[track_caller]
    pub fn copy_state(
        &self,
        tokens: &[u32],
        caches: &[Cache],
        back: usize,
        so_far: CopyProgress,
        lossy: bool,
    ) -> Option<CopiedState> {
        Some(self.start_copy(tokens, caches, back, so_far, lossy)?.at_once(caches))
    }

    /// As [`copy_state`](PrefixCache::copy_state), to be done in slices.
    #[track_caller]
    pub fn start_copy(
        &self,
        tokens: &[u32],
        caches: &[Cache],
        back: usize,
        so_far: CopyProgress,
        lossy: bool,
    ) -> Option<StateCopy> {
        if !self.is_enabled() {
            return None;
        }
        if self.size.get().is_none() {
            // Of no other size while the model is the same.
            StateSize::of(caches).into_iter().for_each(|size| _ = self.size.set(size));
        }
        let (found, length, most) = (self.tree.find(tokens), tokens.len(), self.max_tokens());
        // A part of a checkpoint is of no use.
        let position = if self.needs_snapshots && length > most { 0 } else { length.min(most) };
        let on_its_way = found.stored >= so_far.stored;
        let from = if on_its_way { found.stored.max(so_far.copied) } else { found.stored };
        let spans: Vec<[usize; 2]> = match self.needs_snapshots {
            true if from < position => vec![[from, position]],
            // What was evicted meanwhile is copied again once, when the sequence ends.
            false if on_its_way => spans(from, position),
            _ => vec![],
        };
        let checkpoint =
            self.needs_snapshots && position > 0 && self.tree.checkpoint(&found, position).is_none();
        let news = position < length && (found.known < length || found.stored + found.too_large < length);
        let something = !spans.is_empty() || checkpoint || news;
        something.then(|| StateCopy::new([length, position], spans, checkpoint, caches, back, lossy))
    }

    /// Whether a sequence of `tokens` has so many that are neither stored nor on their way that they are worth a copy
    /// before its prompt ends; never where only checkpoints can be resumed.
    pub fn is_worth_copying(&self, tokens: &[u32], so_far: CopyProgress) -> bool {
        if self.needs_snapshots || !self.is_enabled() || tokens.len() < so_far.copied + SPAN {
            return false;
        }
        let end = tokens.len().min(self.max_tokens());
        let stored = self.tree.find(tokens).stored;
        // What was evicted meanwhile is not copied again and again.
        stored >= so_far.stored && end >= stored.max(so_far.copied) + SPAN
    }

    /// Stores copies of the state behind the first of `tokens`.
    pub fn store(&mut self, tokens: &[u32], copied: CopiedState) {
        self.version += 1;
        self.stats.copied_bytes += copied.arrays().map(Array::nbytes).sum::<usize>();
        let (length, position) = (copied.length(), copied.position());
        let CopiedState { runs, checkpoint, .. } = copied;
        let ends: Vec<usize> = runs.iter().skip(1).map(|(from, _)| *from).chain([position]).collect();
        for ((from, run), end) in runs.into_iter().zip(ends) {
            self.tree.insert(&tokens[..end], from, Some(run), None);
        }
        self.tree.insert(&tokens[..position], position, None, checkpoint);
        if position < length {
            self.tree.set_too_large(&tokens[..length]);
        }
        if position > 0
            && let Some(disk) = &mut self.disk
        {
            disk.save(&tokens[..position]);
        }
        self.stats.evictions += self.tree.shrink(self.budget);
    }

    /// Keeps at most `bytes` from here on, and never more than it was made for.
    pub fn set_budget(&mut self, bytes: usize) {
        // Not 0, which would mean that there is none.
        self.budget = bytes.max(1).min(self.stats.budget_bytes);
        let evicted = self.tree.shrink(self.budget);
        self.version += evicted as u64;
        self.stats.evictions += evicted;
    }

    pub fn stats(&self) -> CacheStats {
        let (stored_tokens, entries) = self.tree.stored();
        let snapshots = self.tree.checkpoints();
        let (disk_bytes, disk_files) = self.disk.as_ref().map_or((0, 0), Disk::held);
        CacheStats {
            bytes: self.tree.bytes(),
            stored_tokens,
            entries,
            snapshots,
            disk_budget_bytes: self.disk.as_ref().map_or(0, Disk::budget),
            disk_bytes,
            disk_files,
            disk_rejected: self.disk.as_ref().map_or(0, |disk| disk.rejected),
            ..self.stats
        }
    }

    /// Forgets everything, then calls; files are removed on another thread.
    pub fn clear(&mut self, done: impl FnOnce() + Send + 'static) {
        self.version += 1;
        self.tree.clear();
        match &mut self.disk {
            Some(disk) => disk.clear(done),
            None => done(),
        }
    }

    /// Forgets everything, because of a bug of ours.
    pub fn clear_after_failure(&mut self) {
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

impl PrefixMatch {
    /// With nothing reused.
    pub fn none(reason: MissReason) -> PrefixMatch {
        let miss = Some(Miss { reason, position: 0 });
        let report = CacheReport { miss, ..CacheReport::default() };
        PrefixMatch { position: 0, restore: None, snapshot_at: BTreeSet::new(), lossy: false, report }
    }
}

/// Whether a part of the state can be resumed at checkpoints alone.
pub fn needs_snapshots(caches: &[Cache]) -> bool {
    caches.iter().any(|cache| cache.as_full_attention().is_none())
}

/// Runs of tokens `from..to`, each to the next multiple of [`SPAN`].
fn spans(from: usize, to: usize) -> Vec<[usize; 2]> {
    let mut spans = vec![];
    let mut at = from;
    while at < to {
        let end = (at / SPAN * SPAN + SPAN).min(to);
        spans.push([at, end]);
        at = end;
    }
    spans
}

/// Why a sequence that resumes at `position` does not resume at `limit`: of several reasons what cost most tokens.
fn miss(found: &Found, position: usize, limit: usize) -> Option<Miss> {
    let (stored, known) = (found.stored.min(limit), found.known.min(limit));
    let differs = if found.differs { limit - known } else { 0 };
    let too_large_from = found.too_large_from.max(stored);
    let too_large = found.too_large.min(known.saturating_sub(too_large_from));
    let reasons = [
        (differs, MissReason::Differs, known),
        (known - stored - too_large, MissReason::Evicted, stored),
        (too_large, MissReason::TooLarge, too_large_from),
        (stored - position, MissReason::NoSnapshot, position),
    ];
    let (cost, reason, position) = reasons.into_iter().max_by_key(|(cost, ..)| *cost)?;
    (cost > 0).then_some(Miss { reason, position })
}

impl Drop for PrefixCache {
    /// Hands over what is still to be written.
    fn drop(&mut self) {
        let Some(disk) = self.disk.as_mut().filter(|_| !thread::panicking()) else { return };
        while disk.is_saving() {
            let mut all = usize::MAX;
            match disk.save_some(&self.tree, &mut all) {
                Ok(()) if disk.is_saving() => thread::sleep(Duration::from_millis(1)),
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

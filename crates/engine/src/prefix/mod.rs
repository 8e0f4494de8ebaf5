//! State of past sequences, for those that begin with the same tokens.
//!
//! Keys and values are stored once per run of tokens that sequences share and are reused to the token; states that
//! cannot be cut out of later ones (recurrences, convolutions, windows) as checkpoints. A sequence that resumes computes
//! the very bits of one that began at its first token. Running sequences own their state: everything here is a copy.

mod disk;
mod state;
mod tree;

/// What lies in a disk cache's folder, for whoever looks at it without an engine.
pub mod disk_cache {
    #[cfg(any(test, feature = "fuzzing"))]
    pub use super::disk::read_whole;
    pub use super::disk::{StoredModel, clear, list};
}

use std::collections::BTreeSet;

use mlx::Array;

use self::{
    disk::Restored,
    state::{Checkpoint, Run},
    tree::{Found, Tree},
};
pub use self::{
    disk::{Disk, write_whole},
    tree::common,
};

use crate::{
    Options,
    cache::Cache,
    request::{CacheReport, CacheSource, CacheStats, Miss, MissReason, Request},
};

/// Tokens that a checkpoint must save to be worth a step that ends there.
const WORTH_SAVING: usize = 16;

pub struct Prefix {
    tree: Tree<Run, Checkpoint>,
    /// Where state outlives the engine and what had to make room.
    disk: Option<Disk>,
    /// Most bytes of state; 0 stores nothing.
    budget: usize,
    /// Whether a part of the model's state can be resumed at checkpoints alone.
    by_checkpoint: bool,
    /// Tokens between checkpoints of long prompts.
    every: usize,
    stats: CacheStats,
    /// How often what is held may have changed.
    pub changes: u64,
}

/// State on its way: copied in a step, stored once that step has been read.
pub struct Copied {
    /// What tokens `from..position` have.
    from: usize,
    position: usize,
    run: Option<Run>,
    checkpoint: Option<Checkpoint>,
}

/// How a sequence begins.
pub struct Begun {
    /// Tokens whose state is in the caches.
    pub position: usize,
    /// Where its state is to be copied on the way.
    pub keep_at: BTreeSet<usize>,
    /// Whether any of the state is not what the model computes.
    pub lossy: bool,
    pub report: CacheReport,
}

impl Prefix {
    /// For sequences that begin with `caches`.
    pub fn new(options: &Options, caches: &[Cache], disk: Option<Disk>) -> Prefix {
        let by_checkpoint = by_checkpoint(caches);
        Prefix {
            tree: Tree::new(by_checkpoint),
            disk,
            budget: options.prefix_cache_bytes,
            by_checkpoint,
            every: options.checkpoint_every,
            stats: CacheStats { budget_bytes: options.prefix_cache_bytes, ..CacheStats::default() },
            changes: 0,
        }
    }

    pub fn is_on(&self) -> bool {
        self.budget > 0
    }

    pub fn by_checkpoint(&self) -> bool {
        self.by_checkpoint
    }

    /// The position that a sequence of `tokens` could resume from now. The last token is always computed: it gives the
    /// logits of the next.
    pub fn resumable(&self, tokens: &[u32]) -> usize {
        let limit = tokens.len() - 1;
        let on_disk = self.disk.as_ref().map_or(0, |disk| disk.find(tokens, limit).1);
        self.tree.resumable(&self.tree.find(tokens), limit).max(on_disk)
    }

    /// Puts what is stored of `tokens` into new `caches`.
    #[track_caller]
    pub fn begin(&mut self, request: &Request, tokens: &[u32], caches: &mut [Cache]) -> Begun {
        let limit = tokens.len() - 1;
        self.changes += 1;
        if !self.is_on() {
            return Begun::cold(MissReason::Disabled);
        }
        let wants_logits = request.wants_prompt_logits();
        let on_disk = self.disk.as_ref().map(|disk| disk.find(tokens, limit).0).unwrap_or_default();
        let from_disk = !wants_logits && self.restore(tokens, limit);
        let found = self.tree.find(tokens);
        let known = found.or_longer(&on_disk);
        let reusable = known.known.min(limit);
        let position = if wants_logits { 0 } else { self.tree.resumable(&found, limit) };
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
        let mut lossy = false;
        if position > 0 {
            let room = tokens.len() - position;
            let runs: Vec<(&Run, usize)> = self.tree.spans(&found, position).collect();
            let checkpoint = self.tree.checkpoint(&found, position);
            Run::resume(&runs, caches, room);
            checkpoint.into_iter().for_each(|checkpoint| checkpoint.resume(caches, room));
            lossy = runs.iter().any(|(run, _)| run.lossy) || checkpoint.is_some_and(|kept| kept.lossy);
        }
        // Not before the sequence has copies of what was read.
        self.stats.evictions += self.tree.shrink(self.budget);
        Begun { position, keep_at: self.keep_at(request, tokens.len(), position, reusable), lossy, report }
    }

    /// Brings in what the disk has more of `tokens` than memory; `false` if nothing.
    #[track_caller]
    fn restore(&mut self, tokens: &[u32], limit: usize) -> bool {
        let Some(disk) = &mut self.disk else { return false };
        let found = self.tree.find(tokens);
        let beyond = self.tree.resumable(&found, limit);
        let Some(restored) = disk.restore(tokens, limit, found.stored, beyond) else { return false };
        let arrays = restored.runs.iter().flat_map(|(_, run)| run.arrays());
        if let Err(error) = mlx::eval(arrays.chain(restored.checkpoint.iter().flat_map(Checkpoint::arrays))) {
            tracing::warn!("state from the disk cache does not fit into memory: {error}");
            return false;
        }
        let Restored { position, runs, checkpoint } = restored;
        let ends: Vec<usize> = runs.iter().skip(1).map(|(from, _)| *from).chain([position]).collect();
        for ((from, run), end) in runs.into_iter().zip(ends) {
            self.tree.insert(&tokens[..end], from, Some(run), None);
        }
        self.tree.insert(&tokens[..position], position, None, checkpoint)
    }

    /// Where the state of a sequence that resumes at `position` is worth a copy; `branch` is where it leaves others.
    fn keep_at(&self, request: &Request, length: usize, position: usize, branch: usize) -> BTreeSet<usize> {
        if !self.by_checkpoint {
            // Keys and values at the end hold those of every position before.
            return [request.prompt.len()].into();
        }
        let named = request.checkpoints.iter().copied();
        // Costs no step of its own; who names no position may still come back with more behind this prompt.
        let end = request.checkpoints.is_empty().then_some(request.prompt.len());
        let branch = (branch >= position + WORTH_SAVING).then_some(branch);
        let sparse = (1..).map(|i| i * self.every).take_while(|&at| self.every > 0 && at < length);
        let all = named.chain(end).chain(branch).chain(sparse);
        all.filter(|&at| at > position && at <= length).collect()
    }

    /// Copies what is not stored yet of the state behind `tokens`, which is what `caches` hold; `lossy` if that came of
    /// state that was. The copies are to be evaluated, and then [stored](Prefix::store). `None` if there is nothing to
    /// store, or no room for it.
    #[track_caller]
    pub fn copy(&self, tokens: &[u32], caches: &[Cache], lossy: bool) -> Option<Copied> {
        if !self.is_on() {
            return None;
        }
        let (found, position) = (self.tree.find(tokens), tokens.len());
        let from = found.stored;
        let run = (from < position).then(|| Run::copy(caches, from, position, lossy));
        let has_checkpoint = self.tree.checkpoint(&found, position).is_some();
        let checkpoint = (self.by_checkpoint && !has_checkpoint).then(|| Checkpoint::keep(caches, lossy));
        let copied = Copied { from, position, run, checkpoint };
        let bytes: usize = copied.arrays().map(Array::nbytes).sum();
        let something = copied.run.is_some() || copied.checkpoint.is_some();
        (something && bytes <= self.budget).then_some(copied)
    }

    /// Stores copies of the state behind the first of `tokens`.
    pub fn store(&mut self, tokens: &[u32], copied: Copied) {
        self.changes += 1;
        let Copied { from, position, run, checkpoint } = copied;
        self.tree.insert(&tokens[..position], from, run, checkpoint);
        self.save(&tokens[..position]);
        self.stats.evictions += self.tree.shrink(self.budget);
    }

    /// Has the disk keep what memory holds of `tokens`.
    fn save(&mut self, tokens: &[u32]) {
        let Some(disk) = &mut self.disk else { return };
        let found = self.tree.find(tokens);
        let runs: Vec<(&Run, usize)> = self.tree.spans(&found, tokens.len()).collect();
        if let Err(error) = disk.save(tokens, &runs, self.tree.checkpoint(&found, tokens.len())) {
            tracing::warn!("state is not written to the disk cache: {error}");
        }
    }

    /// Keeps at most `bytes` from here on, and never more than it was made for.
    pub fn limit(&mut self, bytes: usize) {
        // Not 0, which would mean that there is none.
        self.budget = bytes.max(1).min(self.stats.budget_bytes);
        let evicted = self.tree.shrink(self.budget);
        self.changes += evicted as u64;
        self.stats.evictions += evicted;
    }

    pub fn stats(&self) -> CacheStats {
        let (stored_tokens, entries) = self.tree.stored();
        let checkpoints = self.tree.checkpoints();
        let (disk_bytes, disk_files) = self.disk.as_ref().map_or((0, 0), Disk::held);
        CacheStats {
            bytes: self.tree.bytes(),
            stored_tokens,
            entries,
            checkpoints,
            disk_budget_bytes: self.disk.as_ref().map_or(0, Disk::budget),
            disk_bytes,
            disk_files,
            disk_rejected: self.disk.as_ref().map_or(0, |disk| disk.rejected),
            ..self.stats
        }
    }

    /// Forgets everything, then calls; files are removed on another thread.
    pub fn clear(&mut self, done: impl FnOnce() + Send + 'static) {
        self.changes += 1;
        self.tree.clear();
        match &mut self.disk {
            Some(disk) => disk.clear(done),
            None => done(),
        }
    }

    /// Forgets everything, because of a bug of ours.
    pub fn fail(&mut self) {
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

impl Begun {
    /// With nothing reused.
    pub fn cold(reason: MissReason) -> Begun {
        let miss = Some(Miss { reason, position: 0 });
        let report = CacheReport { miss, ..CacheReport::default() };
        Begun { position: 0, keep_at: BTreeSet::new(), lossy: false, report }
    }
}

impl Copied {
    pub fn position(&self) -> usize {
        self.position
    }

    /// To be evaluated before they are stored.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        let run = self.run.iter().flat_map(Run::arrays);
        run.chain(self.checkpoint.iter().flat_map(Checkpoint::arrays))
    }
}

/// Whether a part of the state can be resumed at checkpoints alone.
pub fn by_checkpoint(caches: &[Cache]) -> bool {
    caches.iter().any(|cache| cache.as_growing().is_none())
}

/// Why a sequence that resumes at `position` does not resume at `limit`: of several reasons what cost most tokens.
fn miss(found: &Found, position: usize, limit: usize) -> Option<Miss> {
    let (stored, known) = (found.stored.min(limit), found.known.min(limit));
    let differs = if found.differs { limit - known } else { 0 };
    let reasons = [
        (differs, MissReason::Differs, known),
        (known - stored, MissReason::Evicted, stored),
        (stored - position, MissReason::NoCheckpoint, position),
    ];
    let (cost, reason, position) = reasons.into_iter().max_by_key(|(cost, ..)| *cost)?;
    (cost > 0).then_some(Miss { reason, position })
}

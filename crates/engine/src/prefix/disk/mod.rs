//! Disk tier of the prefix cache: state in memory is also written to files, and read back after a
//! restart or eviction.
//!
//! A file stores a segment of a sequence: a span of keys and values, a snapshot after it, or both.
//! The index of all files is in memory. Every file is checked before use. The engine's thread reads
//! and writes no state files: it only copies bytes from and to arrays, in slices between steps.

mod atomic;
mod digests;
mod fingerprint;
mod folder;
mod index;
mod kv_quant;
mod load;
mod metadata;
mod reader;
mod segment;
mod write_job;
mod writer;

use std::{
    collections::{HashSet, VecDeque},
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

pub use self::folder::{StoredModel, clear, list};
pub(crate) use self::{atomic::write_atomic, fingerprint::Fingerprint, folder::LAYER_PROFILE_FILE};
use self::{
    index::Index,
    load::{ArrayBuilder, Load, LoadedState},
    reader::{ReadEvent, Reader},
    segment::Segment,
    write_job::WriteJob,
    writer::{Write, WriteEvent, Writer},
};
use super::{
    key::{OwnedPrefixKey, PrefixKey},
    state::{KvSpan, StateSnapshot},
    tree::{Lookup, RadixTree},
};
use crate::api::{CacheBits, DiskCache};

/// Files are read only if they store at least this many tokens more than memory does.
const MIN_GAIN: usize = 32;
/// Precision of a file's time of use.
const TOUCH_INTERVAL: Duration = Duration::from_secs(10);

/// The state in memory.
type Memory = RadixTree<KvSpan, StateSnapshot>;

pub(crate) struct DiskTier {
    folder: PathBuf,
    /// Hash and name.
    model: [String; 2],
    /// Format of compressed keys and values.
    bits: Option<CacheBits>,
    budget: usize,
    index: Index,
    writer: Writer,
    reader: Reader,
    /// Sequences whose state in memory is still to be written.
    pending: VecDeque<OwnedPrefixKey>,
    job: Option<WriteJob>,
    load: Option<Load>,
    /// Id of the last load.
    last_load: u64,
    /// Number of invalid files removed.
    pub rejected: usize,
}

impl DiskTier {
    /// Folder of files that apply to this model as computed by this engine.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Opens the state of the model with this fingerprint in `cache`, and removes invalid files.
    ///
    /// # Errors
    /// The folder cannot be created or read, or the model's files cannot be hashed.
    pub(crate) fn open(
        cache: &DiskCache,
        fingerprint: Fingerprint,
        needs_snapshots: bool,
    ) -> io::Result<DiskTier> {
        let model = fingerprint.finish()?;
        let folder = cache.folder.join(&model[0]);
        folder::create_folder(&folder)?;
        folder::remove_abandoned(&folder);
        folder::shrink(&cache.folder, cache.bytes as u64, &mut folder::Checked::new())?;
        let mut disk = DiskTier {
            writer: Writer::start(cache.folder.clone(), folder.clone(), cache.bytes as u64)?,
            reader: Reader::start()?,
            folder,
            model,
            bits: cache.bits,
            budget: cache.bytes,
            index: Index::new(needs_snapshots),
            pending: VecDeque::new(),
            job: None,
            load: None,
            last_load: 0,
            rejected: 0,
        };
        disk.read_index()?;
        Ok(disk)
    }

    fn read_index(&mut self) -> io::Result<()> {
        let mut segments = vec![];
        for entry in folder::entries(&self.folder)?.into_iter().filter(folder::Entry::is_finished) {
            match self.read_header(&entry.path) {
                Ok(segment) => segments.push((segment, entry)),
                Err(error) => self.reject(&entry.path, &error),
            }
        }
        // A segment begins after those it depends on.
        segments.sort_by_key(|(segment, _)| segment.metadata.from);
        for (segment, entry) in segments {
            if !self.index.insert(&segment, entry.path.clone(), true) {
                self.reject(&entry.path, "the file of the tokens before it is missing");
            }
        }
        self.remove_unreferenced();
        Ok(())
    }

    fn read_header(&self, path: &Path) -> Result<Segment, String> {
        let (segment, _) = Segment::open(path)?;
        if segment.metadata.fingerprint != self.model[0] {
            return Err("it belongs to another model".into());
        }
        if segment.metadata.bits != self.bits {
            return Err("its keys and values are in another format".into());
        }
        match path.file_name().is_some_and(|name| *name == *segment.name()) {
            true => Ok(segment),
            false => Err("its name does not match its contents".into()),
        }
    }

    /// The stored part of a sequence, and the last position up to `limit` that can be resumed.
    pub(crate) fn find(&self, key: PrefixKey, limit: usize) -> (Lookup, usize) {
        self.index.find(key, limit)
    }

    /// Whether a sequence could resume from the disk well past `in_memory`, at `limit` at most.
    pub(crate) fn has_more(&self, key: PrefixKey, limit: usize, in_memory: usize) -> bool {
        let (found, position) = self.find(key, limit);
        position >= in_memory + MIN_GAIN
            && self.index.files_of(&found, position).iter().all(|file| file.written.get())
    }

    /// The id of the load that is running.
    pub(crate) fn active_load(&self) -> Option<u64> {
        self.load.as_ref().map(|load| load.id)
    }

    pub(crate) fn is_writing(&self) -> bool {
        (self.job.is_some() || !self.pending.is_empty()) && self.writer.is_alive()
    }

    /// Whether state is being read or waits to be written.
    pub(crate) fn is_busy(&self) -> bool {
        self.load.is_some() || self.is_writing()
    }

    /// Starts to read the state from which a sequence can resume well past `in_memory`, at `limit`
    /// at most; memory stores the keys and values of its first `stored`. Returns the
    /// load's id, or `None` if there is nothing to read.
    pub(crate) fn start_load(
        &mut self,
        key: PrefixKey,
        limit: usize,
        stored: usize,
        in_memory: usize,
    ) -> Option<u64> {
        self.last_load += 1;
        let load = Load { id: self.last_load, key: key.into(), limit, position: 0, builder: None };
        self.request_load(load, stored, in_memory);
        self.active_load()
    }

    fn request_load(&mut self, mut load: Load, stored: usize, in_memory: usize) {
        self.apply_write_events();
        if self.has_more(load.key.as_key(), load.limit, in_memory) {
            let found;
            (found, load.position) = self.find(load.key.as_key(), load.limit);
            let requests = self.index.read_requests(&found, stored.min(load.position), load.position);
            self.reader.read(load.id, requests);
            self.load = Some(load);
        }
    }

    /// Turns state that was read into arrays, within `budget` bytes. Removes invalid files and
    /// retries without them; `memory` is the state in memory.
    ///
    /// # Errors
    /// Out of memory; the load is dropped.
    pub(crate) fn poll_load(&mut self, budget: &mut usize, memory: &Memory) -> mlx::Result<Vec<LoadedState>> {
        let mut loaded = vec![];
        while let Some(load) = &mut self.load {
            if let Some(builder) = &mut load.builder {
                match builder.advance(budget) {
                    Ok(true) => {}
                    Ok(false) => return Ok(loaded),
                    Err(error) => {
                        self.load = None;
                        return Err(error);
                    }
                }
                let built = load.builder.take();
                loaded.extend(built.map(|built| built.into_state(load.key.as_key().first(load.position))));
            }
            match self.reader.take(load.id) {
                Ok(None) => return Ok(loaded),
                Ok(Some(ReadEvent::Section(section, raw))) => {
                    load.builder = Some(ArrayBuilder::new(section, raw));
                }
                Ok(Some(ReadEvent::Failed(path, error))) => self.retry_load(&path, &error, memory),
                Ok(Some(ReadEvent::Done)) | Err(()) => self.load = None,
            }
        }
        Ok(loaded)
    }

    /// Restarts the load without a file that could not be read.
    fn retry_load(&mut self, path: &Path, error: &str, memory: &Memory) {
        match path.exists() {
            true => self.reject(path, error),
            // Another server may have evicted it.
            false => self.unindex(&[path.to_owned()].into()),
        }
        if let Some(load) = self.load.take() {
            let found = memory.find(load.key.as_key());
            let in_memory = memory.resumable(&found, load.limit);
            self.request_load(load, found.stored, in_memory);
        }
    }

    /// Marks the files of a sequence's first `position` tokens as used.
    pub(crate) fn touch(&mut self, key: PrefixKey, position: usize) {
        self.apply_write_events();
        let files = self.index.touch(key, position);
        let is_due = |time: Option<Instant>| time.is_none_or(|time| time.elapsed() > TOUCH_INTERVAL);
        if files.iter().any(|file| file.written.get() && is_due(file.touched.get())) {
            files.iter().for_each(|file| file.touched.set(Some(Instant::now())));
            self.writer.touch(files.iter().map(|file| file.path.clone()).collect());
        }
    }

    /// Schedules the state of a sequence in memory for writing.
    pub(crate) fn enqueue_write(&mut self, key: PrefixKey) {
        if let Some(last) = self.pending.back_mut().filter(|last| key.starts_with(&last.as_key())) {
            *last = key.into();
        } else {
            self.pending.push_back(key.into());
        }
    }

    /// Hands pending state in `memory` to the writer, within `budget` bytes and while the writer's
    /// queue accepts more.
    ///
    /// # Errors
    /// Evaluating the arrays failed.
    #[track_caller]
    pub(crate) fn advance_writes(&mut self, memory: &Memory, budget: &mut usize) -> mlx::Result<()> {
        self.apply_write_events();
        while *budget > 0 && self.is_writing() {
            let Some(mut job) = self.job.take().or_else(|| self.next_job(memory)) else {
                self.pending.pop_front();
                continue;
            };
            let done = match self.writer.accepts(job.bytes()) {
                true => job.advance(budget).inspect_err(|_| _ = self.pending.pop_front())?,
                false => false,
            };
            if !done {
                self.job = Some(job);
                return Ok(());
            }
            let (segment, payload) = job.into_parts();
            let path = self.folder.join(segment.name());
            let (found, _) = self.find(segment.key(), 0);
            let ancestors = self.index.files_of(&found, segment.metadata.from);
            let ancestors = ancestors.iter().map(|file| file.path.clone()).collect();
            if self.index.insert(&segment, path.clone(), false) {
                self.writer.write(Write { path, segment, payload, ancestors });
            }
        }
        Ok(())
    }

    /// The next segment of the oldest pending sequence; `None` if everything of it that is in
    /// `memory` is written.
    #[track_caller]
    fn next_job(&self, memory: &Memory) -> Option<WriteJob> {
        let key = self.pending.front()?.as_key();
        let (in_memory, (on_disk, _)) = (memory.find(key), self.find(key, 0));
        let mut end = 0;
        for (span, length) in memory.spans(&in_memory, key.tokens.len()) {
            let start = end;
            end += length;
            let from = on_disk.stored.max(start).min(end);
            let snapshot = memory.snapshot(&in_memory, end);
            let snapshot = snapshot.filter(|_| !self.index.has_snapshot(&on_disk, end));
            if from == end && snapshot.is_none() {
                continue;
            }
            let span = (from < end).then(|| span.part(from - start, length));
            let [hash, label] = &self.model;
            let segment =
                Segment::new([hash, label], self.bits, key.first(end), from, span.as_ref(), snapshot);
            let bytes: usize = segment.bytes().iter().sum();
            return (bytes <= self.budget).then(|| WriteJob::new(segment, span, snapshot.cloned()));
        }
        None
    }

    /// Removes all of this model's files, then calls `done`.
    pub(crate) fn clear(&mut self, done: impl FnOnce() + Send + 'static) {
        (self.load, self.job) = (None, None);
        self.pending.clear();
        self.index.clear();
        self.writer.clear(done);
    }

    /// Bytes of state, and number of files.
    pub(crate) fn usage(&self) -> (usize, usize) {
        self.index.usage()
    }

    pub(crate) fn budget_bytes(&self) -> usize {
        self.budget
    }

    /// Updates the index from the writer's events.
    fn apply_write_events(&mut self) {
        let mut removed = HashSet::new();
        for event in self.writer.events() {
            match event {
                WriteEvent::Written(path) => {
                    removed.remove(&path);
                    self.index.set_written(&path);
                }
                WriteEvent::Removed(paths) => removed.extend(paths),
            }
        }
        self.unindex(&removed);
    }

    fn reject(&mut self, path: &Path, error: &str) {
        tracing::warn!("{} is removed from the disk cache: {error}", path.display());
        self.rejected += 1;
        self.writer.remove(path.to_owned());
        self.unindex(&[path.to_owned()].into());
    }

    fn unindex(&mut self, removed: &HashSet<PathBuf>) {
        if !removed.is_empty() {
            self.index.remove(removed);
            self.remove_unreferenced();
        }
    }

    /// Removes files that are not in the index: those before them are missing, or they are
    /// duplicates.
    fn remove_unreferenced(&mut self) {
        for path in self.index.take_unreferenced() {
            self.writer.remove(path);
        }
    }
}

/// Reads and checks a whole state file: header, span and snapshot.
#[cfg(any(test, feature = "fuzzing"))]
pub fn check_file(path: &Path) -> Result<(), String> {
    let (segment, mut arrays) = Segment::open(path)?;
    arrays.span(&segment)?;
    if segment.has_snapshot() {
        arrays.snapshot(&segment)?;
    }
    match segment.header_bytes() as usize + segment.bytes().iter().sum::<usize>() < segment.position() {
        true => Err(format!("{} has fewer bytes than tokens", segment.name())),
        false => Ok(()),
    }
}

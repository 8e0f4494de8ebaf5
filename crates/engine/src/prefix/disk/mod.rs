//! The disk tier: what the prefix cache stores in memory is written behind, and read back after a restart or when it has
//! had to make room. A file is one piece of a sequence: a run of tokens, a checkpoint behind it, or both; the index of
//! what is in which file is in memory. Nothing is used that is not checked, and the engine's thread neither reads nor writes
//! files of state: it copies bytes from and to arrays, in slices between steps.

mod digests;
mod file;
mod fingerprint;
mod folder;
mod pack;
mod reader;
mod restore;
mod saving;
mod writer;

use std::{
    cell::Cell,
    collections::{HashMap, HashSet, VecDeque},
    io,
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant},
};

pub use self::fingerprint::Fingerprint;
pub use self::folder::{LAYER_PROFILE_FILE, StoredModel, clear, list, write as write_atomic};
use self::{
    file::Piece,
    reader::{Read, Reader, Section, Wanted},
    restore::{Building, Restore, Restored},
    saving::Saving,
    writer::{Report, Write, Writer},
};
use super::{
    state::{Checkpoint, Run},
    tree::{Found, Span, Tree, Weight},
};
use crate::{CacheBits, DiskCache};

/// Tokens more than memory holds that are worth reading files for.
const WORTH_READING: usize = 32;
/// A file's time of use need not be more exact.
const TOUCH_EVERY: Duration = Duration::from_secs(10);

pub struct Disk {
    folder: PathBuf,
    /// Hash and name.
    model: [String; 2],
    /// What keys and values are packed in.
    bits: Option<CacheBits>,
    budget: usize,
    tree: Tree<Part, End>,
    /// Of the tree's, by path.
    files: HashMap<PathBuf, Rc<Stored>>,
    writer: Writer,
    reader: Reader,
    /// Sequences whose state in memory is still to be written.
    pending: VecDeque<Vec<u32>>,
    saving: Option<Saving>,
    restore: Option<Restore>,
    /// Id of the next restore.
    next: u64,
    /// Files that were removed because they did not hold what they should.
    pub rejected: usize,
}

/// A file of state.
struct Stored {
    path: PathBuf,
    /// Position of the first token whose keys and values it has.
    from: usize,
    bytes: usize,
    /// Whether it is there already.
    written: Cell<bool>,
    /// When it was last used by this engine, if it was.
    touched: Cell<Option<Instant>>,
}

/// Some of the keys and values in a file.
struct Part {
    file: Rc<Stored>,
    /// Of its tokens.
    from: usize,
    tokens: usize,
    bytes_per_token: usize,
}

/// The checkpoint in a file.
struct End {
    file: Rc<Stored>,
    bytes: usize,
}

impl Disk {
    /// Where what belongs to this model alone, as computed here, is kept.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What `place` holds for the model of this fingerprint. Broken files are removed.
    ///
    /// # Errors
    /// The folder cannot be made or read, or the model's files not be hashed.
    pub fn open(place: &DiskCache, fingerprint: Fingerprint, needs_snapshots: bool) -> io::Result<Disk> {
        let model = fingerprint.finish()?;
        let folder = place.folder.join(&model[0]);
        folder::create_folder(&folder)?;
        folder::tidy(&folder);
        folder::shrink(&place.folder, place.bytes as u64, &mut folder::Checked::new())?;
        let writer = Writer::start(place.folder.clone(), folder.clone(), place.bytes as u64)?;
        let (tree, files) = (Tree::new(needs_snapshots), HashMap::new());
        let (bits, budget) = (place.bits, place.bytes);
        let mut disk = Disk {
            folder,
            model,
            bits,
            budget,
            tree,
            files,
            writer,
            reader: Reader::start()?,
            pending: VecDeque::new(),
            saving: None,
            restore: None,
            next: 0,
            rejected: 0,
        };
        disk.read_index()?;
        Ok(disk)
    }

    fn read_index(&mut self) -> io::Result<()> {
        let mut pieces = vec![];
        for entry in folder::entries(&self.folder)?.into_iter().filter(folder::Entry::is_finished) {
            match self.read_header(&entry.path) {
                Ok(piece) => pieces.push((piece, entry)),
                Err(error) => self.reject(&entry.path, &error),
            }
        }
        // What a piece builds on begins before it.
        pieces.sort_by_key(|(piece, _)| piece.description.from);
        for (piece, entry) in pieces {
            if !self.index(&piece, entry.path.clone(), true) {
                self.reject(&entry.path, "what it builds on is gone");
            }
        }
        self.drop_unused();
        Ok(())
    }

    fn read_header(&self, path: &Path) -> Result<Piece, String> {
        let (piece, _) = Piece::open(path)?;
        if piece.description.fingerprint != self.model[0] {
            return Err("it is another model's".into());
        }
        if piece.description.bits != self.bits {
            return Err("its keys and values are in another format".into());
        }
        match path.file_name().is_some_and(|name| *name == *piece.name()) {
            true => Ok(piece),
            false => Err("its name is another piece's".into()),
        }
    }

    /// `false` if the state that it builds on is not stored.
    fn index(&mut self, piece: &Piece, path: PathBuf, written: bool) -> bool {
        let (from, tokens) = (piece.description.from, piece.position() - piece.description.from);
        let [run, end] = piece.bytes();
        let (bytes, touched) = (run + end, Cell::new((!written).then(Instant::now)));
        let file = Rc::new(Stored { path: path.clone(), from, bytes, written: Cell::new(written), touched });
        let part = Part { file: file.clone(), from: 0, tokens, bytes_per_token: run / tokens.max(1) };
        let end = piece.has_checkpoint().then(|| End { file: file.clone(), bytes: end });
        let stored = self.tree.insert(&piece.tokens, from, (tokens > 0).then_some(part), end);
        if stored {
            self.files.insert(path, file);
        }
        stored
    }

    /// How far a sequence is known, and the last position at most `limit` from which it could go on.
    pub fn find(&self, tokens: &[u32], limit: usize) -> (Found, usize) {
        let found = self.tree.find(tokens);
        let position = self.tree.resumable(&found, limit);
        (found, position)
    }

    /// Whether it has what lets a sequence of `tokens` go on, at `limit` at most, well behind `beyond`.
    pub fn has_more(&self, tokens: &[u32], limit: usize, beyond: usize) -> bool {
        let (found, position) = self.find(tokens, limit);
        position >= beyond + WORTH_READING
            && self.chain(&found, position).iter().all(|file| file.written.get())
    }

    /// What is being read.
    pub fn reading(&self) -> Option<u64> {
        self.restore.as_ref().map(|restore| restore.id)
    }

    pub fn is_saving(&self) -> bool {
        (self.saving.is_some() || !self.pending.is_empty()) && self.writer.is_alive()
    }

    /// Whether something waits for a disk.
    pub fn is_busy(&self) -> bool {
        self.restore.is_some() || self.is_saving()
    }

    /// Begins to read what lets a sequence of `tokens` go on, at `limit` at most, well behind `beyond`; memory has the keys
    /// and values of its first `have`. `None` if there is nothing to read.
    pub fn start_reading(&mut self, tokens: &[u32], limit: usize, have: usize, beyond: usize) -> Option<u64> {
        self.next += 1;
        let restore = Restore { id: self.next, tokens: tokens.to_vec(), limit, position: 0, building: None };
        self.read(restore, have, beyond);
        self.reading()
    }

    fn read(&mut self, mut restore: Restore, have: usize, beyond: usize) {
        self.hear();
        if self.has_more(&restore.tokens, restore.limit, beyond) {
            let found;
            (found, restore.position) = self.find(&restore.tokens, restore.limit);
            let wanted = self.wanted(&found, have.min(restore.position), restore.position);
            self.reader.read(restore.id, wanted);
            self.restore = Some(restore);
        }
    }

    /// What files have of tokens `from..position`, and of a checkpoint behind them.
    fn wanted(&self, found: &Found, from: usize, position: usize) -> Vec<Wanted> {
        let mut wanted: Vec<Wanted> = vec![];
        let mut end = 0;
        for (part, tokens) in self.tree.spans(found, position) {
            let start = end;
            end += tokens;
            if end <= from {
                continue;
            }
            let skipped = from.saturating_sub(start);
            let section = Section::Run { first: part.from + skipped, start: start + skipped, end };
            match wanted.last_mut().map(|last| (&last.path, &mut last.section)) {
                // What two nodes have of one file is read once.
                Some((path, Section::Run { first, start, end: last }))
                    if *path == part.file.path && *first + *last - *start == part.from + skipped =>
                {
                    *last = end;
                }
                _ => wanted.push(Wanted { path: part.file.path.clone(), from: part.file.from, section }),
            }
        }
        wanted.extend(self.tree.checkpoint(found, position).map(|end| Wanted {
            path: end.file.path.clone(),
            from: end.file.from,
            section: Section::Checkpoint,
        }));
        wanted
    }

    /// State that was read and made into arrays, of which at most `left` bytes are copied. Broken files are removed on the
    /// way, and what is left is tried; `memory` says what else there is.
    ///
    /// # Errors
    /// There is no memory for it: it is not read any further.
    pub fn take_read(
        &mut self,
        left: &mut usize,
        memory: &Tree<Run, Checkpoint>,
    ) -> mlx::Result<Vec<Restored>> {
        let mut restored = vec![];
        while let Some(restore) = &mut self.restore {
            if let Some(building) = &mut restore.building {
                match building.advance(left) {
                    Ok(true) => {}
                    Ok(false) => return Ok(restored),
                    Err(error) => {
                        self.restore = None;
                        return Err(error);
                    }
                }
                let built = restore.building.take();
                restored.extend(built.map(|built| built.into_restored(&restore.tokens, restore.position)));
            }
            match self.reader.take(restore.id) {
                Ok(None) => return Ok(restored),
                Ok(Some(Read::Section(section, raw))) => restore.building = Some(Building::new(section, raw)),
                Ok(Some(Read::Failed(path, error))) => self.read_again(&path, &error, memory),
                Ok(Some(Read::Done)) | Err(()) => self.restore = None,
            }
        }
        Ok(restored)
    }

    /// Without a file that could not be read, whatever else lets the sequence go on.
    fn read_again(&mut self, path: &Path, error: &str, memory: &Tree<Run, Checkpoint>) {
        match path.exists() {
            true => self.reject(path, error),
            // Another server may have made room.
            false => self.forget(&[path.to_owned()].into()),
        }
        if let Some(restore) = self.restore.take() {
            let found = memory.find(&restore.tokens);
            let beyond = memory.resumable(&found, restore.limit);
            self.read(restore, found.stored, beyond);
        }
    }

    /// Counts as used what a sequence's first `position` tokens have here.
    pub fn touch(&mut self, tokens: &[u32], position: usize) {
        self.hear();
        let found = self.tree.find(tokens);
        self.tree.touch(&found, position);
        let files = self.chain(&found, position);
        let due = |file: &Rc<Stored>| {
            file.written.get() && file.touched.get().is_none_or(|time| time.elapsed() > TOUCH_EVERY)
        };
        if files.iter().any(due) {
            files.iter().for_each(|file| file.touched.set(Some(Instant::now())));
            self.writer.touch(files.iter().map(|file| file.path.clone()).collect());
        }
    }

    /// Notes that memory's state of `tokens` is to be written.
    pub fn save(&mut self, tokens: &[u32]) {
        if let Some(last) = self.pending.back_mut().filter(|last| tokens.starts_with(last)) {
            *last = tokens.to_vec();
        } else {
            self.pending.push_back(tokens.to_vec());
        }
    }

    /// Hands over what is to be written of what `memory` holds, of which at most `left` bytes are copied: nothing while too
    /// much waits for the disk already.
    ///
    /// # Errors
    /// Evaluating the arrays failed.
    #[track_caller]
    pub fn save_some(&mut self, memory: &Tree<Run, Checkpoint>, left: &mut usize) -> mlx::Result<()> {
        self.hear();
        while *left > 0 && self.is_saving() {
            let Some(mut saving) = self.saving.take().or_else(|| self.next_piece(memory)) else {
                self.pending.pop_front();
                continue;
            };
            let done = match self.writer.has_room(saving.bytes()) {
                true => saving.advance(left).inspect_err(|_| _ = self.pending.pop_front())?,
                false => false,
            };
            if !done {
                self.saving = Some(saving);
                return Ok(());
            }
            let (piece, contents) = saving.into_parts();
            let from = piece.description.from;
            let path = self.folder.join(piece.name());
            let found = self.tree.find(&piece.tokens);
            let above = self.chain(&found, from).iter().map(|file| file.path.clone()).collect();
            if self.index(&piece, path.clone(), false) {
                self.writer.write(Write { path, piece, contents, above });
            }
        }
        Ok(())
    }

    /// The next piece of the sequence that has waited longest, as its state lies in `memory`; `None` if it is written, or
    /// not in memory any more.
    #[track_caller]
    fn next_piece(&self, memory: &Tree<Run, Checkpoint>) -> Option<Saving> {
        let tokens = self.pending.front()?;
        let (held, own) = (memory.find(tokens), self.tree.find(tokens));
        let mut end = 0;
        for (run, length) in memory.spans(&held, tokens.len()) {
            let start = end;
            end += length;
            let from = own.stored.max(start).min(end);
            let checkpoint = memory.checkpoint(&held, end);
            let checkpoint = checkpoint.filter(|_| self.tree.checkpoint(&own, end).is_none());
            if from == end && checkpoint.is_none() {
                continue;
            }
            let run = (from < end).then(|| run.part(from - start, length));
            let [hash, label] = &self.model;
            let piece = Piece::of([hash, label], self.bits, &tokens[..end], from, run.as_ref(), checkpoint);
            let bytes: usize = piece.bytes().iter().sum();
            return (bytes <= self.budget).then(|| Saving::new(piece, run, checkpoint.cloned()));
        }
        None
    }

    /// Removes all of this model's files, then calls.
    pub fn clear(&mut self, done: impl FnOnce() + Send + 'static) {
        (self.restore, self.saving) = (None, None);
        self.pending.clear();
        self.tree.clear();
        self.files.clear();
        self.writer.clear(done);
    }

    /// Bytes of state, and files.
    pub fn held(&self) -> (usize, usize) {
        (self.files.values().map(|file| file.bytes).sum(), self.files.len())
    }

    pub fn budget(&self) -> usize {
        self.budget
    }

    /// The files of the first `length` tokens, from the first on.
    fn chain(&self, found: &Found, length: usize) -> Vec<Rc<Stored>> {
        let parts = self.tree.spans(found, length).map(|(part, _)| &part.file);
        let mut files: Vec<Rc<Stored>> = vec![];
        for file in parts.chain(self.tree.checkpoint(found, length).map(|end| &end.file)) {
            if files.last().is_none_or(|last| !Rc::ptr_eq(last, file)) {
                files.push(file.clone());
            }
        }
        files
    }

    /// Takes in what the writer has done.
    fn hear(&mut self) {
        let mut gone = HashSet::new();
        for report in self.writer.reports() {
            match report {
                Report::Written(path) => {
                    gone.remove(&path);
                    self.files.get(&path).into_iter().for_each(|file| file.written.set(true));
                }
                Report::Gone(paths) => gone.extend(paths),
            }
        }
        self.forget(&gone);
    }

    fn reject(&mut self, path: &Path, error: &str) {
        tracing::warn!("{} is removed from the disk cache: {error}", path.display());
        self.rejected += 1;
        self.writer.remove(path.to_owned());
        self.forget(&[path.to_owned()].into());
    }

    /// Removes files that the index does not refer to: what they build on is gone, or another file has the same.
    fn drop_unused(&mut self) {
        for (path, _) in self.files.extract_if(|_, file| Rc::strong_count(file) == 1) {
            self.writer.remove(path);
        }
    }

    fn forget(&mut self, gone: &HashSet<PathBuf>) {
        if !gone.is_empty() {
            let stays = |file: &Rc<Stored>| !gone.contains(&file.path);
            self.tree.retain(|part| stays(&part.file), |end| stays(&end.file));
            self.files.retain(|path, _| !gone.contains(path));
            self.drop_unused();
        }
    }
}

/// Reads a state file completely: header, run and checkpoint.
#[cfg(any(test, feature = "fuzzing"))]
pub fn check_file(path: &Path) -> Result<(), String> {
    let (piece, mut arrays) = Piece::open(path)?;
    arrays.run(&piece)?;
    if piece.has_checkpoint() {
        arrays.checkpoint(&piece)?;
    }
    match piece.header_bytes() as usize + piece.bytes().iter().sum::<usize>() < piece.position() {
        true => Err(format!("{} holds fewer bytes than tokens", piece.name())),
        false => Ok(()),
    }
}

impl Span for Part {
    fn bytes(&self) -> usize {
        self.tokens * self.bytes_per_token
    }

    fn split(self, at: usize) -> [Part; 2] {
        let Part { file, from, tokens, bytes_per_token } = self;
        let part = |from, tokens| Part { file: file.clone(), from, tokens, bytes_per_token };
        [part(from, at), part(from + at, tokens - at)]
    }
}

impl Weight for End {
    fn bytes(&self) -> usize {
        self.bytes
    }
}

//! The disk tier: what the prefix cache stores in memory is written behind, and read back after a restart or when it has
//! had to make room. A file is one piece of a sequence: a run of tokens, a checkpoint behind it, or both; the index of
//! what is in which file is in memory. Nothing is used that is not checked, and the engine's thread never writes state.

mod file;
mod fingerprint;
mod folder;
mod pack;
mod writer;

use std::{
    cell::Cell,
    collections::{HashMap, HashSet},
    io,
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant},
};

pub use self::folder::{StoredModel, clear, list, write as write_whole};
use self::{
    file::Piece,
    writer::{Report, Write, Writer},
};
use super::{
    state::{Checkpoint, Run},
    tree::{Found, Span, Tree, Weight},
};
use crate::{CacheBits, DiskCache, Options};

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

/// State that was read back, of what memory lacked of the tokens up to `position`.
pub struct Restored {
    pub position: usize,
    /// Each with the position of its first token, one behind the other: as they lay in files, not joined.
    pub runs: Vec<(usize, Run)>,
    pub checkpoint: Option<Checkpoint>,
}

impl Disk {
    /// Where what belongs to this model alone, as computed here, is kept.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What `place` holds for this model, computed as `options` say by this program. Broken files are removed.
    ///
    /// # Errors
    /// The folder cannot be made or read, or the model's files not be hashed.
    pub fn open(
        place: &DiskCache,
        checkpoint: &crate::Checkpoint,
        options: &Options,
        by_checkpoint: bool,
    ) -> io::Result<Option<Disk>> {
        let found = fingerprint::fingerprint(checkpoint, options, place.bits)?;
        let Some((hash, label)) = found else { return Ok(None) };
        Disk::open_model(place, [hash, label], by_checkpoint).map(Some)
    }

    fn open_model(place: &DiskCache, model: [String; 2], by_checkpoint: bool) -> io::Result<Disk> {
        let folder = place.folder.join(&model[0]);
        folder::create_folder(&folder)?;
        folder::tidy(&folder);
        folder::shrink(&place.folder, place.bytes as u64)?;
        let writer = Writer::start(place.folder.clone(), folder.clone(), place.bytes as u64)?;
        let (tree, files) = (Tree::new(by_checkpoint), HashMap::new());
        let (bits, budget) = (place.bits, place.bytes);
        let mut disk = Disk { folder, model, bits, budget, tree, files, writer, rejected: 0 };
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

    /// Reads back what lets a sequence of `tokens` go on, at `limit` at most, well behind `beyond`; memory has the keys
    /// and values of its first `have`. Broken files are removed on the way, and what is left is tried.
    #[track_caller]
    pub fn restore(&mut self, tokens: &[u32], limit: usize, have: usize, beyond: usize) -> Option<Restored> {
        self.hear();
        loop {
            let (found, position) = self.find(tokens, limit);
            if position < beyond + WORTH_READING {
                return None;
            }
            if self.chain(&found, position).iter().any(|file| !file.written.get()) {
                return None;
            }
            match self.read(&found, have.min(position), position) {
                Ok(restored) => return Some(restored),
                // Another server may have made room.
                Err((path, _)) if !path.exists() => self.forget(&[path].into()),
                Err((path, error)) => self.reject(&path, &error),
            }
        }
    }

    fn read(&self, found: &Found, from: usize, position: usize) -> Result<Restored, (PathBuf, String)> {
        // Files, which of their tokens are wanted, and where the first of those stands.
        let mut wanted: Vec<(Rc<Stored>, [usize; 2], usize)> = vec![];
        let mut end = 0;
        for (part, tokens) in self.tree.spans(found, position) {
            let start = end;
            end += tokens;
            let own = [part.from + from.saturating_sub(start), part.from + tokens];
            match wanted.last_mut() {
                _ if end <= from => {}
                Some((file, range, _)) if Rc::ptr_eq(file, &part.file) && range[1] == own[0] => {
                    range[1] = own[1]
                }
                _ => wanted.push((part.file.clone(), own, start.max(from))),
            }
        }
        let failed = |file: &Stored, error| (file.path.clone(), error);
        let read = |(file, range, start): (Rc<Stored>, _, _)| {
            let run = open(&file).and_then(|(piece, mut arrays)| arrays.run(&piece));
            let run = run.map_err(|error| failed(&file, error))?;
            Ok((start, Run::joined(&[(&run, range)])))
        };
        let runs = wanted.into_iter().map(read).collect::<Result<_, _>>()?;
        let checkpoint = self.tree.checkpoint(found, position).map(|end| {
            let read = open(&end.file).and_then(|(piece, mut arrays)| arrays.checkpoint(&piece));
            read.map_err(|error| failed(&end.file, error))
        });
        Ok(Restored { position, runs, checkpoint: checkpoint.transpose()? })
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

    /// Has written what is not on the disk yet of `tokens`, which memory holds whole: `runs` and how many tokens of each
    /// count, and perhaps a checkpoint at the end. Nothing happens if too much waits already.
    ///
    /// # Errors
    /// Evaluating the arrays failed.
    #[track_caller]
    pub fn save(
        &mut self,
        tokens: &[u32],
        runs: &[(&Run, usize)],
        checkpoint: Option<&Checkpoint>,
    ) -> mlx::Result<()> {
        self.hear();
        let (found, position) = (self.tree.find(tokens), tokens.len());
        let from = found.stored;
        let checkpoint = checkpoint.filter(|_| self.tree.checkpoint(&found, position).is_none());
        if from == position && checkpoint.is_none() {
            return Ok(());
        }
        let mut start = 0;
        let mut missing = vec![];
        for &(run, length) in runs {
            if start + length > from {
                missing.push((run, [from.saturating_sub(start), length]));
            }
            start += length;
        }
        let weight = |&(run, [a, b]): &(&Run, [usize; 2])| run.bytes_of(b - a);
        let bytes = missing.iter().map(weight).sum::<usize>() + checkpoint.map_or(0, Weight::bytes);
        if start < position || bytes > self.budget || !self.writer.has_room(bytes) {
            return Ok(());
        }
        let run = (from < position).then(|| Run::joined(&missing));
        let [hash, label] = &self.model;
        let (piece, contents) = Piece::of([hash, label], self.bits, tokens, from, run.as_ref(), checkpoint)?;
        let path = self.folder.join(piece.name());
        let above = self.chain(&found, from).iter().map(|file| file.path.clone()).collect();
        if self.index(&piece, path.clone(), false) {
            self.writer.write(Write { path, piece, contents, above });
        }
        Ok(())
    }

    /// Removes all of this model's files, then calls.
    pub fn clear(&mut self, done: impl FnOnce() + Send + 'static) {
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
pub fn read_whole(path: &Path) -> Result<(), String> {
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

fn open(file: &Stored) -> Result<(Piece, file::Arrays), String> {
    let (piece, arrays) = Piece::open(&file.path)?;
    // Somebody may have put another file there since the index was made.
    let same = file.path.file_name().is_some_and(|name| *name == *piece.name())
        && piece.description.from == file.from;
    if same { Ok((piece, arrays)) } else { Err("it is another piece".into()) }
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

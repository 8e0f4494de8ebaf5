//! Index of one model's state files: which file stores which part of which sequence.

use std::{
    cell::Cell,
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    rc::Rc,
    time::Instant,
};

use super::{
    reader::{ReadRequest, Section},
    segment::Segment,
};
use crate::prefix::{
    key::PrefixKey,
    tree::{HeapSize, Lookup, RadixTree, Span},
};

pub(super) struct Index {
    tree: RadixTree<FileSpan, FileSnapshot>,
    /// The files that the tree refers to, by path.
    files: HashMap<PathBuf, Rc<StateFile>>,
}

pub(super) struct StateFile {
    pub path: PathBuf,
    /// Position of the first token whose keys and values it stores.
    from: usize,
    bytes: usize,
    /// Whether the writer has finished it.
    pub written: Cell<bool>,
    /// Last time it was marked as used by this engine.
    pub touched: Cell<Option<Instant>>,
}

/// Part of the keys and values in a file.
struct FileSpan {
    file: Rc<StateFile>,
    /// First token, counted from the file's first.
    from: usize,
    tokens: usize,
    bytes_per_token: usize,
}

/// The snapshot in a file.
struct FileSnapshot {
    file: Rc<StateFile>,
    bytes: usize,
}

impl Index {
    pub(super) fn new(needs_snapshots: bool) -> Index {
        Index { tree: RadixTree::new(needs_snapshots), files: HashMap::new() }
    }

    /// Adds a file; `false` if the state before it is not in the index.
    pub(super) fn insert(&mut self, segment: &Segment, path: PathBuf, written: bool) -> bool {
        let (from, tokens) = (segment.metadata.from, segment.position() - segment.metadata.from);
        let [span_bytes, snapshot_bytes] = segment.bytes();
        let file = Rc::new(StateFile {
            path: path.clone(),
            from,
            bytes: span_bytes + snapshot_bytes,
            written: Cell::new(written),
            touched: Cell::new((!written).then(Instant::now)),
        });
        let bytes_per_token = span_bytes / tokens.max(1);
        let span = FileSpan { file: file.clone(), from: 0, tokens, bytes_per_token };
        let span = (tokens > 0).then_some(span);
        let snapshot =
            segment.has_snapshot().then(|| FileSnapshot { file: file.clone(), bytes: snapshot_bytes });
        let inserted = self.tree.insert(segment.key(), from, span, snapshot);
        if inserted {
            self.files.insert(path, file);
        }
        inserted
    }

    /// The stored part of a sequence, and the last position up to `limit` that can be resumed.
    pub(super) fn find(&self, key: PrefixKey, limit: usize) -> (Lookup, usize) {
        let found = self.tree.find(key);
        let position = self.tree.resumable(&found, limit);
        (found, position)
    }

    pub(super) fn has_snapshot(&self, found: &Lookup, position: usize) -> bool {
        self.tree.snapshot(found, position).is_some()
    }

    /// The files of the first `length` tokens, in order of tokens.
    pub(super) fn files_of(&self, found: &Lookup, length: usize) -> Vec<Rc<StateFile>> {
        let spans = self.tree.spans(found, length).map(|(span, _)| &span.file);
        let mut files: Vec<Rc<StateFile>> = vec![];
        for file in spans.chain(self.tree.snapshot(found, length).map(|snapshot| &snapshot.file)) {
            if files.last().is_none_or(|last| !Rc::ptr_eq(last, file)) {
                files.push(file.clone());
            }
        }
        files
    }

    /// Sections to read for the keys and values of tokens `from..position` and the snapshot after
    /// them.
    pub(super) fn read_requests(&self, found: &Lookup, from: usize, position: usize) -> Vec<ReadRequest> {
        let mut requests: Vec<ReadRequest> = vec![];
        let mut end = 0;
        for (span, tokens) in self.tree.spans(found, position) {
            let start = end;
            end += tokens;
            if end <= from {
                continue;
            }
            let skipped = from.saturating_sub(start);
            let section = Section::Span { first: span.from + skipped, start: start + skipped, end };
            match requests.last_mut().map(|last| (&last.path, &mut last.section)) {
                // Adjacent spans of one file are read once.
                Some((path, Section::Span { first, start, end: last }))
                    if *path == span.file.path && *first + *last - *start == span.from + skipped =>
                {
                    *last = end;
                }
                _ => requests.push(span.file.request(section)),
            }
        }
        let snapshot = self.tree.snapshot(found, position);
        requests.extend(snapshot.map(|snapshot| snapshot.file.request(Section::Snapshot)));
        requests
    }

    /// Marks the first `position` tokens as used and returns their files.
    pub(super) fn touch(&mut self, key: PrefixKey, position: usize) -> Vec<Rc<StateFile>> {
        let found = self.tree.find(key);
        self.tree.touch(&found, position);
        self.files_of(&found, position)
    }

    pub(super) fn set_written(&mut self, path: &Path) {
        self.files.get(path).into_iter().for_each(|file| file.written.set(true));
    }

    /// Removes files, and all state that depends on them.
    pub(super) fn remove(&mut self, paths: &HashSet<PathBuf>) {
        let keep = |file: &Rc<StateFile>| !paths.contains(&file.path);
        self.tree.retain(|span| keep(&span.file), |snapshot| keep(&snapshot.file));
        self.files.retain(|path, _| !paths.contains(path));
    }

    /// Removes and returns the files that the tree does not refer to.
    pub(super) fn take_unreferenced(&mut self) -> Vec<PathBuf> {
        self.files.extract_if(|_, file| Rc::strong_count(file) == 1).map(|(path, _)| path).collect()
    }

    pub(super) fn clear(&mut self) {
        self.tree.clear();
        self.files.clear();
    }

    /// Bytes of state, and number of files.
    pub(super) fn usage(&self) -> (usize, usize) {
        (self.files.values().map(|file| file.bytes).sum(), self.files.len())
    }
}

impl StateFile {
    fn request(&self, section: Section) -> ReadRequest {
        ReadRequest { path: self.path.clone(), from: self.from, section }
    }
}

impl HeapSize for FileSpan {
    fn bytes(&self) -> usize {
        self.tokens * self.bytes_per_token
    }
}

impl Span for FileSpan {
    fn split(self, at: usize) -> [FileSpan; 2] {
        let FileSpan { file, from, tokens, bytes_per_token } = self;
        let part = |from, tokens| FileSpan { file: file.clone(), from, tokens, bytes_per_token };
        [part(from, at), part(from + at, tokens - at)]
    }
}

impl HeapSize for FileSnapshot {
    fn bytes(&self) -> usize {
        self.bytes
    }
}

//! The disk tier's folder: one folder per fingerprint, with state files in it. The time of
//! modification is that of the last use, so that servers sharing the folder evict the same files
//! first.

use std::{
    collections::HashSet,
    fs::{self, File, Metadata},
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::{
    atomic::{UNFINISHED, is_abandoned},
    digests,
    segment::Segment,
};
use crate::api::CacheBits;

/// File beside the state that stores which layers of the model can be skipped.
pub(crate) const LAYER_PROFILE_FILE: &str = "layers.json";
const FINISHED: &str = "state";

/// A state file, or an unfinished one.
pub(super) struct Entry {
    pub path: PathBuf,
    /// Bytes allocated on the disk, at most its length.
    pub bytes: u64,
    length: u64,
    used: SystemTime,
}

/// Path and length of files whose length was checked against their header.
pub(super) type Checked = HashSet<(PathBuf, u64)>;

/// The stored state of one model, as computed by one build on one kind of machine.
#[derive(Clone, Debug)]
pub struct StoredModel {
    /// Name of the folder.
    pub fingerprint: String,
    /// `None` if none of its files can be read.
    pub model: Option<String>,
    /// Bits of compressed keys and values; requests that reuse them report it.
    pub bits: Option<CacheBits>,
    /// Number of files.
    pub files: usize,
    /// Bytes of all files.
    pub bytes: u64,
    /// Tokens whose keys and values are stored.
    pub tokens: usize,
    /// Stored states of recurrences, convolutions and windows.
    pub snapshots: usize,
    /// When one of its files was last read or written; `None` without files.
    pub used: Option<SystemTime>,
}

/// Lists the state in `root` by model.
///
/// # Errors
/// The folder cannot be read; a missing one counts as empty.
pub fn list(root: &Path) -> io::Result<Vec<StoredModel>> {
    let models = folders(root)?.into_iter().map(|folder| {
        let files = entries(&folder)?;
        let mut stored = StoredModel {
            fingerprint: folder.file_name().unwrap_or_default().to_string_lossy().into(),
            model: None,
            bits: None,
            files: files.len(),
            bytes: files.iter().map(|entry| entry.bytes).sum(),
            tokens: 0,
            snapshots: 0,
            used: files.iter().map(|entry| entry.used).max(),
        };
        for (segment, _) in files.iter().filter_map(|entry| Segment::open(&entry.path).ok()) {
            stored.tokens += segment.position() - segment.metadata.from;
            stored.snapshots += usize::from(segment.has_snapshot());
            stored.bits = segment.metadata.bits;
            stored.model = Some(segment.metadata.model);
        }
        Ok(stored)
    });
    models.filter(|stored| !stored.as_ref().is_ok_and(|stored| stored.files == 0)).collect()
}

/// Removes all state in `root` without following links; returns the number of files and bytes.
///
/// # Errors
/// A file cannot be removed, or the folder cannot be read.
pub fn clear(root: &Path) -> io::Result<(usize, u64)> {
    let (mut files, mut bytes) = (0, 0);
    digests::clear(root)?;
    for folder in folders(root)? {
        for entry in entries(&folder)? {
            remove(&entry.path)?;
            (files, bytes) = (files + 1, bytes + entry.bytes);
        }
        // It can be measured again.
        existing(fs::remove_file(folder.join(LAYER_PROFILE_FILE)))?;
        // May fail: the folder may have other files.
        let _ = fs::remove_dir(folder);
    }
    Ok((files, bytes))
}

/// Removes the least recently used files until at most `bytes` are left in `root`; returns their
/// paths. Files whose length contradicts their header are removed first, so that they evict no
/// other file.
pub(super) fn shrink(root: &Path, bytes: u64, checked: &mut Checked) -> io::Result<Vec<PathBuf>> {
    let mut all: Vec<Entry> = vec![];
    for folder in folders(root)? {
        all.extend(entries(&folder)?);
    }
    let total = |all: &[Entry]| -> u64 { all.iter().map(|entry| entry.bytes).sum() };
    if total(&all) <= bytes {
        return Ok(vec![]);
    }
    let mut removed = vec![];
    for entry in all.extract_if(.., |entry| entry.is_finished() && !entry.is_valid(checked)) {
        remove(&entry.path)?;
        removed.push(entry.path);
    }
    let mut total = total(&all);
    all.sort_by_key(|entry| entry.used);
    for entry in all {
        if total <= bytes {
            break;
        }
        if entry.is_finished() || is_abandoned(&entry.path) {
            remove(&entry.path)?;
            total -= entry.bytes;
            removed.push(entry.path);
        }
    }
    checked.retain(|(path, _)| !removed.contains(path));
    Ok(removed)
}

/// Removes unfinished files of dead writers from one model's folder.
pub(super) fn remove_abandoned(folder: &Path) {
    for entry in entries(folder).unwrap_or_default().iter().filter(|entry| !entry.is_finished()) {
        if is_abandoned(&entry.path) {
            let _ = remove(&entry.path);
        }
    }
}

/// Marks files as used, each slightly later than the ones that depend on it, so that dependent
/// files are evicted first.
pub(super) fn touch(paths: &[PathBuf]) {
    let now = SystemTime::now();
    for (i, path) in (0..).zip(paths) {
        let time = now + Duration::from_micros(paths.len() as u64 - i);
        // Another server may have removed it.
        let _ = File::options().write(true).open(path).and_then(|file| file.set_modified(time));
    }
}

/// Creates a model's folder, readable only by its owner: state can reveal prompts.
pub(super) fn create_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)?;
    // Eviction must not delete files outside the cache.
    match fs::symlink_metadata(folder)?.is_symlink() {
        true => Err(io::Error::other(format!("{} is a link; remove it", folder.display()))),
        false => Ok(()),
    }
}

/// State files of one model, including unfinished ones.
pub(super) fn entries(folder: &Path) -> io::Result<Vec<Entry>> {
    let mut found = vec![];
    for entry in existing(fs::read_dir(folder))?.into_iter().flatten() {
        let path = entry?.path();
        let ours = path.extension().is_some_and(|e| e == FINISHED || e == UNFINISHED);
        // Another server may have just removed it.
        let Some(metadata) = fs::symlink_metadata(&path).ok().filter(|data| ours && data.is_file()) else {
            continue;
        };
        let (length, allocated) = (metadata.len(), allocated(&metadata));
        // 0: the file system does not report it.
        let bytes = if allocated == 0 { length } else { length.min(allocated) };
        found.push(Entry { bytes, length, used: metadata.modified()?, path });
    }
    Ok(found)
}

/// # Errors
/// Those of `fs::remove_file`, except that a missing file is no error.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    existing(fs::remove_file(path)).map(drop)
}

impl Entry {
    pub(super) fn is_finished(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension == FINISHED)
    }

    /// Whether its length is the one in its header.
    fn is_valid(&self, checked: &mut Checked) -> bool {
        let key = (self.path.clone(), self.length);
        let valid = checked.contains(&key) || Segment::open(&self.path).is_ok();
        if valid {
            checked.insert(key);
        }
        valid
    }
}

/// Bytes allocated to a file on the disk.
fn allocated(metadata: &Metadata) -> u64 {
    #[cfg(unix)]
    let bytes = std::os::unix::fs::MetadataExt::blocks(metadata) * 512;
    #[cfg(not(unix))]
    let bytes = metadata.len();
    bytes
}

/// Folders in `root` that are named by a fingerprint, without links.
fn folders(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![];
    for entry in existing(fs::read_dir(root))?.into_iter().flatten() {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_fingerprint = name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit());
        if is_fingerprint && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// `None` if the file or folder does not exist.
fn existing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::write_atomic, *};

    /// Creates a valid state file of some model in `root`.
    fn state_file(root: &Path) -> PathBuf {
        let folder = root.join("a".repeat(64));
        create_folder(&folder).expect("a folder");
        let path = folder.join("one.state");
        let (segment, payload) = super::super::segment::tests::segment(&[1, 2, 3]);
        write_atomic(&path, |file| segment.write(payload, file)).expect("writes");
        path
    }

    #[test]
    fn shrink_removes_sparse_file_of_huge_length_first() {
        let root = tempfile::tempdir().expect("a folder");
        let own = state_file(root.path());
        for (contents, length) in [(&b""[..], 1 << 40), (b"LANSTATE and no more", 1 << 40)] {
            let huge = own.with_file_name("huge.state");
            fs::write(&huge, contents).expect("writes");
            let file = File::options().write(true).open(&huge).expect("a file");
            file.set_len(length).expect("a sparse file");
            let mut checked = Checked::new();
            for budget in [1 << 30, 1 << 20] {
                shrink(root.path(), budget, &mut checked).expect("shrinks");
                assert!(own.exists(), "{budget}");
            }
            // It is the newest file, and the budget has room for one small file.
            let budget = fs::metadata(&own).expect("a file").len();
            shrink(root.path(), budget, &mut checked).expect("shrinks");
            assert!(own.exists() && !huge.exists());
        }
        // A budget of 0 evicts valid files too.
        let mut checked = Checked::new();
        shrink(root.path(), 0, &mut checked).expect("shrinks");
        assert!(!own.exists());
    }

    #[test]
    #[cfg(unix)]
    fn clear_and_shrink_do_not_follow_links() {
        let (root, outside) =
            (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let elsewhere = state_file(outside.path());
        let target = elsewhere.parent().expect("a folder");
        std::os::unix::fs::symlink(target, root.path().join("b".repeat(64))).expect("a link");
        assert_eq!(clear(root.path()).expect("clears"), (0, 0));
        assert!(elsewhere.exists() && list(root.path()).expect("lists").is_empty());
        shrink(root.path(), 0, &mut Checked::new()).expect("shrinks");
        assert!(elsewhere.exists());
    }
}

//! The folder of the disk tier: a folder for each fingerprint, files of state in it. What was used last is what was
//! modified last, so that servers which share a folder agree on what is oldest.

use std::{
    collections::HashSet,
    fs::{self, File, Metadata},
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use super::{digests, file::Piece};
use crate::CacheBits;

/// The layer profile of the model, which speculation keeps beside the state.
pub const LAYER_PROFILE_FILE: &str = "layers.json";
/// The end of a file that is still being written, and locked by who writes it.
const UNFINISHED: &str = "tmp";
const FINISHED: &str = "state";

/// A file of state, or what is left of one.
pub struct Entry {
    pub path: PathBuf,
    /// That it takes on the disk, at most its length.
    pub bytes: u64,
    length: u64,
    used: SystemTime,
}

/// Files that are as long as their headers say, with their lengths: looked at once.
pub type Checked = HashSet<(PathBuf, u64)>;

/// What the disk tier holds of one model, as computed on one machine by one build.
#[derive(Clone, Debug)]
pub struct StoredModel {
    /// Name of its folder.
    pub fingerprint: String,
    /// `None` if no file of it can be read.
    pub model: Option<String>,
    /// What its keys and values are compressed to, if they are: a request that goes on from them is told so.
    pub bits: Option<CacheBits>,
    pub files: usize,
    pub bytes: u64,
    /// Tokens with keys and values.
    pub tokens: usize,
    pub snapshots: usize,
    pub used: Option<SystemTime>,
}

/// What lies in `root`, by model.
///
/// # Errors
/// The folder cannot be read; one that does not exist is empty.
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
        for (piece, _) in files.iter().filter_map(|entry| Piece::open(&entry.path).ok()) {
            stored.tokens += piece.position() - piece.description.from;
            stored.snapshots += usize::from(piece.has_checkpoint());
            stored.bits = piece.description.bits;
            stored.model = Some(piece.description.model);
        }
        Ok(stored)
    });
    models.filter(|stored| !stored.as_ref().is_ok_and(|stored| stored.files == 0)).collect()
}

/// Removes all state in `root`, but not the targets of links; returns the number of files and bytes.
///
/// # Errors
/// A file cannot be removed, or the folder not read.
pub fn clear(root: &Path) -> io::Result<(usize, u64)> {
    let (mut files, mut bytes) = (0, 0);
    digests::forget(root)?;
    for folder in folders(root)? {
        for entry in entries(&folder)? {
            remove(&entry.path)?;
            (files, bytes) = (files + 1, bytes + entry.bytes);
        }
        // It is measured again.
        existing(fs::remove_file(folder.join(LAYER_PROFILE_FILE)))?;
        // Stays if somebody put something else there.
        let _ = fs::remove_dir(folder);
    }
    Ok((files, bytes))
}

/// Removes what was not used for longest until at most `bytes` are left in `root`; returns what went. Files that are not
/// as long as their headers say go first, whenever they were used: they make nobody else go.
pub fn shrink(root: &Path, bytes: u64, checked: &mut Checked) -> io::Result<Vec<PathBuf>> {
    let mut all: Vec<Entry> = vec![];
    for folder in folders(root)? {
        all.extend(entries(&folder)?);
    }
    let held = |all: &[Entry]| -> u64 { all.iter().map(|entry| entry.bytes).sum() };
    if held(&all) <= bytes {
        return Ok(vec![]);
    }
    let mut gone = vec![];
    for entry in all.extract_if(.., |entry| entry.is_finished() && !entry.is_sound(checked)) {
        remove(&entry.path)?;
        gone.push(entry.path);
    }
    let mut held = held(&all);
    all.sort_by_key(|entry| entry.used);
    for entry in all {
        if held <= bytes {
            break;
        }
        if entry.is_finished() || is_abandoned(&entry.path) {
            remove(&entry.path)?;
            held -= entry.bytes;
            gone.push(entry.path);
        }
    }
    checked.retain(|(path, _)| !gone.contains(path));
    Ok(gone)
}

/// Removes what writers that died left in one model's folder.
pub fn tidy(folder: &Path) {
    for entry in entries(folder).unwrap_or_default().iter().filter(|entry| !entry.is_finished()) {
        if is_abandoned(&entry.path) {
            let _ = remove(&entry.path);
        }
    }
}

/// Marks files as used, the first one last: what the others build on goes after them.
pub fn touch(paths: &[PathBuf]) {
    let now = SystemTime::now();
    for (i, path) in (0..).zip(paths) {
        let time = now + Duration::from_micros(paths.len() as u64 - i);
        // It may be gone.
        let _ = File::options().write(true).open(path).and_then(|file| file.set_modified(time));
    }
}

/// Writes a file of state whole or not at all, whenever the process or the machine stops.
///
/// # Errors
/// Those of the disk; nothing is left behind then.
pub fn write(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    // Two machines may share the folder, and have processes of the same number.
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos());
    let unfinished = path.with_file_name(format!("{}-{time}.{UNFINISHED}", std::process::id()));
    let written = create(&unfinished).and_then(|mut file| {
        file.lock()?;
        fill(&mut file)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&unfinished);
    }
    written?;
    sync_folder(path.parent().unwrap_or(path))
}

/// A model's folder, which nobody else can read: what is in it was said in confidence.
pub fn create_folder(folder: &Path) -> io::Result<()> {
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

/// Files of state of one model, unfinished ones too.
pub fn entries(folder: &Path) -> io::Result<Vec<Entry>> {
    let mut found = vec![];
    for entry in existing(fs::read_dir(folder))?.into_iter().flatten() {
        let path = entry?.path();
        let ours = path.extension().is_some_and(|e| e == FINISHED || e == UNFINISHED);
        // What another server has just removed is not there.
        let Some(metadata) = fs::symlink_metadata(&path).ok().filter(|data| ours && data.is_file()) else {
            continue;
        };
        let (length, allocated) = (metadata.len(), allocated(&metadata));
        // Not every file system tells, and none gives a file of state no room at all.
        let bytes = if allocated == 0 { length } else { length.min(allocated) };
        found.push(Entry { bytes, length, used: metadata.modified()?, path });
    }
    Ok(found)
}

/// # Errors
/// As of `fs::remove_file`; a file that is gone already is no error.
pub fn remove(path: &Path) -> io::Result<()> {
    existing(fs::remove_file(path)).map(drop)
}

impl Entry {
    pub fn is_finished(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension == FINISHED)
    }

    /// Whether its length is what its header says.
    fn is_sound(&self, checked: &mut Checked) -> bool {
        let key = (self.path.clone(), self.length);
        let sound = checked.contains(&key) || Piece::open(&self.path).is_ok();
        if sound {
            checked.insert(key);
        }
        sound
    }
}

/// Bytes that a file has on the disk.
fn allocated(metadata: &Metadata) -> u64 {
    #[cfg(unix)]
    let bytes = std::os::unix::fs::MetadataExt::blocks(metadata) * 512;
    #[cfg(not(unix))]
    let bytes = metadata.len();
    bytes
}

/// Folders in `root` that have a fingerprint's name, without links.
fn folders(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![];
    for entry in existing(fs::read_dir(root))?.into_iter().flatten() {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_ours = name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit());
        if is_ours && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// Whether nobody writes the file: who does holds its lock.
fn is_abandoned(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| file.try_lock().is_ok())
}

fn create(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// So that a name survives a power cut; where folders cannot be opened, the system sees to it.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

/// `None` if there is nothing there.
fn existing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of state of another model, as long as its header says, and the folder it lies in.
    fn state(root: &Path) -> PathBuf {
        let folder = root.join("a".repeat(64));
        create_folder(&folder).expect("a folder");
        let path = folder.join("one.state");
        let (piece, contents) = super::super::file::tests::piece(&[1, 2, 3]);
        write(&path, |file| piece.write(contents, file)).expect("writes");
        path
    }

    #[test]
    fn shrink_removes_a_sparse_file_that_claims_to_be_huge_and_nothing_else() {
        let root = tempfile::tempdir().expect("a folder");
        let own = state(root.path());
        for (holds, length) in [(&b""[..], 1 << 40), (b"LANSTATE and no more", 1 << 40)] {
            let huge = own.with_file_name("huge.state");
            fs::write(&huge, holds).expect("writes");
            let file = File::options().write(true).open(&huge).expect("a file");
            file.set_len(length).expect("a sparse file");
            let mut checked = Checked::new();
            for budget in [1 << 30, 1 << 20] {
                shrink(root.path(), budget, &mut checked).expect("shrinks");
                assert!(own.exists(), "{budget}");
            }
            // It is the newest, and the budget leaves room for one small file.
            let budget = fs::metadata(&own).expect("a file").len();
            shrink(root.path(), budget, &mut checked).expect("shrinks");
            assert!(own.exists() && !huge.exists());
        }
        // A file that was sound, and is not as long any more.
        let mut checked = Checked::new();
        shrink(root.path(), 0, &mut checked).expect("shrinks");
        assert!(!own.exists());
    }

    #[test]
    #[cfg(unix)]
    fn clear_does_not_follow_a_link_out_of_the_root() {
        let (root, outside) =
            (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let elsewhere = state(outside.path());
        let target = elsewhere.parent().expect("a folder");
        std::os::unix::fs::symlink(target, root.path().join("b".repeat(64))).expect("a link");
        assert_eq!(clear(root.path()).expect("clears"), (0, 0));
        assert!(elsewhere.exists() && list(root.path()).expect("lists").is_empty());
        shrink(root.path(), 0, &mut Checked::new()).expect("shrinks");
        assert!(elsewhere.exists());
    }
}

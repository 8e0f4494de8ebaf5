//! The cache's layout on disk, that of huggingface_hub: `models--ORG--NAME/` with `blobs/HASH`,
//! `refs/REVISION` (a commit) and `snapshots/COMMIT/PATH` (relative links to blobs); locks in
//! `.locks/models--ORG--NAME/HASH.lock`.

use std::{
    fs::{self, File, TryLockError},
    io::{self, ErrorKind},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::{
    error::HubError,
    name::{RepoName, is_commit},
};

/// Interval between attempts to take a lock that another process holds.
const LOCK_POLL: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub struct HubCache {
    root: PathBuf,
}

/// Paths of one repository in the cache; they need not exist.
#[derive(Clone, Debug)]
pub struct RepoCache {
    pub folder: PathBuf,
    pub locks: PathBuf,
}

impl HubCache {
    pub fn new(root: PathBuf) -> HubCache {
        HubCache { root }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn repo(&self, name: &RepoName) -> RepoCache {
        let folder = name.folder();
        RepoCache { folder: self.root.join(&folder), locks: self.root.join(".locks").join(folder) }
    }
}

impl RepoCache {
    pub fn blobs(&self) -> PathBuf {
        self.folder.join("blobs")
    }

    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// The commit of a revision when it was last downloaded, if the snapshot exists.
    pub fn commit(&self, revision: &str) -> Option<String> {
        let commit = if is_commit(revision) {
            revision.to_owned()
        } else {
            ::files::read_text(&self.folder.join("refs").join(revision), ::files::REF).ok()?.trim().to_owned()
        };
        (is_commit(&commit) && self.snapshot(&commit).is_dir()).then_some(commit)
    }

    /// Records the commit of a branch or tag.
    pub fn write_ref(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if revision == commit {
            return Ok(());
        }
        let path = self.folder.join("refs").join(revision);
        in_place(&path, |path| fs::write(path, commit))
    }

    /// Links a file of the snapshot to its blob.
    pub fn link(&self, commit: &str, path: &str, etag: &str) -> Result<(), HubError> {
        let up = "../".repeat(2 + path.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{etag}"));
        let link = self.snapshot(commit).join(path);
        if fs::read_link(&link).is_ok_and(|current| current == target) {
            return Ok(());
        }
        in_place(&link, |link| symlink(&target, link))
    }

    /// Waits until no other process writes this blob. The system releases the lock of a killed
    /// process.
    pub fn lock(&self, etag: &str, cancelled: impl Fn() -> bool) -> Result<File, HubError> {
        let path = self.locks.join(format!("{etag}.lock"));
        let cannot = |error| HubError::Write { path: path.clone(), error };
        fs::create_dir_all(&self.locks).map_err(cannot)?;
        let file = File::options().create(true).append(true).open(&path).map_err(cannot)?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if cancelled() => return Err(HubError::Cancelled),
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_POLL),
                // Some network file systems have no locks. A second download then wastes work;
                // verification catches what it breaks.
                Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => return Ok(file),
                Err(TryLockError::Error(error)) => return Err(cannot(error)),
            }
        }
    }
}

/// Makes a file under a temporary name and renames it: readers see the old file or the new one.
fn in_place(path: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), HubError> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let write = || {
        fs::create_dir_all(path.parent().unwrap_or(path))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Other threads may write the same file at the same time.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let new = path.with_file_name(format!(".{name}.{}.{number}", std::process::id()));
        // Left by a killed process with this process id.
        let _ = fs::remove_file(&new);
        make(&new).and_then(|()| fs::rename(&new, path))
    };
    write().map_err(|error| HubError::Write { path: path.to_path_buf(), error })
}

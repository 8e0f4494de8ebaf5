//! Removes models from the cache, with the blobs that no other snapshot needs. Targets of links are
//! never removed.

use std::{
    collections::BTreeSet,
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

use super::{
    cache::{HubCache, RepoCache},
    check::files,
    error::HubError,
    last_used::LastUsed,
    name::{RepoName, is_commit},
};

/// Files that a removal deletes.
#[derive(Debug)]
pub struct Removal {
    cache: RepoCache,
    folder: String,
    /// `None`: the whole repository.
    snapshot: Option<Snapshot>,
    commits: Vec<String>,
    /// Bytes on disk.
    pub size: u64,
}

#[derive(Debug)]
struct Snapshot {
    path: PathBuf,
    refs: Vec<PathBuf>,
    /// Files of huggingface_hub about the commit.
    notes: [PathBuf; 2],
    /// Blobs that no other snapshot links to.
    blobs: Vec<PathBuf>,
}

/// Finds what to remove: the repository, or with a revision that revision's snapshot. If the
/// repository is a link, only the link is removed.
///
/// # Errors
/// It is not in the cache, is being downloaded, or a folder on the way to the snapshot is a link.
pub fn plan_removal(cache: &HubCache, repo: &RepoName) -> Result<Removal, HubError> {
    let (folder, cache) = (repo.folder(), cache.repo(repo));
    if !cache.folder.is_dir() {
        return Err(HubError::NotCached(repo.id()));
    }
    if is_locked(&cache.locks) {
        return Err(HubError::Busy(repo.id()));
    }
    if repo.revision.is_some() {
        no_links(&cache)?;
    }
    let commits: Vec<String> = entries(&cache.folder.join("snapshots"))
        .filter_map(|path| path.file_name()?.to_str().map(str::to_owned))
        .filter(|name| is_commit(name))
        .collect();
    let Some(revision) = &repo.revision else {
        let own = !is_link(&cache.folder) && !is_link(&cache.blobs());
        let size = entries(&cache.blobs()).filter(|_| own).map(|path| own_size(&path)).sum();
        return Ok(Removal { cache, folder, snapshot: None, commits, size });
    };
    let commit = cache.commit(revision).ok_or_else(|| HubError::NotCached(repo.to_string()))?;
    let others = commits.iter().filter(|other| **other != commit);
    let needed: BTreeSet<PathBuf> = others.flat_map(|other| blobs(&cache.snapshot(other))).collect();
    let path = cache.snapshot(&commit);
    let blobs: Vec<PathBuf> = blobs(&path).difference(&needed).cloned().collect();
    let size = blobs.iter().map(|path| own_size(path)).sum();
    let refs = refs_to(&cache.folder.join("refs"), &commit);
    let notes = [format!("trees/{commit}.json"), format!(".no_exist/{commit}")];
    let notes = notes.map(|note| cache.folder.join(note));
    let snapshot = Some(Snapshot { path, refs, notes, blobs });
    Ok(Removal { cache, folder, snapshot, commits: vec![commit], size })
}

impl Removal {
    /// Removes names before contents, so that an interrupted removal leaves no complete model.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn carry_out(&self, uses: &LastUsed) -> Result<(), HubError> {
        match &self.snapshot {
            None => {
                if !is_link(&self.cache.folder) {
                    remove_all(&self.cache.folder.join("refs"))?;
                    remove_all(&self.cache.folder.join("snapshots"))?;
                }
                remove_all(&self.cache.folder)?;
                if !self.cache.locks.parent().is_some_and(is_link) {
                    remove_all(&self.cache.locks)?;
                }
            }
            Some(snapshot) => {
                snapshot.refs.iter().try_for_each(|path| gone(path, |path| fs::remove_file(path)))?;
                remove_all(&snapshot.path)?;
                snapshot.blobs.iter().try_for_each(|path| gone(path, |path| fs::remove_file(path)))?;
                snapshot.notes.iter().try_for_each(|path| remove_all(path))?;
            }
        }
        self.commits.iter().for_each(|commit| uses.forget(&self.folder, commit));
        Ok(())
    }
}

/// Folders of a repository from which files of a snapshot are removed.
const PARTS: [&str; 5] = ["refs", "snapshots", "blobs", "trees", ".no_exist"];

/// # Errors
/// One of the folders is a link: its target may have other users.
fn no_links(cache: &RepoCache) -> Result<(), HubError> {
    let parts = PARTS.map(|part| cache.folder.join(part));
    match [&cache.folder].into_iter().chain(&parts).find(|path| is_link(path)) {
        Some(link) => Err(HubError::Linked(link.clone())),
        None => Ok(()),
    }
}

fn is_link(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink())
}

/// Removes a file, a link (not its target) or a folder with its contents.
fn remove_all(path: &Path) -> Result<(), HubError> {
    gone(path, |path| match fs::symlink_metadata(path)?.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    })
}

fn gone(path: &Path, remove: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), HubError> {
    match remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(HubError::Write { path: path.to_path_buf(), error })
        }
        _ => Ok(()),
    }
}

/// The blobs that a snapshot links to; never a file outside the repository.
fn blobs(snapshot: &Path) -> BTreeSet<PathBuf> {
    let Some(blobs) = snapshot.parent().and_then(Path::parent).map(|repo| repo.join("blobs")) else {
        return BTreeSet::new();
    };
    let blob = |path: String| {
        let target = fs::read_link(snapshot.join(path)).ok()?;
        let blob = blobs.join(target.file_name()?);
        blob.symlink_metadata().is_ok().then_some(blob)
    };
    files(snapshot).into_iter().filter_map(blob).collect()
}

fn refs_to(folder: &Path, commit: &str) -> Vec<PathBuf> {
    let stands_for =
        |path: &PathBuf| ::files::read_text(path, ::files::REF).is_ok_and(|text| text.trim() == commit);
    files(folder).iter().map(|name| folder.join(name)).filter(stands_for).collect()
}

/// Size of a file, 0 of a link: newer tools link blobs to a store that repositories share, which
/// stays.
fn own_size(path: &Path) -> u64 {
    path.symlink_metadata().map_or(0, |metadata| if metadata.is_file() { metadata.len() } else { 0 })
}

fn is_locked(locks: &Path) -> bool {
    let held = |path: PathBuf| {
        File::open(path).is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
    };
    // Opening a FIFO would block.
    entries(locks).filter(|path| path.symlink_metadata().is_ok_and(|metadata| metadata.is_file())).any(held)
}

fn entries(folder: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

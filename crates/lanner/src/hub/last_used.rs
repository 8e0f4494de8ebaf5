//! When models were last used: the modification time of an empty file per snapshot, outside the
//! cache.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::SystemTime,
};

/// The folder of such files; `None`: there is no home folder, and nothing is recorded.
#[derive(Clone, Debug)]
pub struct LastUsed(pub Option<PathBuf>);

impl LastUsed {
    /// Records that the snapshot is used now; a failure is logged only.
    pub fn record(&self, folder: &str, commit: &str) {
        let Some(path) = self.path(folder, commit) else { return };
        let touch = || {
            fs::create_dir_all(path.parent().unwrap_or(&path))?;
            File::create(&path)?.set_modified(SystemTime::now())
        };
        if let Err(error) = touch() {
            tracing::debug!("cannot record the use of a model in {}: {error}", path.display());
        }
    }

    /// The recorded time, else the latest access time of the snapshot's files, if the file system
    /// has one.
    pub fn last(&self, folder: &str, commit: &str, files: &[PathBuf]) -> Option<SystemTime> {
        let recorded = self.path(folder, commit).and_then(|path| fs::metadata(path).ok()?.modified().ok());
        let read = |path: &Path| fs::metadata(path).ok()?.accessed().ok();
        recorded.or_else(|| files.iter().filter_map(|path| read(path)).max())
    }

    /// Removes the record of a snapshot.
    pub fn forget(&self, folder: &str, commit: &str) {
        let _ = self.path(folder, commit).map(fs::remove_file);
    }

    fn path(&self, folder: &str, commit: &str) -> Option<PathBuf> {
        Some(self.0.as_ref()?.join(format!("{folder}@{commit}")))
    }
}

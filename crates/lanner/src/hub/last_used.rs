//! When models were used: an empty file per snapshot, outside the cache, whose time of change says it.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::SystemTime,
};

/// A folder of such files; `None` if the system has no place for it.
#[derive(Clone, Debug)]
pub struct LastUsed(pub Option<PathBuf>);

impl LastUsed {
    /// Records that the snapshot is used now. A record that cannot be written is no reason not to use the model.
    pub fn record(&self, folder: &str, commit: &str) {
        let Some(path) = self.path(folder, commit) else { return };
        let touch = || {
            fs::create_dir_all(path.parent().unwrap_or(&path))?;
            File::create(&path)?.set_modified(SystemTime::now())
        };
        if let Err(error) = touch() {
            tracing::debug!("the use of a model is not recorded in {}: {error}", path.display());
        }
    }

    /// When the snapshot was used last: as recorded, or else when one of its files was last read, as far as the file
    /// system keeps that.
    pub fn last(&self, folder: &str, commit: &str, files: &[PathBuf]) -> Option<SystemTime> {
        let recorded = self.path(folder, commit).and_then(|path| fs::metadata(path).ok()?.modified().ok());
        let read = |path: &Path| fs::metadata(path).ok()?.accessed().ok();
        recorded.or_else(|| files.iter().filter_map(|path| read(path)).max())
    }

    /// Forgets a snapshot.
    pub fn forget(&self, folder: &str, commit: &str) {
        let _ = self.path(folder, commit).map(fs::remove_file);
    }

    fn path(&self, folder: &str, commit: &str) -> Option<PathBuf> {
        Some(self.0.as_ref()?.join(format!("{folder}@{commit}")))
    }
}

//! Files that are written completely or not at all, even if the process or the machine stops.

use std::{
    fs::{self, File},
    io,
    path::Path,
    time::SystemTime,
};

/// Extension of a file that is being written; its writer holds a lock on it.
pub(super) const UNFINISHED: &str = "tmp";

/// Writes a file through a temporary one beside it, which is removed on failure.
///
/// # Errors
/// Those of the disk and of `fill`.
pub(crate) fn write_atomic(path: &Path, fill: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    // Machines that share the folder may have processes of the same number.
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

/// Whether the writer of an unfinished file has died: it would hold the file's lock.
pub(super) fn is_abandoned(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| file.try_lock().is_ok())
}

fn create(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Makes a rename survive a power cut. Folders cannot be opened on other systems.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

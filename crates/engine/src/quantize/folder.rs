//! The output folder: it gets its name only when it is complete.

use std::{
    cell::RefCell,
    fs::{self, File, TryLockError},
    io::{self, ErrorKind, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{error::QuantizeError, shards::is_shard};

/// Lock file that marks a folder as written by `quantize`.
const LOCK: &str = "lanner-quantize.lock";
const CONFIG: &str = "config.json";
const INDEX: &str = "model.safetensors.index.json";

/// A temporary folder beside the final one. It is removed when dropped unfinished; the next run to
/// the same place removes the leftovers of a killed one. Other folders of that name are left alone.
pub(super) struct PartialFolder {
    path: PathBuf,
    out: PathBuf,
    /// Distinguishes a running process from a killed one.
    lock: File,
    /// Files to remove unless it is finished.
    written: RefCell<Vec<PathBuf>>,
    finished: bool,
}

impl PartialFolder {
    /// # Errors
    /// `out` or its temporary folder exists, another run is writing it, or it cannot be created.
    pub(super) fn create(out: &Path) -> Result<PartialFolder, QuantizeError> {
        let out = std::path::absolute(out).map_err(QuantizeError::write(out, 0))?;
        let Some(name) = out.file_name().filter(|_| is_available(&out)) else {
            return Err(QuantizeError::Exists(out));
        };
        let mut partial_name = name.to_os_string();
        partial_name.push(".partial");
        let path = out.with_file_name(partial_name);
        let lock = match create_locked(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => reclaim(&path, &out)?,
            made => made
                .map_err(QuantizeError::write(&path, 0))
                .and_then(|lock| lock_folder(lock, &path, &out))?,
        };
        Ok(PartialFolder { path, out, lock, written: RefCell::default(), finished: false })
    }

    /// A new file of the result.
    pub(super) fn create_file(&self, name: &str) -> io::Result<File> {
        let path = self.path.join(name);
        let file = File::create_new(&path)?;
        self.written.borrow_mut().push(path);
        Ok(file)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes model.safetensors.index.json.
    pub(super) fn write_index(&self, index: &Value) -> Result<(), QuantizeError> {
        self.write_json(INDEX, index)
    }

    pub(super) fn write_config(&self, config: &Value) -> Result<(), QuantizeError> {
        self.write_json(CONFIG, config)
    }

    /// Writes a JSON file and syncs it.
    fn write_json(&self, name: &str, value: &Value) -> Result<(), QuantizeError> {
        let write = || {
            let mut file = self.create_file(name)?;
            file.write_all((serde_json::to_string_pretty(value)? + "\n").as_bytes())?;
            file.sync_all()
        };
        write().map_err(QuantizeError::write(&self.path.join(name), 0))
    }

    /// Copies the files of tokenizers, templates and processors, and licences.
    pub(super) fn copy_companions(&self, source: &Path) -> Result<(), QuantizeError> {
        let entries = fs::read_dir(source).map_err(QuantizeError::write(source, 0))?;
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_file()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if is_companion(&name) {
                let copy = || {
                    let mut file = self.create_file(&name)?;
                    io::copy(&mut File::open(&path)?, &mut file)?;
                    file.sync_all()
                };
                copy().map_err(QuantizeError::write(&self.path.join(&name), 0))?;
            }
        }
        Ok(())
    }

    /// Renames the folder to its final name.
    pub(super) fn finish(mut self) -> Result<(), QuantizeError> {
        let sync = |folder: &Path| File::open(folder)?.sync_all();
        let mut finish = || {
            fs::remove_file(self.path.join(LOCK))?;
            sync(&self.path)?;
            fs::rename(&self.path, &self.out)?;
            self.finished = true;
            self.out.parent().map_or(Ok(()), sync)
        };
        finish().map_err(QuantizeError::write(&self.out, 0))
    }
}

impl Drop for PartialFolder {
    fn drop(&mut self) {
        if !self.finished {
            // Leftovers stay under a name that no model has.
            for file in self.written.get_mut().iter().chain([&self.path.join(LOCK)]) {
                let _ = fs::remove_file(file);
            }
            let _ = fs::remove_dir(&self.path);
        }
        let _ = self.lock.unlock();
    }
}

/// Whether `out` is absent or an empty folder. A link is neither.
fn is_available(out: &Path) -> bool {
    let is_empty = |folder: &Path| fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none());
    fs::symlink_metadata(out).map_or(true, |found| found.is_dir() && is_empty(out))
}

/// Creates the folder and its lock file.
fn create_locked(path: &Path) -> io::Result<File> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::create_dir(path)?;
    File::create_new(path.join(LOCK)).inspect_err(|_| drop(fs::remove_dir(path)))
}

/// Locks `lock`; a file system without locks counts as locked.
fn lock_folder(lock: File, path: &Path, out: &Path) -> Result<File, QuantizeError> {
    let locked = !matches!(lock.try_lock(), Err(TryLockError::WouldBlock));
    // Another run may have finished or taken over in between.
    if locked && is_same_file(&lock, &path.join(LOCK)) {
        Ok(lock)
    } else {
        Err(QuantizeError::Busy(out.into()))
    }
}

/// Locks and empties the folder of a killed run.
fn reclaim(path: &Path, out: &Path) -> Result<File, QuantizeError> {
    let fail = |error| QuantizeError::write(path, 0)(error);
    let taken = || QuantizeError::InUse(path.into());
    if leftovers(path).map_err(fail)?.is_none() {
        return Err(taken());
    }
    let lock = lock_folder(File::open(path.join(LOCK)).map_err(fail)?, path, out)?;
    // Checked again: that run may have continued before the lock was taken.
    let files = leftovers(path).map_err(fail)?.ok_or_else(taken)?;
    files.iter().try_for_each(fs::remove_file).map_err(fail)?;
    Ok(lock)
}

/// Leftover files of a killed run, without its lock; `None` if the folder holds anything else.
fn leftovers(path: &Path) -> io::Result<Option<Vec<PathBuf>>> {
    let is_file = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
    if !fs::symlink_metadata(path)?.is_dir() || !is_file(&path.join(LOCK)) {
        return Ok(None);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        match entry.file_name().to_str() {
            Some(LOCK) => {}
            Some(name) if is_written(name) && is_file(&entry.path()) => files.push(entry.path()),
            _ => return Ok(None),
        }
    }
    Ok(Some(files))
}

/// Whether `path` is this open file: no link to it, and not removed since.
fn is_same_file(file: &File, path: &Path) -> bool {
    let id = |found: &fs::Metadata| (found.dev(), found.ino());
    matches!((file.metadata(), fs::symlink_metadata(path)), (Ok(a), Ok(b)) if id(&a) == id(&b))
}

/// Whether `quantize` writes files of this name.
fn is_written(name: &str) -> bool {
    [CONFIG, INDEX].contains(&name) || is_shard(name) || is_companion(name)
}

/// Whether a source file is copied: neither weights nor a description of them.
fn is_companion(name: &str) -> bool {
    let described = [CONFIG, "hf_quant_config.json"].contains(&name) || name.ends_with(".index.json");
    let ends = [".json", ".jsonl", ".jinja", ".txt", ".model", ".tiktoken", ".py"];
    let licence = ["LICENSE", "LICENCE", "NOTICE"].iter().any(|start| name.starts_with(start));
    !described && !name.starts_with('.') && (licence || ends.iter().any(|end| name.ends_with(end)))
}

//! The folder of the result: it has its name only once it is whole.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::error::QuantizeError;

const LOCK: &str = "lock";

/// A folder beside the final one. Dropped before it is finished, it is removed; what a killed run left of it, the next
/// run to the same place removes.
pub struct Partial {
    path: PathBuf,
    out: PathBuf,
    /// Tells a run that goes on from one that was killed.
    lock: File,
    finished: bool,
}

impl Partial {
    /// # Errors
    /// There is something at `out`, another run is writing it, or the folder cannot be made.
    pub fn create(out: &Path) -> Result<Partial, QuantizeError> {
        let out = std::path::absolute(out).map_err(QuantizeError::write(out, 0))?;
        let is_empty = |folder: &Path| Ok::<_, io::Error>(fs::read_dir(folder)?.next().is_none());
        let Some(name) = out.file_name() else { return Err(QuantizeError::Exists(out)) };
        if fs::symlink_metadata(&out).is_ok() && !is_empty(&out).unwrap_or(false) {
            return Err(QuantizeError::Exists(out));
        }
        let mut partial_name = name.to_os_string();
        partial_name.push(".partial");
        let path = out.with_file_name(partial_name);
        let fail = QuantizeError::write(&path, 0);
        let lock = fs::create_dir_all(&path).and_then(|()| File::create(path.join(LOCK))).map_err(fail)?;
        if let Err(TryLockError::WouldBlock) = lock.try_lock() {
            return Err(QuantizeError::Busy(out));
        }
        let partial = Partial { path, out, lock, finished: false };
        partial.clear().map_err(QuantizeError::write(&partial.path, 0))?;
        Ok(partial)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file of JSON that is on the disk on return.
    pub fn write_json(&self, name: &str, value: &Value) -> Result<(), QuantizeError> {
        let path = self.path.join(name);
        let write = || {
            fs::write(&path, serde_json::to_string_pretty(value)? + "\n")?;
            File::open(&path)?.sync_all()
        };
        write().map_err(QuantizeError::write(&path, 0))
    }

    /// Copies what tokenizers, templates and processors are made of, and licences.
    pub fn copy_companions(&self, source: &Path) -> Result<(), QuantizeError> {
        let entries = fs::read_dir(source).map_err(QuantizeError::write(source, 0))?;
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_file()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let target = self.path.join(&name);
            if is_companion(&name) {
                let copy = || {
                    fs::copy(&path, &target)?;
                    File::open(&target)?.sync_all()
                };
                copy().map_err(QuantizeError::write(&target, 0))?;
            }
        }
        Ok(())
    }

    /// Gives the folder its name.
    pub fn finish(mut self) -> Result<(), QuantizeError> {
        let sync = |folder: &Path| File::open(folder)?.sync_all();
        let finish = || {
            fs::remove_file(self.path.join(LOCK))?;
            sync(&self.path)?;
            fs::rename(&self.path, &self.out)?;
            self.out.parent().map_or(Ok(()), sync)
        };
        finish().map_err(QuantizeError::write(&self.out, 0))?;
        self.finished = true;
        Ok(())
    }

    /// Removes what a killed run left.
    fn clear(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            if entry.file_name() != LOCK {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.finished {
            // What cannot be removed stays under a name that nobody takes for a model's.
            let _ = fs::remove_dir_all(&self.path);
        }
        let _ = self.lock.unlock();
    }
}

/// Whether a file of the source belongs to the result as well: not weights, nor what describes them.
fn is_companion(name: &str) -> bool {
    let described = ["config.json", "hf_quant_config.json"].contains(&name) || name.ends_with(".index.json");
    let ends = [".json", ".jsonl", ".jinja", ".txt", ".model", ".tiktoken", ".py"];
    let licence = ["LICENSE", "LICENCE", "NOTICE"].iter().any(|start| name.starts_with(start));
    !described && !name.starts_with('.') && (licence || ends.iter().any(|end| name.ends_with(end)))
}

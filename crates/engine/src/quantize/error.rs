//! Why a checkpoint could not be quantised.

use std::{
    io,
    path::{Path, PathBuf},
};

use mlx::quant::Quantization;

use crate::error::LoadError;

/// One sentence that names the file, tensor or value at fault. No partial result is left.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    #[error(transparent)]
    Source(#[from] LoadError),
    #[error("the source is quantised already: {0}; take the unquantised model")]
    AlreadyQuantized(String),
    #[error(
        "{} has {bits} bits in groups of {groups}, not {} bits in groups of {}",
        requested.mode.name(), requested.bits, requested.group_size
    )]
    NoSuchFormat { requested: Quantization, bits: String, groups: String },
    #[error("{} exists already; choose a new folder, or an empty one", .0.display())]
    Exists(PathBuf),
    #[error("{} is in the way; move it elsewhere, or choose another name for the result", .0.display())]
    InUse(PathBuf),
    #[error("another run is writing to {}", .0.display())]
    Busy(PathBuf),
    #[error("cannot write {}: {error}{}", path.display(), needed(error, *bytes))]
    Write { path: PathBuf, error: io::Error, bytes: usize },
    #[error("interrupted; nothing unfinished is left behind")]
    Interrupted,
}

impl QuantizeError {
    /// `bytes` is the size of the whole result.
    pub(super) fn write(path: &Path, bytes: usize) -> impl FnOnce(io::Error) -> QuantizeError {
        let path = path.to_path_buf();
        move |error| QuantizeError::Write { path, error, bytes }
    }
}

impl From<mlx::Error> for QuantizeError {
    fn from(error: mlx::Error) -> QuantizeError {
        QuantizeError::Source(error.into())
    }
}

/// The size of the result, if the disk is full.
fn needed(error: &io::Error, bytes: usize) -> String {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            format!("; the result needs {:.2} GB", bytes as f64 / 1e9)
        }
        _ => String::new(),
    }
}

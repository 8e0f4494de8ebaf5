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
    /// The source cannot be loaded.
    #[error(transparent)]
    Source(#[from] LoadError),
    /// The source has quantised weights; the text says which.
    #[error("the source is quantised already: {0}; take the unquantised model")]
    AlreadyQuantized(String),
    /// The mode has no such bits or group size.
    #[error(
        "{} has {bits} bits in groups of {groups}, not {} bits in groups of {}",
        requested.mode.name(), requested.bits, requested.group_size
    )]
    NoSuchFormat {
        /// The requested format.
        requested: Quantization,
        /// Bits that its mode has, in words.
        bits: String,
        /// Group sizes that its mode has, in words.
        groups: String,
    },
    /// The output folder exists and is not empty.
    #[error("{} exists already; choose a new folder, or an empty one", .0.display())]
    Exists(PathBuf),
    /// The name of the temporary folder is taken by something else.
    #[error("{} is in the way; move it elsewhere, or choose another name for the result", .0.display())]
    InUse(PathBuf),
    /// Another run holds the lock of this folder.
    #[error("another run is writing to {}", .0.display())]
    Busy(PathBuf),
    /// The result cannot be written.
    #[error("cannot write {}: {error}{}", path.display(), needed(error, *bytes))]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
        /// Bytes of the whole result.
        bytes: usize,
    },
    /// The progress callback cancelled the run.
    #[error("interrupted; no unfinished file is left")]
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

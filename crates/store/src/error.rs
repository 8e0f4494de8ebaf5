//! Why the store does not do what it was asked.

use std::{io, path::PathBuf};

use rusqlite::ErrorCode;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot open the store {}: {problem}", path.display())]
    Open { path: PathBuf, problem: String },
    #[error("{} is no store of Lanner; name another file with --store", .0.display())]
    Foreign(PathBuf),
    #[error("the store {} was written by a newer version of Lanner (layout {version}); update this one", path.display())]
    Newer { path: PathBuf, version: i64 },
    #[error("there is no conversation `{0}`")]
    NotFound(String),
    #[error("there are no conversations yet")]
    Empty,
    #[error("`{0}` begins the ids of several conversations; write more of it")]
    Ambiguous(String),
    /// Names the field.
    #[error("{field}: {problem}")]
    Invalid { field: String, problem: String },
    #[error("another program is writing to the store; try again")]
    Busy,
    #[error("the disk is full, or the store has reached its largest size: nothing was stored")]
    Full,
    #[error("the store cannot be written: its disk or its file is read-only")]
    ReadOnly,
    #[error("the store is damaged; it will be set aside at the next start")]
    Damaged,
    #[error("the store has ended")]
    Ended,
    #[error("cannot read or write the store: {0}")]
    Io(#[from] io::Error),
    #[error("cannot read or write the store: {0}")]
    Sqlite(rusqlite::Error),
}

impl StoreError {
    pub(crate) fn invalid(field: impl Into<String>, problem: impl Into<String>) -> StoreError {
        StoreError::Invalid { field: field.into(), problem: problem.into() }
    }

    /// The error of a field that is a part of another one.
    pub(crate) fn within(self, outer: &str) -> StoreError {
        match self {
            StoreError::Invalid { field, problem } => {
                StoreError::invalid(format!("{outer}.{field}"), problem)
            }
            error => error,
        }
    }
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> StoreError {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Busy,
            Some(ErrorCode::DiskFull) => StoreError::Full,
            Some(ErrorCode::ReadOnly) => StoreError::ReadOnly,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreError::Damaged,
            _ => StoreError::Sqlite(error),
        }
    }
}

//! Files that a model in the cache lacks.

use std::fmt;

use super::choose::ChooseError;

#[derive(Debug)]
pub enum Missing {
    /// There is no snapshot of the revision.
    Everything,
    Choice(ChooseError),
    /// By its path in the repository.
    File(String),
    /// A weight file whose length is not what its header says.
    Cut(String),
    Index {
        path: String,
        reason: String,
    },
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Everything => write!(f, "nothing of it is there"),
            Missing::Choice(error) => write!(f, "{error}"),
            Missing::File(path) => write!(f, "{path} is missing"),
            Missing::Cut(path) => write!(f, "{path} is cut short or broken"),
            Missing::Index { path, reason } => write!(f, "{path} cannot be used: {reason}"),
        }
    }
}

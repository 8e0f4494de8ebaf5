//! Why a model cannot be found, downloaded or removed.

use std::{io, path::PathBuf};

use super::missing::Missing;

/// One sentence, with a `hint:` line if the user can do something.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error("there is no folder for models: set HF_HUB_CACHE or HOME")]
    NoCache,
    #[error(
        "{0} is not ORG/NAME[@REVISION][:PART], nor a short name\nhint: lanner models --catalog lists short names"
    )]
    BadName(String),
    #[error("HF_HUB_OFFLINE is set, and {model} is not complete in the cache: {missing}")]
    Offline { model: String, missing: Missing },
    #[error("cannot reach {url}: {reason}")]
    Unreachable { url: String, reason: String },
    #[error("{repo} is gated: {}", access_hint(*.token))]
    Gated { repo: String, token: bool },
    #[error("the hub refuses access to {repo}: {}", refused_hint(*.token))]
    Refused { repo: String, token: bool },
    #[error(
        "there is no model {repo} on {endpoint}, or it is private\nhint: check the name; private models need HF_TOKEN"
    )]
    NoRepo { repo: String, endpoint: String },
    #[error("{repo} has no revision {revision}")]
    NoRevision { repo: String, revision: String },
    #[error("{repo} has no file {file}")]
    NoFile { repo: String, file: String },
    #[error("the hub limits requests{}{}", wait_hint(*.seconds), limit_hint(*.token))]
    RateLimited { seconds: Option<u64>, token: bool },
    #[error("{url} answered {status}")]
    Status { url: String, status: u16 },
    #[error("{url} redirects to {to}, which is not encrypted")]
    Downgrade { url: String, to: String },
    #[error("the hub's answer about {repo} makes no sense: {reason}")]
    Answer { repo: String, reason: String },
    #[error("{repo} names a file `{file}`, which would be written outside the cache")]
    Traversal { repo: String, file: String },
    #[error("{0}")]
    Choice(#[from] super::choose::ChooseError),
    #[error(
        "{file} of {repo} is not what the hub promised: its hash is {found} instead of {expected}; it was removed"
    )]
    Mismatch { repo: String, file: String, expected: String, found: String },
    #[error("{file} of {repo} has {found} bytes instead of {expected}, its length on the hub")]
    Length { repo: String, file: String, expected: u64, found: String },
    #[error("no space left in {}: {} more are needed; partial files are kept\nhint: free space and run the same command again", path.display(), megabytes(*.needed))]
    DiskFull { path: PathBuf, needed: u64 },
    #[error("cannot write {}: {error}", path.display())]
    Write { path: PathBuf, error: io::Error },
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("the download was cancelled; partial files are kept")]
    Cancelled,
    #[error("{0} is not in the cache")]
    NotCached(String),
    #[error("parts of a repository cannot be removed alone; remove {0}")]
    PartOnly(String),
    #[error("{} is a link, and its target is not removed; delete the link or the files yourself", .0.display())]
    Linked(PathBuf),
    #[error("{0} is being downloaded by another process; try again later")]
    Busy(String),
}

fn access_hint(token: bool) -> &'static str {
    if token {
        "the account that HF_TOKEN belongs to has not accepted its licence\nhint: accept it on the model's page"
    } else {
        "accept its licence on the model's page, and set HF_TOKEN\nhint: tokens are made at https://huggingface.co/settings/tokens"
    }
}

fn refused_hint(token: bool) -> &'static str {
    if token {
        "HF_TOKEN is not valid, or its account may not read it"
    } else {
        "there is no such model, or it needs HF_TOKEN\nhint: check the name; tokens are made at https://huggingface.co/settings/tokens"
    }
}

fn wait_hint(seconds: Option<u64>) -> String {
    seconds.map_or("; try again later".into(), |seconds| {
        format!(" and asks to wait {seconds} s; try again then")
    })
}

fn limit_hint(token: bool) -> &'static str {
    if token { "" } else { "\nhint: with HF_TOKEN the limits are higher" }
}

/// A readable size, such as `1.2 GB`.
pub fn megabytes(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.0} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

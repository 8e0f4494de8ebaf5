//! A server in the background: what is written for systemd and launchd, and what is remembered of a
//! server that was started. [`crate::commands`] starts and stops it.

pub mod launchd;
mod record;
pub mod systemd;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, io, net::SocketAddr, path::PathBuf};

pub use self::record::{ProgramFile, ServiceRecord, VariableDigests};

/// Manager that keeps the server running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Manager {
    /// A unit of the user's systemd, which restarts it after a crash.
    Systemd,
    /// An agent of launchd, which restarts it after a crash.
    Launchd,
    /// A process of its own, which nothing restarts.
    Plain,
}

impl Manager {
    /// Name for `--manager`.
    pub fn name(self) -> &'static str {
        match self {
            Manager::Systemd => "systemd",
            Manager::Launchd => "launchd",
            Manager::Plain => "plain",
        }
    }
}

/// Definition of the server for its manager.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceDefinition {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// Variables of the server; they may be secret.
    pub environment: BTreeMap<String, String>,
    /// Paths among the arguments may be relative to it.
    pub folder: PathBuf,
    /// File to which the output of the server is appended.
    pub log: PathBuf,
    /// File of `environment`, for systemd.
    pub environment_file: PathBuf,
}

/// Where files of the service lie.
#[derive(Clone, Debug)]
pub struct ServiceFolders {
    /// The record, the log and locks.
    pub own: PathBuf,
    /// Units of the user's systemd.
    pub units: PathBuf,
    /// Agents of launchd.
    pub agents: PathBuf,
}

impl ServiceFolders {
    pub fn record(&self) -> PathBuf {
        self.own.join("service.json")
    }

    pub fn log(&self) -> PathBuf {
        self.own.join("server.log")
    }

    /// The log of the server before.
    pub fn former_log(&self) -> PathBuf {
        self.own.join("server.log.1")
    }

    /// Locked while a command starts or stops the server.
    pub fn lock(&self) -> PathBuf {
        self.own.join("lock")
    }

    /// Locked by a server without a manager, as long as it runs.
    pub fn alive(&self) -> PathBuf {
        self.own.join("alive")
    }

    pub fn environment(&self) -> PathBuf {
        self.own.join("environment")
    }

    pub fn unit(&self) -> PathBuf {
        self.units.join(systemd::UNIT)
    }

    pub fn agent(&self) -> PathBuf {
        self.agents.join(format!("{}.plist", launchd::LABEL))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error("there is no home folder for the files of the service; set HOME")]
    NoHome,
    #[error("the argument `{0}` is not UTF-8, which a service needs")]
    NotUtf8(String),
    #[error("lanner start takes one --api-key; write several into a file for --api-keys-file")]
    SeveralKeys,
    #[error("--at-login needs systemd or launchd, and here the server is a plain process")]
    NoLogin,
    #[error("another lanner start or lanner stop is running; try again when it has ended")]
    Locked,
    #[error(
        "a server already runs in the background at {url} (process {pid}) that was started with another: {what}\n\
         hint: lanner stop ends it; then lanner start takes what is new"
    )]
    RunsDifferently { url: String, pid: u32, what: String },
    #[error(
        "{} is not readable: {error}; so it is not known which server runs in the background\n\
         hint: end that server if there is one, then remove the file", path.display()
    )]
    Record { path: PathBuf, error: io::Error },
    #[error(
        "a Lanner server that lanner start has not started already answers at {url}\n\
         hint: end it where it was started, or choose another port with --port"
    )]
    Foreign { url: String },
    #[error("another program listens at {address}\nhint: choose another port with --port, or 0 for any")]
    PortTaken { address: SocketAddr },
    #[error("cannot listen at {address}: {error}")]
    Address { address: SocketAddr, error: io::Error },
    #[error("{} was not written by lanner start; remove it, or use --manager plain", .0.display())]
    ForeignDefinition(PathBuf),
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("{command} failed: {message}")]
    Command { command: String, message: String },
    #[error("the server has ended before it was ready; the end of {}:\n{tail}", log.display())]
    Ended { log: PathBuf, tail: String },
    #[error(
        "the server is not ready after {seconds} s and goes on starting; the end of {}:\n{tail}\n\
         hint: lanner status shows it, lanner stop ends it", log.display()
    )]
    Slow { seconds: u64, log: PathBuf, tail: String },
    #[error("stopped before the server was ready")]
    Interrupted,
    #[error("the server (process {pid}) does not end")]
    DoesNotEnd { pid: u32 },
    #[error("the background server is at {found}, not at {asked}; nothing was stopped")]
    OtherAddress { found: String, asked: String },
    #[error("there is no log yet: no server was started with lanner start")]
    NoLog,
}

//! `lanner start`, `stop`, `status` and `logs`: a server in the background.

mod log;
mod logs;
mod managed;
mod plain;
mod start;
mod status;
mod stop;

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
    time::Duration,
};

use serde_json::Value;

pub use self::{logs::logs, start::start, status::status, stop::stop};
use super::{CommandError, remote};
use crate::{
    config::ServerAddress,
    service::{Manager, ServiceError, ServiceFolders, ServiceRecord},
};

/// How long a server may take to answer on its health.
const HEALTH: Duration = Duration::from_secs(5);

/// The process of a server that was started.
#[derive(Clone, Debug, Default, PartialEq)]
struct ServiceProcess {
    is_running: bool,
    pid: Option<u32>,
    /// After crashes; `None`: nothing counts them.
    restarts: Option<u32>,
}

/// Health of a server, by its own report.
enum ServerHealth {
    Good(Value),
    /// It answers, but has a problem: a sentence.
    Bad(String),
    /// Nothing of Lanner answers.
    None,
}

fn process(record: &ServiceRecord, folders: &ServiceFolders) -> Result<ServiceProcess, ServiceError> {
    match record.manager {
        Manager::Plain => {
            let is_running = plain::is_alive(folders)?;
            Ok(ServiceProcess { is_running, pid: record.pid, restarts: None })
        }
        Manager::Systemd => managed::systemd_process(),
        Manager::Launchd => managed::launchd_process(folders),
    }
}

/// Where the server can be reached: as its log says, or else as it was told.
fn reachable(record: &ServiceRecord, folders: &ServiceFolders) -> SocketAddr {
    let mut address = log::address(&folders.log()).unwrap_or(record.address);
    // A server on all addresses also answers on this one.
    if address.ip().is_unspecified() {
        address.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    address
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

fn health(address: SocketAddr) -> ServerHealth {
    let server = ServerAddress { address, api_key: None };
    match remote::call_within(&server, "/health", None, HEALTH) {
        Ok(health) if health["uptime_s"].is_number() => ServerHealth::Good(health),
        Err(CommandError::Refused { status: 503, message, .. }) => {
            let answer: Value = serde_json::from_str(&message).unwrap_or_default();
            match answer["reason"].as_str() {
                Some(reason) => ServerHealth::Bad(reason.into()),
                None => ServerHealth::None,
            }
        }
        _ => ServerHealth::None,
    }
}

/// Held while a command starts or stops the server.
struct ServiceLock(#[allow(dead_code, reason = "dropping it unlocks the file")] File);

impl ServiceLock {
    /// # Errors
    /// Another command holds it.
    fn acquire(folders: &ServiceFolders) -> Result<ServiceLock, ServiceError> {
        let created = DirBuilder::new().recursive(true).mode(0o700).create(&folders.own);
        created.map_err(file_error(&folders.own))?;
        let path = folders.lock();
        let file = open(&path).map_err(file_error(&path))?;
        match file.try_lock() {
            Ok(()) => Ok(ServiceLock(file)),
            Err(TryLockError::WouldBlock) => Err(ServiceError::Locked),
            Err(TryLockError::Error(error)) => Err(file_error(&path)(error)),
        }
    }
}

/// A file for a lock.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Writes a file that the user alone can read.
fn write_private(path: &Path, text: &str) -> Result<(), ServiceError> {
    let write = || {
        path.parent().map(fs::create_dir_all).transpose()?;
        // A file that is there keeps its mode.
        let draft = path.with_extension("new");
        let _ = fs::remove_file(&draft);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.write_all(text.as_bytes())?;
        fs::rename(&draft, path)
    };
    write().map_err(file_error(path))
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> ServiceError {
    let path = path.to_owned();
    |error| ServiceError::File { path, error }
}

/// Removes the record and the variables, which may be secret: no server of `lanner start` runs.
fn forget(folders: &ServiceFolders) -> Result<(), ServiceError> {
    for path in [folders.environment(), folders.record()] {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(file_error(&path)(error)),
            _ => {}
        }
    }
    Ok(())
}

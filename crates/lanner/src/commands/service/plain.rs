//! A server as a plain process. It holds a lock as long as it lives, so that no other process that
//! got its number is taken for it.

use std::{
    fs::{File, OpenOptions, TryLockError},
    os::unix::process::CommandExt,
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
};

use super::{file_error, open};
use crate::{
    commands::launch::process::send,
    service::{ServiceDefinition, ServiceError, ServiceFolders},
};

/// The server gives requests and engines less than this, and then ends.
const STOP: Duration = Duration::from_secs(30);
/// After it was killed.
const KILLED: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);
/// How long a lock is tried: `lanner status` holds it for a moment.
const LOCK: Duration = Duration::from_secs(2);

/// Whether the server that was started still lives.
pub(super) fn is_alive(folders: &ServiceFolders) -> Result<bool, ServiceError> {
    let path = folders.alive();
    if !path.exists() {
        return Ok(false);
    }
    match open(&path).map_err(file_error(&path))?.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(file_error(&path)(error)),
    }
}

/// Starts the server; it outlives this program and its terminal.
pub(super) fn spawn(service: &ServiceDefinition, folders: &ServiceFolders) -> Result<Child, ServiceError> {
    let lock = lock(folders)?;
    let log = OpenOptions::new().create(true).append(true).open(&service.log);
    let log = log.map_err(file_error(&service.log))?;
    let mut command = Command::new(&service.program);
    command.args(&service.arguments).current_dir(&service.folder).envs(&service.environment);
    // The server inherits the lock with its standard input, which it does not read.
    command.stdin(lock).stdout(log.try_clone().map_err(file_error(&service.log))?).stderr(log);
    command.process_group(0);
    command.spawn().map_err(|error| ServiceError::Command {
        command: service.program.display().to_string(),
        message: error.to_string(),
    })
}

fn lock(folders: &ServiceFolders) -> Result<File, ServiceError> {
    let path = folders.alive();
    let file = open(&path).map_err(file_error(&path))?;
    let started = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if started.elapsed() < LOCK => thread::sleep(POLL),
            Err(TryLockError::WouldBlock) => return Err(ServiceError::Locked),
            Err(TryLockError::Error(error)) => return Err(file_error(&path)(error)),
        }
    }
}

/// Asks the server to end, and kills it if it does not.
pub(super) fn stop(folders: &ServiceFolders, pid: u32) -> Result<(), ServiceError> {
    for (signal, time) in [("TERM", STOP), ("KILL", KILLED)] {
        send(signal, pid);
        let started = Instant::now();
        while started.elapsed() < time {
            if !is_alive(folders)? {
                return Ok(());
            }
            thread::sleep(POLL);
        }
    }
    Err(ServiceError::DoesNotEnd { pid })
}

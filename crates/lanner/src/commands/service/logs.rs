//! `lanner logs`: the end of the server's log, and what follows.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::MetadataExt,
    path::Path,
    thread,
    time::Duration,
};

use super::{CommandError, file_error, log::tail};
use crate::{config::LogsConfig, service::ServiceError};

const POLL: Duration = Duration::from_millis(100);

/// # Errors
/// There is no log, or stdout is closed.
pub fn logs(config: &LogsConfig) -> Result<(), CommandError> {
    let path = config.folders.log();
    let mut file = match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(ServiceError::NoLog.into()),
        file => file.map_err(file_error(&path))?,
    };
    let (text, mut at) = tail(&mut file, config.lines)?;
    print(text.as_bytes())?;
    if !config.follow {
        return Ok(());
    }
    loop {
        let mut more = vec![];
        // It was emptied, as rotation by copying does.
        if file.metadata()?.len() < at {
            at = 0;
        }
        file.seek(SeekFrom::Start(at))?;
        at += file.read_to_end(&mut more)? as u64;
        print(&more)?;
        // The next server begins another file.
        if is_another(&file, &path) && more.is_empty() {
            file = File::open(&path)?;
            at = 0;
            continue;
        }
        thread::sleep(POLL);
    }
}

fn print(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

fn is_another(file: &File, path: &Path) -> bool {
    let inodes = file.metadata().and_then(|open| Ok((open.ino(), fs::metadata(path)?.ino())));
    inodes.is_ok_and(|(open, now)| open != now)
}

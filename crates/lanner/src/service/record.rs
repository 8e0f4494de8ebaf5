//! Record that `lanner start` keeps of the server it started.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use serde::{Deserialize, Serialize};

use super::Manager;

/// A server that was started; in JSON, without secrets.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct ServiceRecord {
    pub manager: Manager,
    pub at_login: bool,
    /// Process id of a server without a manager.
    pub pid: Option<u32>,
    /// Where it was told to listen; port 0 is any.
    pub address: SocketAddr,
    /// In seconds since the Unix epoch.
    pub started: u64,
    pub program: ProgramFile,
    pub arguments: Vec<String>,
    pub folder: PathBuf,
}

/// A file of a program, as it was.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct ProgramFile {
    pub path: PathBuf,
    pub bytes: u64,
    /// When it was changed, in milliseconds since the Unix epoch.
    pub modified: u64,
}

impl ProgramFile {
    /// # Errors
    /// There is no such file.
    pub fn read(path: &Path) -> io::Result<ProgramFile> {
        let file = fs::metadata(path)?;
        let modified = file.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(ProgramFile { path: path.into(), bytes: file.len(), modified: modified.as_millis() as u64 })
    }

    /// In a sentence, how the file differs from what it was; `None`: it does not.
    pub fn change(&self) -> Option<String> {
        let path = self.path.display();
        match ProgramFile::read(&self.path) {
            Ok(now) if now == *self => None,
            Ok(_) => Some(format!(
                "{path} has changed since the server was started; lanner stop and lanner start take the new one"
            )),
            Err(_) => Some(format!(
                "{path}, from which the server was started, is gone; a crash would end the server for good"
            )),
        }
    }
}

impl ServiceRecord {
    /// `None`: there is none, or it is not readable.
    pub fn read(path: &Path) -> Option<ServiceRecord> {
        let text = fs::read_to_string(path).ok()?;
        serde_json::from_str(&text)
            .inspect_err(|error| tracing::warn!("{} is not readable: {error}", path.display()))
            .ok()
    }

    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        // A reader never sees half of it.
        let draft = path.with_extension("new");
        fs::write(&draft, text + "\n")?;
        fs::rename(&draft, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_and_missing_programs_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lanner");
        fs::write(&path, "one").unwrap();
        let file = ProgramFile::read(&path).unwrap();
        assert_eq!(file.change(), None);
        fs::write(&path, "three").unwrap();
        assert!(file.change().unwrap().contains("has changed since the server was started"));
        fs::remove_file(&path).unwrap();
        assert!(file.change().unwrap().contains("is gone"));
    }

    #[test]
    fn record_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("service.json");
        assert_eq!(ServiceRecord::read(&path), None);
        let program = ProgramFile { path: "/bin/lanner".into(), bytes: 1, modified: 2 };
        let record = ServiceRecord {
            manager: Manager::Plain,
            at_login: false,
            pid: Some(7),
            address: "127.0.0.1:0".parse().unwrap(),
            started: 3,
            program,
            arguments: vec!["serve".into()],
            folder: "/".into(),
        };
        record.write(&path).unwrap();
        assert_eq!(ServiceRecord::read(&path), Some(record));
        fs::write(&path, "{").unwrap();
        assert_eq!(ServiceRecord::read(&path), None);
    }
}

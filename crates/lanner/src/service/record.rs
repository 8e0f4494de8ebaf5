//! Record that `lanner start` keeps of the server it started.

use std::{
    collections::BTreeMap,
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use super::{Manager, ServiceError};

/// Variables that differ between terminals and change nothing that a server does.
const OF_THE_TERMINAL: [&str; 4] = ["PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "NO_COLOR"];

/// A server that was started; in JSON, without secrets.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct ServiceRecord {
    pub manager: Manager,
    pub at_login: bool,
    /// Process id of a server without a manager.
    pub pid: Option<u32>,
    /// Where it was told to listen, port 0 is any; once it is ready, where it listens.
    pub address: SocketAddr,
    /// Whether it has been ready.
    pub is_ready: bool,
    /// In seconds since the Unix epoch.
    pub started: u64,
    pub program: ProgramFile,
    pub arguments: Vec<String>,
    pub variables: VariableDigests,
    pub folder: PathBuf,
}

/// Variables of a server by digests, as they may be secret.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct VariableDigests {
    salt: String,
    /// By name.
    digests: BTreeMap<String, String>,
}

impl VariableDigests {
    /// `salt` should be random.
    pub fn new(salt: String, variables: &BTreeMap<String, String>) -> VariableDigests {
        let counts = |name: &str| !OF_THE_TERMINAL.contains(&name);
        let digests = variables.iter().filter(|(name, _)| counts(name)).map(|(name, value)| {
            let found = digest(&SHA256, format!("{salt}\0{name}\0{value}").as_bytes());
            (name.clone(), found.as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
        });
        let digests = digests.collect();
        VariableDigests { salt, digests }
    }

    /// Names of the variables that are others than those of the record.
    pub fn differing(&self, variables: &BTreeMap<String, String>) -> Vec<String> {
        let now = VariableDigests::new(self.salt.clone(), variables);
        let names =
            self.digests.keys().chain(now.digests.keys().filter(|name| !self.digests.contains_key(*name)));
        names.filter(|name| self.digests.get(*name) != now.digests.get(*name)).cloned().collect()
    }
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
    /// `None`: there is none.
    ///
    /// # Errors
    /// The file cannot be read, or is not one that [`ServiceRecord::write`] made.
    pub fn read(path: &Path) -> Result<Option<ServiceRecord>, ServiceError> {
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text,
        };
        let read = text.and_then(|text| Ok(serde_json::from_str(&text)?));
        read.map(Some).map_err(|error| ServiceError::Record { path: path.into(), error })
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
        assert_eq!(ServiceRecord::read(&path).unwrap(), None);
        let program = ProgramFile { path: "/bin/lanner".into(), bytes: 1, modified: 2 };
        let record = ServiceRecord {
            manager: Manager::Plain,
            at_login: false,
            pid: Some(7),
            address: "127.0.0.1:0".parse().unwrap(),
            is_ready: false,
            started: 3,
            program,
            arguments: vec!["serve".into()],
            variables: VariableDigests::new("salt".into(), &BTreeMap::new()),
            folder: "/".into(),
        };
        record.write(&path).unwrap();
        assert_eq!(ServiceRecord::read(&path).unwrap(), Some(record));
        fs::write(&path, "{").unwrap();
        let error = ServiceRecord::read(&path).unwrap_err().to_string();
        assert!(error.contains("service.json is not readable"), "{error}");
    }

    #[test]
    fn variable_digests_name_what_differs_and_hold_no_value() {
        let variables = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let before = variables(&[("LANNER_API_KEY", "s3cr3t"), ("HF_TOKEN", "t"), ("PATH", "/bin")]);
        let digests = VariableDigests::new("salt".into(), &before);
        assert!(!serde_json::to_string(&digests).unwrap().contains("s3cr3t"));
        assert!(digests.differing(&before).is_empty());
        let now = variables(&[("LANNER_API_KEY", "other"), ("LANNER_STORE", "x"), ("PATH", "/usr/bin")]);
        assert_eq!(digests.differing(&now), ["HF_TOKEN", "LANNER_API_KEY", "LANNER_STORE"]);
    }
}

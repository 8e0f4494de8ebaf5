//! An entry of ours in a file that belongs to an agent: added, with the file as it was kept beside
//! our own files, and taken out again. All other bytes of the file stay as they are.

use std::{
    fs::{self, DirBuilder},
    io::{self, ErrorKind},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    LaunchError,
    json_edit::{self, JsonError},
};

/// One member of a JSON file.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub file: PathBuf,
    /// The text of the file before the entry if there is none.
    pub new_file: &'static str,
    /// From the outermost object inwards.
    pub keys: &'static [&'static str],
    pub value: Value,
}

/// What restoring did.
#[derive(Debug, PartialEq, Eq)]
pub enum Restored {
    /// The file is as it was, or gone as before.
    Whole,
    /// The file was changed since; only the entry was taken out.
    Entry,
    /// There was nothing to restore.
    Nothing,
}

/// The file before our first entry and after our last one.
struct Backup {
    before: PathBuf,
    after: PathBuf,
}

impl Entry {
    /// Writes the entry; `folder` keeps the file as it was.
    ///
    /// # Errors
    /// The file is not JSON, or a file cannot be read or written.
    pub fn write(&self, folder: &Path) -> Result<(), LaunchError> {
        let (file, backup) = (self.target(), self.backup(folder));
        let current = read(&file)?;
        let original = self.original(current.as_deref(), &backup)?;
        let value = format!("{:#}", self.value);
        let changed = json_edit::set(current.as_deref().unwrap_or(self.new_file), self.keys, &value);
        let changed = changed.map_err(|error| self.fault(error))?;
        match original {
            Some(text) => write_private(&backup.before, &text)?,
            None => remove(&backup.before)?,
        }
        write_private(&backup.after, &changed)?;
        if current.as_deref() != Some(&changed) {
            replace(&file, &changed)?;
        }
        Ok(())
    }

    /// Takes the entry out.
    ///
    /// # Errors
    /// The file is not JSON, or a file cannot be read or written.
    pub fn restore(&self, folder: &Path) -> Result<Restored, LaunchError> {
        let (file, backup) = (self.target(), self.backup(folder));
        let Some(after) = read(&backup.after)? else { return Ok(Restored::Nothing) };
        let current = read(&file)?;
        let is_ours = current.as_deref() == Some(&*after);
        match (self.original(current.as_deref(), &backup)?, current) {
            (Some(text), Some(_)) => replace(&file, &text)?,
            (None, Some(_)) => remove(&file)?,
            // The file was deleted since.
            (_, None) => {}
        }
        remove(&backup.before)?;
        remove(&backup.after)?;
        Ok(if is_ours { Restored::Whole } else { Restored::Entry })
    }

    /// The current text without our entry; `None`: no file.
    fn original(&self, current: Option<&str>, backup: &Backup) -> Result<Option<String>, LaunchError> {
        let (before, after) = (read(&backup.before)?, read(&backup.after)?);
        let Some(current) = current else { return Ok(None) };
        match after {
            None => Ok(Some(current.to_owned())),
            Some(after) if after == current => Ok(before),
            Some(_) => {
                let own = json_edit::get(before.as_deref().unwrap_or_default(), self.keys);
                let text = own.and_then(|own| match own {
                    Some(value) => json_edit::put_back(current, self.keys, value),
                    None => json_edit::remove(current, self.keys),
                });
                text.map(Some).map_err(|error| self.fault(error))
            }
        }
    }

    /// The file itself where the path is a link to it.
    fn target(&self) -> PathBuf {
        self.file.canonicalize().unwrap_or_else(|_| self.file.clone())
    }

    fn backup(&self, folder: &Path) -> Backup {
        let name = self.file.file_name().unwrap_or_default().to_string_lossy();
        let path = |end: &str| folder.join(format!("{name}.{end}"));
        Backup { before: path("before"), after: path("after") }
    }

    fn fault(&self, error: JsonError) -> LaunchError {
        LaunchError::NotJson { path: self.file.clone(), error }
    }
}

/// `None` if there is no file.
fn read(path: &Path) -> Result<Option<String>, LaunchError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(LaunchError::Read { path: path.into(), error }),
    }
}

fn remove(path: &Path) -> Result<(), LaunchError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed(path)(error)),
        _ => Ok(()),
    }
}

/// Replaces a file whole or not at all; its permissions stay.
fn replace(path: &Path, text: &str) -> Result<(), LaunchError> {
    let partial = path.with_extension(format!("lanner-{}", std::process::id()));
    let write = || -> io::Result<()> {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(&partial, text)?;
        // A new file may get a key.
        let private = fs::Permissions::from_mode(0o600);
        let permissions = fs::metadata(path).map_or(private, |metadata| metadata.permissions());
        fs::set_permissions(&partial, permissions)?;
        fs::rename(&partial, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&partial);
        failed(path)(error)
    })
}

/// Writes a file into a folder that the user alone can read: it may hold API keys.
pub fn write_private(path: &Path, text: &str) -> Result<(), LaunchError> {
    let folder = path.parent().unwrap_or(path);
    let created = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    created.and_then(|()| fs::write(path, text)).map_err(failed(path))
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> LaunchError {
    let path = path.to_owned();
    |error| LaunchError::Write { path, error }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MINE: &str = "{\n  \"providers\": {\n    \"z\": {\"key\":   1}\n  }\n}\n";

    fn world(text: Option<&str>) -> (tempfile::TempDir, Entry, PathBuf) {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("agent/models.json");
        if let Some(text) = text {
            fs::create_dir(home.path().join("agent")).unwrap();
            fs::write(&file, text).unwrap();
        }
        let entry =
            Entry { file, new_file: "", keys: &["providers", "lanner"], value: json!({ "url": "a" }) };
        let own = home.path().join("own");
        (home, entry, own)
    }

    #[test]
    fn restore_brings_back_every_byte() {
        let (_home, mut entry, own) = world(Some(MINE));
        fs::set_permissions(&entry.file, fs::Permissions::from_mode(0o600)).unwrap();
        entry.write(&own).unwrap();
        entry.value = json!({ "url": "b" });
        entry.write(&own).unwrap();
        let text = fs::read_to_string(&entry.file).unwrap();
        assert!(text.contains("\"url\": \"b\"") && text.contains("{\"key\":   1}"), "{text}");
        assert_eq!(fs::metadata(&entry.file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&own).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(entry.restore(&own).unwrap(), Restored::Whole);
        assert_eq!(fs::read_to_string(&entry.file).unwrap(), MINE);
        assert_eq!(entry.restore(&own).unwrap(), Restored::Nothing);
    }

    #[test]
    fn restore_removes_a_file_that_was_not_there() {
        let (_home, entry, own) = world(None);
        entry.write(&own).unwrap();
        assert_eq!(fs::metadata(&entry.file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(entry.restore(&own).unwrap(), Restored::Whole);
        assert!(!entry.file.exists());
    }

    #[test]
    fn restore_keeps_what_the_user_changed_since() {
        let (_home, entry, own) = world(Some(MINE));
        let edit = |from: &str, to: &str| {
            let text = fs::read_to_string(&entry.file).unwrap();
            fs::write(&entry.file, text.replace(from, to)).unwrap();
        };
        entry.write(&own).unwrap();
        edit("\"z\"", "\"changed\"");
        // A later entry must not take the change for its own.
        entry.write(&own).unwrap();
        assert_eq!(entry.restore(&own).unwrap(), Restored::Whole);
        assert_eq!(fs::read_to_string(&entry.file).unwrap(), MINE.replace("\"z\"", "\"changed\""));

        entry.write(&own).unwrap();
        edit("\"changed\"", "\"again\"");
        assert_eq!(entry.restore(&own).unwrap(), Restored::Entry);
        assert_eq!(fs::read_to_string(&entry.file).unwrap(), MINE.replace("\"z\"", "\"again\""));
    }

    #[test]
    fn restore_brings_back_an_entry_of_the_same_name() {
        let text = "{\"providers\": {\"lanner\": {\"by\": \"hand\"}}}";
        let (_home, entry, own) = world(Some(text));
        entry.write(&own).unwrap();
        let ours = fs::read_to_string(&entry.file).unwrap();
        fs::write(&entry.file, format!("{ours}\n")).unwrap();
        assert_eq!(entry.restore(&own).unwrap(), Restored::Entry);
        assert_eq!(fs::read_to_string(&entry.file).unwrap(), format!("{text}\n"));
    }

    #[test]
    fn file_that_is_not_json_is_refused_and_left_alone() {
        let (_home, entry, own) = world(Some("{ \"a\": }"));
        let error = entry.write(&own).unwrap_err().to_string();
        assert!(error.contains("models.json") && error.contains("a value is missing"), "{error}");
        assert_eq!(fs::read_to_string(&entry.file).unwrap(), "{ \"a\": }");
        assert!(!own.exists());
    }
}

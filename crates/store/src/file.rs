//! The store's file: made for the user alone, checked when it is opened, set aside if it is
//! damaged.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Read},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rusqlite::{Connection, OpenFlags};

use crate::{StoreError, schema};

/// How long a writer waits for another program.
const BUSY: Duration = Duration::from_secs(5);
/// Larger files are checked only after an error, since a check reads all of it.
const CHECKED_BYTES: u64 = 64 << 20;
/// Bytes of a page, SQLite's default.
pub(crate) const PAGE: u64 = 4096;
/// Begins every file of SQLite.
const MAGIC: [u8; 16] = *b"SQLite format 3\0";
/// Files that SQLite has beside its own.
const BESIDE: [&str; 2] = ["-wal", "-shm"];
/// Beside a file in which an error was found; the next start checks it.
const SUSPECT: &str = "-suspect";

/// An open file, ready to be written.
pub(crate) struct Opened {
    pub(crate) connection: Connection,
    /// A sentence about a damaged file that was set aside.
    pub(crate) notice: Option<String>,
}

/// Opens the file, or makes it.
///
/// # Errors
/// It cannot be opened or made, or is another program's, or of a newer version.
pub(crate) fn open(path: &Path) -> Result<Opened, StoreError> {
    prepare(path).map_err(|error| cannot_open(path, error))?;
    match Checked::of(path)? {
        Checked::Sound(connection) => Ok(Opened { connection, notice: None }),
        Checked::Damaged(problem) => {
            let aside = set_aside(path).map_err(|error| cannot_open(path, error))?;
            prepare(path).map_err(|error| cannot_open(path, error))?;
            let notice = format!(
                "the store {} is damaged ({problem}); it was set aside as {}, and a new one begins",
                path.display(),
                aside.display()
            );
            match Checked::of(path)? {
                Checked::Sound(connection) => Ok(Opened { connection, notice: Some(notice) }),
                Checked::Damaged(problem) => Err(cannot_open(path, problem)),
            }
        }
    }
}

/// Opens the file for reading.
pub(crate) fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

/// Marks the file for a check at the next start.
pub(crate) fn suspect(path: &Path) {
    // Without the mark, small files are checked all the same.
    let _ =
        OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(beside(path, SUSPECT));
}

fn cannot_open(path: &Path, problem: impl ToString) -> StoreError {
    StoreError::Open { path: path.into(), problem: problem.to_string() }
}

/// Makes the folders and the file if they are missing, readable for the user alone.
fn prepare(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        // Opening a pipe would wait for its other end.
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    // SQLite makes the files beside it with the same permissions.
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    let metadata = file.metadata()?;
    if metadata.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
        for name in BESIDE {
            let _ = fs::set_permissions(beside(path, name), Permissions::from_mode(0o600));
        }
    }
    Ok(())
}

enum Checked {
    Sound(Connection),
    Damaged(String),
}

impl Checked {
    fn of(path: &Path) -> Result<Checked, StoreError> {
        if let Some(problem) = check_head(path)? {
            return Ok(Checked::Damaged(problem));
        }
        let begun = Instant::now();
        let connected = loop {
            match connect_writer(path) {
                // Where waiting could be a deadlock, as when two programs turn a new file to
                // WAL, SQLite does not wait.
                Err(Unusable::Other(StoreError::Busy)) if begun.elapsed() < BUSY => {
                    thread::sleep(Duration::from_millis(10));
                }
                connected => break connected,
            }
        };
        match connected {
            Ok(connection) => Ok(Checked::Sound(connection)),
            Err(Unusable::Damaged(problem)) => Ok(Checked::Damaged(problem)),
            Err(Unusable::Other(error)) => Err(error),
        }
    }
}

/// Why a file is not used: `Damaged` files are set aside, others are left alone.
enum Unusable {
    Damaged(String),
    Other(StoreError),
}

impl From<rusqlite::Error> for Unusable {
    fn from(error: rusqlite::Error) -> Unusable {
        let problem = error.to_string();
        match StoreError::from(error) {
            StoreError::Damaged => Unusable::Damaged(problem),
            other => Unusable::Other(other),
        }
    }
}

/// A problem with the first bytes; those of a file that was never one of SQLite's are an error.
fn check_head(path: &Path) -> Result<Option<String>, StoreError> {
    let mut head = vec![];
    let read = File::open(path).and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut head));
    read.map_err(|error| cannot_open(path, error))?;
    match &head[..] {
        [] => Ok(None),
        head if *head == MAGIC => Ok(None),
        // Some file systems leave zeros after a power failure.
        head if head.iter().all(|byte| *byte == 0) => Ok(Some("its head is empty".into())),
        _ => Err(StoreError::Foreign(path.into())),
    }
}

fn connect_writer(path: &Path) -> Result<Connection, Unusable> {
    let mut connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    // One state of the file: another program may be making its tables.
    let state = connection.transaction()?;
    let number = |query| state.query_row(query, [], |row| row.get::<_, i64>(0));
    let version = number("PRAGMA user_version")?;
    let identity = number("PRAGMA application_id")?;
    let tables = number("SELECT count(*) FROM sqlite_schema")?;
    drop(state);
    if tables > 0 && identity != schema::APPLICATION {
        return Err(Unusable::Other(StoreError::Foreign(path.into())));
    }
    if version > schema::VERSION {
        return Err(Unusable::Other(StoreError::Newer { path: path.into(), version }));
    }
    check_content(path, &connection)?;
    connection.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON;
         PRAGMA secure_delete = ON; PRAGMA journal_size_limit = 16777216; PRAGMA cache_size = -16384;",
    )?;
    match schema::migrate(&mut connection) {
        Ok(()) => Ok(connection),
        Err(StoreError::Damaged) => Err(Unusable::Damaged("its tables cannot be read".into())),
        Err(error) => Err(Unusable::Other(error)),
    }
}

fn check_content(path: &Path, connection: &Connection) -> Result<(), Unusable> {
    let length = fs::metadata(path).map_or(0, |metadata| metadata.len());
    let suspect = beside(path, SUSPECT);
    if length > CHECKED_BYTES && !suspect.exists() {
        return Ok(());
    }
    let found: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if found != "ok" {
        return Err(Unusable::Damaged(found.lines().next().unwrap_or_default().to_owned()));
    }
    let _ = fs::remove_file(suspect);
    Ok(())
}

fn connect(path: &Path, access: OpenFlags) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY)?;
    // Texts go into no other file.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    Ok(connection)
}

/// Renames the file and those beside it; returns its new name.
fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let aside = (0..1000)
        .map(|more| beside(path, &format!(".damaged-{}", now + more)))
        .find(|aside| !aside.exists())
        .ok_or_else(|| io::Error::other("too many damaged files lie beside it"))?;
    fs::rename(path, &aside)?;
    for name in BESIDE {
        match fs::rename(beside(path, name), beside(&aside, name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    let _ = fs::remove_file(beside(path, SUSPECT));
    Ok(aside)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

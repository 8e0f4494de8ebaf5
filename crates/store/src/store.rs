//! The store: one thread writes, any thread reads.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{self, SyncSender, TrySendError},
    },
    thread::{self, JoinHandle},
};

use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::{
    RequestRecord, StoreError, file,
    writer::{self, Job, Limits},
};

/// Jobs that wait for the writer; more records than that are dropped.
const QUEUE: usize = 4096;
/// Connections that are kept for further reads.
const IDLE_READERS: usize = 4;

/// An open store. Cheap to clone; the last clone waits for what is being written.
#[derive(Clone)]
pub struct Store(Arc<Shared>);

/// An open store, and what the user should know of its opening.
pub struct Opening {
    pub store: Store,
    /// A sentence: a damaged file was set aside.
    pub notice: Option<String>,
}

struct Shared {
    path: PathBuf,
    /// `None` only while it is dropped.
    jobs: Option<SyncSender<Job>>,
    writer: Option<JoinHandle<()>>,
    readers: Mutex<Vec<Connection>>,
    /// Whether records were dropped because the disk was too slow.
    has_dropped: AtomicBool,
}

impl Store {
    /// Opens the file, which is made if it is missing.
    ///
    /// # Errors
    /// It cannot be opened or made, or is another program's, or of a newer version.
    pub fn open(path: &Path) -> Result<Opening, StoreError> {
        Store::open_with(path, Limits::default())
    }

    /// Opens the file if there is one.
    ///
    /// # Errors
    /// Those of [`open`](Store::open).
    pub fn open_existing(path: &Path) -> Result<Option<Opening>, StoreError> {
        if path.exists() { Store::open(path).map(Some) } else { Ok(None) }
    }

    /// Like [`open`](Store::open), with other limits.
    ///
    /// # Errors
    /// Those of [`open`](Store::open).
    pub fn open_with(path: &Path, limits: Limits) -> Result<Opening, StoreError> {
        let file::Opened { connection, notice } = file::open(path)?;
        connection.pragma_update(None, "max_page_count", (limits.bytes / file::PAGE).max(1) as i64)?;
        let (jobs, queue) = mpsc::sync_channel(QUEUE);
        let writer = thread::Builder::new().name("store".into());
        let writer = writer.spawn(move || writer::run(connection, &queue, limits))?;
        let shared = Shared {
            path: path.into(),
            jobs: Some(jobs),
            writer: Some(writer),
            readers: Mutex::default(),
            has_dropped: AtomicBool::new(false),
        };
        Ok(Opening { store: Store(Arc::new(shared)), notice })
    }

    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Adds figures of a request, in a later batch; never waits.
    pub fn record(&self, record: RequestRecord) {
        let Some(jobs) = &self.0.jobs else { return };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            jobs.try_send(Job::Record(Box::new(record)))
            && !self.0.has_dropped.swap(true, Relaxed)
        {
            tracing::warn!("the disk is too slow for figures of requests: some are not stored");
        }
    }

    /// Waits until everything recorded so far is stored, or could not be.
    ///
    /// # Errors
    /// The writer has ended.
    pub fn flush(&self) -> Result<(), StoreError> {
        let (done, wait) = mpsc::sync_channel(1);
        self.send(Job::Flush(done))?;
        wait.recv().map_err(|_| StoreError::Ended)
    }

    /// Moves what was written from the log into the file, and empties the log: what was removed is
    /// gone from the disk then. Another program that reads the file delays it.
    pub(crate) fn checkpoint(&self) -> Result<(), StoreError> {
        self.send(Job::Run(Box::new(|connection| {
            let _ = connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE);");
        })))
    }

    /// Runs one transaction on the writer's thread and waits for it.
    pub(crate) fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, result) = mpsc::sync_channel(1);
        let job = move |connection: &mut Connection| {
            // The caller may have ended meanwhile.
            let _ = answer.send(in_transaction(connection, work));
        };
        self.send(Job::Run(Box::new(job)))?;
        self.noting(result.recv().map_err(|_| StoreError::Ended).flatten())
    }

    /// Runs work on a connection that reads one state of the file.
    pub(crate) fn read<T>(
        &self,
        work: impl FnOnce(&Transaction) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let idle = self.0.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => file::open_reader(&self.0.path)?,
        };
        let result = connection.transaction().map_err(StoreError::from).and_then(|state| work(&state));
        let mut readers = self.0.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if readers.len() < IDLE_READERS {
            readers.push(connection);
        }
        drop(readers);
        self.noting(result)
    }

    fn send(&self, job: Job) -> Result<(), StoreError> {
        let jobs = self.0.jobs.as_ref().ok_or(StoreError::Ended)?;
        jobs.send(job).map_err(|_| StoreError::Ended)
    }

    /// Marks a damaged file for the next start.
    fn noting<T>(&self, result: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(StoreError::Damaged) = &result {
            file::suspect(&self.0.path);
        }
        result
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_tuple("Store").field(&self.0.path).finish()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The writer ends when no sender is left. Readers go first: its connection is the last.
        self.readers.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        self.jobs = None;
        let _ = self.writer.take().map(JoinHandle::join);
    }
}

fn in_transaction<T>(
    connection: &mut Connection,
    work: impl FnOnce(&Transaction) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let result = work(&transaction)?;
    transaction.commit()?;
    Ok(result)
}

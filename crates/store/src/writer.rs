//! The thread that writes: transactions as they come, records of requests in batches.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender},
    time::{Duration, Instant},
};

use rusqlite::Connection;

use crate::{RequestRecord, StoreError, requests};

/// How long a record waits for others.
const BATCH_TIME: Duration = Duration::from_secs(1);
const BATCH: usize = 256;
/// Records that are kept while the disk refuses them.
const MOST_WAITING: usize = 4096;

/// How large the store grows: records of requests, their age, and the file.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub bytes: u64,
    pub requests: u32,
    pub request_age: Duration,
    /// Of the sums by hour.
    pub usage_age: Duration,
}

pub(crate) enum Job {
    Run(Box<dyn FnOnce(&mut Connection) + Send>),
    Record(Box<RequestRecord>),
    Flush(SyncSender<()>),
}

impl Default for Limits {
    fn default() -> Limits {
        let days = |days: u64| Duration::from_secs(days * 24 * 3600);
        Limits { bytes: 8 << 30, requests: 100_000, request_age: days(90), usage_age: days(2 * 366) }
    }
}

/// Works until no sender is left.
pub(crate) fn run(connection: Connection, jobs: &Receiver<Job>, limits: Limits) {
    let mut batch = Batch { connection, limits, records: vec![], since: None, has_failed: false };
    loop {
        let job = match batch.since {
            None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(since) => jobs.recv_timeout(BATCH_TIME.saturating_sub(since.elapsed())),
        };
        match job {
            // A bug of one job must not end the others; its caller learns that there is no answer.
            Ok(Job::Run(job)) => drop(catch_unwind(AssertUnwindSafe(|| job(&mut batch.connection)))),
            Ok(Job::Record(record)) => batch.push(*record),
            Ok(Job::Flush(done)) => {
                batch.flush();
                let _ = done.send(());
            }
            Err(RecvTimeoutError::Timeout) => batch.flush(),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    batch.flush();
    // Fails if another program has the file open, which then does it.
    let _ = batch.connection.execute_batch("PRAGMA optimize; PRAGMA wal_checkpoint(TRUNCATE);");
}

struct Batch {
    connection: Connection,
    limits: Limits,
    records: Vec<RequestRecord>,
    /// When the first of `records` came, or the last attempt to write them failed.
    since: Option<Instant>,
    has_failed: bool,
}

impl Batch {
    fn push(&mut self, record: RequestRecord) {
        if self.records.len() >= MOST_WAITING {
            self.records.remove(0);
        }
        self.records.push(record);
        self.since.get_or_insert_with(Instant::now);
        if self.records.len().is_multiple_of(BATCH) {
            self.flush();
        }
    }

    /// Records that cannot be written wait for the next attempt.
    fn flush(&mut self) {
        self.since = None;
        if self.records.is_empty() {
            return;
        }
        match requests::insert(&mut self.connection, &self.records, self.limits) {
            Ok(()) => {
                self.records.clear();
                self.has_failed = false;
            }
            Err(error) => {
                self.since = Some(Instant::now());
                self.warn(&error);
            }
        }
    }

    /// Once until it works again.
    fn warn(&mut self, error: &StoreError) {
        if !std::mem::replace(&mut self.has_failed, true) {
            tracing::warn!("figures of requests are not stored: {error}");
        }
    }
}

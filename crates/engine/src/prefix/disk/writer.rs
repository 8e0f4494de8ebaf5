//! Thread that writes state files, so that the engine's thread never waits for a disk. Knows
//! nothing of trees.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
};

use super::{
    atomic::write_atomic,
    folder,
    segment::{Payload, Segment},
};

/// Bytes that may wait to be written; an empty queue accepts a larger segment.
const MAX_QUEUED: usize = 256 << 20;

pub(super) struct Writer {
    /// `None` once the thread is to end.
    jobs: Option<Sender<Job>>,
    events: Receiver<WriteEvent>,
    /// Bytes that wait to be written.
    queued: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

pub(super) struct Write {
    pub path: PathBuf,
    pub segment: Segment,
    pub payload: Payload,
    /// Files with the state of earlier tokens, in order.
    pub ancestors: Vec<PathBuf>,
}

enum Job {
    Write(Box<Write>),
    /// Marks files as used.
    Touch(Vec<PathBuf>),
    /// Removes a file.
    Remove(PathBuf),
    /// Removes all files, then calls.
    Clear(Box<dyn FnOnce() + Send>),
}

/// A change of files on the disk.
pub(super) enum WriteEvent {
    Written(PathBuf),
    Removed(Vec<PathBuf>),
}

impl Writer {
    /// Writes into `folder` and keeps `root` within `budget` bytes.
    ///
    /// # Errors
    /// No thread can be started.
    pub(super) fn start(root: PathBuf, folder: PathBuf, budget: u64) -> std::io::Result<Writer> {
        let (jobs, queue) = channel();
        let (sender, events) = channel();
        let queued = Arc::new(AtomicUsize::new(0));
        let still_queued = queued.clone();
        let mut checked = folder::Checked::new();
        let work = move || {
            for job in queue {
                let events = match job {
                    Job::Write(write) => {
                        let bytes = write.payload.bytes();
                        let events = store(*write, &root, budget, &mut checked);
                        still_queued.fetch_sub(bytes, Ordering::Relaxed);
                        events
                    }
                    Job::Touch(paths) => {
                        folder::touch(&paths);
                        vec![]
                    }
                    Job::Remove(path) => {
                        warn_if_failed(&path, folder::remove(&path));
                        vec![]
                    }
                    Job::Clear(done) => {
                        for entry in folder::entries(&folder).unwrap_or_default() {
                            warn_if_failed(&entry.path, folder::remove(&entry.path));
                        }
                        done();
                        vec![]
                    }
                };
                // If the engine has ended, the rest of the queue is written nevertheless.
                events.into_iter().for_each(|event| _ = sender.send(event));
            }
        };
        let thread = thread::Builder::new().name("lanner-disk".into()).spawn(work)?;
        Ok(Writer { jobs: Some(jobs), events, queued, thread: Some(thread) })
    }

    /// Whether the queue accepts `bytes` more.
    pub(super) fn accepts(&self, bytes: usize) -> bool {
        let queued = self.queued.load(Ordering::Relaxed);
        queued == 0 || queued + bytes <= MAX_QUEUED
    }

    /// Whether the thread is running.
    pub(super) fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    pub(super) fn write(&self, write: Write) {
        self.queued.fetch_add(write.payload.bytes(), Ordering::Relaxed);
        self.send(Job::Write(Box::new(write)));
    }

    pub(super) fn touch(&self, paths: Vec<PathBuf>) {
        self.send(Job::Touch(paths));
    }

    pub(super) fn remove(&self, path: PathBuf) {
        self.send(Job::Remove(path));
    }

    pub(super) fn clear(&self, done: impl FnOnce() + Send + 'static) {
        self.send(Job::Clear(Box::new(done)));
    }

    pub(super) fn events(&self) -> impl Iterator<Item = WriteEvent> {
        self.events.try_iter()
    }

    fn send(&self, job: Job) {
        // Without its thread the tier does nothing, which only costs speed.
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job);
        }
    }
}

impl Drop for Writer {
    /// Waits until the queue is written.
    fn drop(&mut self) {
        self.jobs = None;
        self.thread.take().into_iter().for_each(|thread| _ = thread.join());
    }
}

fn store(write: Write, root: &Path, budget: u64, checked: &mut folder::Checked) -> Vec<WriteEvent> {
    let Write { path, segment, payload, ancestors } = write;
    // Eviction must not choose the ancestors.
    folder::touch(&ancestors);
    let bytes = segment.bytes().iter().sum::<usize>() as u64 + segment.header_bytes();
    let removed = match folder::shrink(root, budget.saturating_sub(bytes), checked) {
        Ok(removed) => removed,
        Err(error) => {
            tracing::warn!("the disk cache cannot make room in {}: {error}", root.display());
            return vec![WriteEvent::Removed(vec![path])];
        }
    };
    let written = write_atomic(&path, |file| segment.write(payload, file));
    if let Err(error) = &written {
        tracing::warn!("the disk cache cannot write {}: {error}", path.display());
    } else {
        folder::touch(&ancestors);
    }
    let event = if written.is_ok() { WriteEvent::Written(path) } else { WriteEvent::Removed(vec![path]) };
    vec![WriteEvent::Removed(removed), event]
}

fn warn_if_failed(path: &Path, removed: std::io::Result<()>) {
    if let Err(error) = removed {
        tracing::warn!("the disk cache cannot remove {}: {error}", path.display());
    }
}

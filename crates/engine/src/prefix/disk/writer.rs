//! The thread that writes state down, so that the engine's never waits for a disk. Knows nothing of trees.

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
    file::{Contents, Piece},
    folder,
};

/// Bytes that may wait to be written; what comes then is not stored. One piece may be larger.
const MOST_WAITING: usize = 256 << 20;

pub struct Writer {
    /// `None` once it is told to end.
    jobs: Option<Sender<Job>>,
    reports: Receiver<Report>,
    waiting: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

pub struct Write {
    pub path: PathBuf,
    pub piece: Piece,
    pub contents: Contents,
    /// Files that this one builds on, from the first tokens on.
    pub above: Vec<PathBuf>,
}

enum Job {
    Write(Box<Write>),
    /// Mark as used.
    Touch(Vec<PathBuf>),
    /// Remove a file.
    Remove(PathBuf),
    /// Remove all files; then call.
    Clear(Box<dyn FnOnce() + Send>),
}

/// What has become of files.
pub enum Report {
    Written(PathBuf),
    Gone(Vec<PathBuf>),
}

impl Writer {
    /// Writes into `folder`, and keeps all that lies in `root` within `budget` bytes.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(root: PathBuf, folder: PathBuf, budget: u64) -> std::io::Result<Writer> {
        let (jobs, queue) = channel();
        let (reporter, reports) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let left = waiting.clone();
        let mut checked = folder::Checked::new();
        let work = move || {
            for job in queue {
                let report = match job {
                    Job::Write(write) => {
                        let bytes = write.contents.bytes();
                        let report = store(*write, &root, budget, &mut checked);
                        left.fetch_sub(bytes, Ordering::Relaxed);
                        report
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
                // The engine may have gone; what waits is written all the same.
                report.into_iter().for_each(|report| _ = reporter.send(report));
            }
        };
        let thread = thread::Builder::new().name("lanner-disk".into()).spawn(work)?;
        Ok(Writer { jobs: Some(jobs), reports, waiting, thread: Some(thread) })
    }

    /// Whether `bytes` more may wait.
    pub fn has_room(&self, bytes: usize) -> bool {
        let waiting = self.waiting.load(Ordering::Relaxed);
        waiting == 0 || waiting + bytes <= MOST_WAITING
    }

    /// Whether what is handed over will be written.
    pub fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    pub fn write(&self, write: Write) {
        self.waiting.fetch_add(write.contents.bytes(), Ordering::Relaxed);
        self.send(Job::Write(Box::new(write)));
    }

    pub fn touch(&self, paths: Vec<PathBuf>) {
        self.send(Job::Touch(paths));
    }

    pub fn remove(&self, path: PathBuf) {
        self.send(Job::Remove(path));
    }

    pub fn clear(&self, done: impl FnOnce() + Send + 'static) {
        self.send(Job::Clear(Box::new(done)));
    }

    pub fn reports(&self) -> impl Iterator<Item = Report> {
        self.reports.try_iter()
    }

    fn send(&self, job: Job) {
        // Without its thread the tier does nothing any more, which is only slower.
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job);
        }
    }
}

impl Drop for Writer {
    /// Waits until what was handed over is on the disk.
    fn drop(&mut self) {
        self.jobs = None;
        self.thread.take().into_iter().for_each(|thread| _ = thread.join());
    }
}

fn store(write: Write, root: &Path, budget: u64, checked: &mut folder::Checked) -> Vec<Report> {
    let Write { path, piece, contents, above } = write;
    // Before room is made, so that it is not made of them.
    folder::touch(&above);
    let room = budget.saturating_sub(piece.bytes().iter().sum::<usize>() as u64 + piece.header_bytes());
    let gone = match folder::shrink(root, room, checked) {
        Ok(gone) => gone,
        Err(error) => {
            tracing::warn!("the disk cache cannot make room in {}: {error}", root.display());
            return vec![Report::Gone(vec![path])];
        }
    };
    let written = folder::write(&path, |file| piece.write(contents, file));
    if let Err(error) = &written {
        tracing::warn!("the disk cache cannot write {}: {error}", path.display());
    } else {
        folder::touch(&above);
    }
    let report = if written.is_ok() { Report::Written(path) } else { Report::Gone(vec![path]) };
    vec![Report::Gone(gone), report]
}

fn warn_if_failed(path: &Path, removed: std::io::Result<()>) {
    if let Err(error) = removed {
        tracing::warn!("the disk cache cannot remove {}: {error}", path.display());
    }
}

//! The thread that reads state: opening, checking and unpacking files does not hold up the engine's. Knows nothing of
//! trees.

use std::{
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    thread::{self, JoinHandle},
};

use super::file::{Piece, RawSection};

/// Sections that may wait to be taken, beside the one that is being read.
const WAITING: usize = 1;

pub struct Reader {
    /// `None` once it is told to end.
    jobs: Option<Sender<Job>>,
    sections: Option<Receiver<(u64, Read)>>,
    thread: Option<JoinHandle<()>>,
}

struct Job {
    id: u64,
    wanted: Vec<Wanted>,
}

/// What is to be read of a file.
pub struct Wanted {
    pub path: PathBuf,
    /// Position of the first token whose keys and values it has.
    pub from: usize,
    pub section: Section,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Section {
    /// Some of its tokens: of the sequence `start..end`, of the file's own from `first` on.
    Run {
        first: usize,
        start: usize,
        end: usize,
    },
    Checkpoint,
}

pub enum Read {
    Section(Section, RawSection),
    /// All that was wanted was read.
    Done,
    /// This file is not what it should be.
    Failed(PathBuf, String),
}

impl Reader {
    /// # Errors
    /// The system has no thread left.
    pub fn start() -> std::io::Result<Reader> {
        let (jobs, queue) = channel::<Job>();
        let (reporter, sections) = sync_channel(WAITING);
        let work = move || queue.into_iter().for_each(|job| read_all(job, &reporter));
        let thread = thread::Builder::new().name("lanner-disk-read".into()).spawn(work)?;
        Ok(Reader { jobs: Some(jobs), sections: Some(sections), thread: Some(thread) })
    }

    /// Begins to read; what comes of it has this `id`.
    pub fn read(&self, id: u64, wanted: Vec<Wanted>) {
        // Without its thread nothing comes, and whoever waits is told so.
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(Job { id, wanted });
        }
    }

    /// What was read meanwhile of the job `id`; `Err` if its thread is gone.
    pub fn take(&self, id: u64) -> Result<Option<Read>, ()> {
        use std::sync::mpsc::TryRecvError::{Disconnected, Empty};
        let Some(sections) = &self.sections else { return Err(()) };
        loop {
            match sections.try_recv() {
                Ok((of, read)) if of == id => return Ok(Some(read)),
                // Nobody waits for it any more.
                Ok(_) => {}
                Err(Empty) => return Ok(None),
                Err(Disconnected) => return Err(()),
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Whatever it reads, nobody wants it.
        (self.jobs, self.sections) = (None, None);
        self.thread.take().into_iter().for_each(|thread| _ = thread.join());
    }
}

fn read_all(Job { id, wanted }: Job, reporter: &SyncSender<(u64, Read)>) {
    for Wanted { path, from, section } in wanted {
        let read = match read(&path, from, section) {
            Ok(raw) => Read::Section(section, raw),
            Err(error) => Read::Failed(path, error),
        };
        let failed = matches!(read, Read::Failed(..));
        if reporter.send((id, read)).is_err() || failed {
            return;
        }
    }
    _ = reporter.send((id, Read::Done));
}

fn read(path: &Path, from: usize, section: Section) -> Result<RawSection, String> {
    let (piece, mut arrays) = Piece::open(path)?;
    // Somebody may have put another file there since the index was made.
    let same = path.file_name().is_some_and(|name| *name == *piece.name()) && piece.description.from == from;
    if !same {
        return Err("it is another piece".into());
    }
    match section {
        Section::Checkpoint => arrays.checkpoint(&piece),
        Section::Run { first, start, end } => {
            let mut run = arrays.run(&piece)?;
            let sides = run.layers.iter_mut().flat_map(|(_, sides)| sides).flatten();
            sides.for_each(|array| array.keep(first, first + end - start));
            Ok(run)
        }
    }
}

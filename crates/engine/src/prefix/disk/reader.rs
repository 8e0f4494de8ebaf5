//! Thread that opens, checks and dequantizes state files, so that the engine's thread need not.
//! Knows nothing of trees.

use std::{
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    thread::{self, JoinHandle},
};

use super::segment::{RawSection, Segment};

/// Sections that may wait in the queue, besides the one that is being read.
const QUEUED: usize = 1;

pub(super) struct Reader {
    /// `None` once the thread is to end.
    jobs: Option<Sender<ReadJob>>,
    events: Option<Receiver<(u64, ReadEvent)>>,
    thread: Option<JoinHandle<()>>,
}

struct ReadJob {
    id: u64,
    requests: Vec<ReadRequest>,
}

/// A section to read from a file.
pub(super) struct ReadRequest {
    pub path: PathBuf,
    /// Position of the first token whose keys and values the file stores.
    pub from: usize,
    pub section: Section,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Section {
    /// Tokens `start..end` of the sequence, which begin at token `first` of the file.
    Span {
        first: usize,
        start: usize,
        end: usize,
    },
    Snapshot,
}

pub(super) enum ReadEvent {
    Section(Section, RawSection),
    /// Everything requested was read.
    Done,
    /// The file is invalid or missing.
    Failed(PathBuf, String),
}

impl Reader {
    /// # Errors
    /// No thread can be started.
    pub(super) fn start() -> std::io::Result<Reader> {
        let (jobs, queue) = channel::<ReadJob>();
        let (sender, events) = sync_channel(QUEUED);
        let work = move || queue.into_iter().for_each(|job| read_all(job, &sender));
        let thread = thread::Builder::new().name("lanner-disk-read".into()).spawn(work)?;
        Ok(Reader { jobs: Some(jobs), events: Some(events), thread: Some(thread) })
    }

    /// Starts to read; the events have this `id`.
    pub(super) fn read(&self, id: u64, requests: Vec<ReadRequest>) {
        // If the thread has ended, `take` reports it.
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(ReadJob { id, requests });
        }
    }

    /// The next event of job `id`, if there is one; `Err` if the thread has ended.
    pub(super) fn take(&self, id: u64) -> Result<Option<ReadEvent>, ()> {
        use std::sync::mpsc::TryRecvError::{Disconnected, Empty};
        let Some(events) = &self.events else { return Err(()) };
        loop {
            match events.try_recv() {
                Ok((job, event)) if job == id => return Ok(Some(event)),
                // The result of a job that was dropped.
                Ok(_) => {}
                Err(Empty) => return Ok(None),
                Err(Disconnected) => return Err(()),
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // The rest of the jobs is not needed.
        (self.jobs, self.events) = (None, None);
        self.thread.take().into_iter().for_each(|thread| _ = thread.join());
    }
}

fn read_all(ReadJob { id, requests }: ReadJob, events: &SyncSender<(u64, ReadEvent)>) {
    for ReadRequest { path, from, section } in requests {
        let event = match read(&path, from, section) {
            Ok(raw) => ReadEvent::Section(section, raw),
            Err(error) => ReadEvent::Failed(path, error),
        };
        let failed = matches!(event, ReadEvent::Failed(..));
        if events.send((id, event)).is_err() || failed {
            return;
        }
    }
    _ = events.send((id, ReadEvent::Done));
}

fn read(path: &Path, from: usize, section: Section) -> Result<RawSection, String> {
    let (segment, mut arrays) = Segment::open(path)?;
    // The file may have been replaced since it was indexed.
    let same = path.file_name().is_some_and(|name| *name == *segment.name()) && segment.metadata.from == from;
    if !same {
        return Err("it is another segment".into());
    }
    match section {
        Section::Snapshot => arrays.snapshot(&segment),
        Section::Span { first, start, end } => {
            let mut span = arrays.span(&segment)?;
            let sides = span.layers.iter_mut().flat_map(|(_, sides)| sides).flatten();
            sides.for_each(|array| array.slice_tokens(first, first + end - start));
            Ok(span)
        }
    }
}

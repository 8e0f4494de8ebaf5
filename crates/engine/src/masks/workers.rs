//! The worker threads, shared by all sequences of an engine.

use std::{
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread,
};

use super::strand::{Command, Strand};

/// More would take cores from the kernels.
const MAX_THREADS: usize = 8;

/// Posts commands to worker threads, which end with the last clone.
#[derive(Clone)]
pub(crate) struct MaskWorkers {
    /// `None`: there are no threads, and commands run where they are posted.
    queue: Option<mpsc::Sender<Arc<Strand>>>,
}

impl MaskWorkers {
    /// Starts a thread for every second core.
    pub(crate) fn start() -> MaskWorkers {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        MaskWorkers::with_threads((cores / 2).clamp(1, MAX_THREADS))
    }

    /// No thread: commands run where they are posted.
    pub(crate) fn inline() -> MaskWorkers {
        MaskWorkers { queue: None }
    }

    /// Whether commands run where they are posted.
    pub(crate) fn are_inline(&self) -> bool {
        self.queue.is_none()
    }

    pub(crate) fn with_threads(threads: usize) -> MaskWorkers {
        let (queue, strands) = mpsc::channel::<Arc<Strand>>();
        let strands = Arc::new(Mutex::new(strands));
        let started = (0..threads).filter(|_| {
            let strands = strands.clone();
            let work = move || {
                loop {
                    let next = strands.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(strand) = next else { break };
                    strand.run();
                }
            };
            thread::Builder::new().name("lanner-masks".into()).spawn(work).is_ok()
        });
        MaskWorkers { queue: (started.count() > 0).then_some(queue) }
    }

    /// Runs a command after all earlier ones of the same strand.
    pub(crate) fn post(&self, strand: &Arc<Strand>, command: Command) {
        if !strand.push(command) {
            return;
        }
        let unsent = match &self.queue {
            Some(queue) => queue.send(strand.clone()).err().map(|mpsc::SendError(strand)| strand),
            None => Some(strand.clone()),
        };
        unsent.into_iter().for_each(|strand| strand.run());
    }
}

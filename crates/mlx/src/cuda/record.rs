//! Recording the kernels of a step, which are then launched together as a graph.

use std::{
    cell::Cell,
    thread::{self, ThreadId},
};

use super::{
    Result,
    driver::{Driver, Graphs, Handle},
    graph::GraphCache,
    kernel_call::Launch,
};

/// Kernels that are not launched yet, and graphs of earlier ones.
#[derive(Default)]
pub(super) struct Recording {
    /// Of one thread.
    launches: Vec<Launch>,
    thread: Option<ThreadId>,
    graphs: GraphCache,
}

thread_local! {
    static RECORDS: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread records.
pub(super) fn is_recording() -> bool {
    RECORDS.get()
}

/// Recording by the calling thread, which ends with it, also when an operation panics.
pub(super) struct Scope {
    before: bool,
}

impl Scope {
    pub(super) fn enter() -> Scope {
        Scope { before: RECORDS.replace(true) }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        RECORDS.set(self.before);
    }
}

impl Recording {
    /// Adds a kernel of the calling thread, after launching another thread's.
    pub(super) fn push(
        &mut self,
        launch: Launch,
        driver: &Driver,
        graphs: Option<&Graphs>,
        stream: Handle,
    ) -> Result<()> {
        let own = thread::current().id();
        if self.thread != Some(own) {
            self.submit(driver, graphs, stream)?;
            self.thread = Some(own);
        }
        self.launches.push(launch);
        Ok(())
    }

    /// Queues the kernels.
    pub(super) fn submit(&mut self, driver: &Driver, graphs: Option<&Graphs>, stream: Handle) -> Result<()> {
        if self.launches.is_empty() {
            return Ok(());
        }
        let launches = std::mem::take(&mut self.launches);
        // Kernels that another thread interrupts end anywhere: such a graph would not come again.
        let whole = self.thread == Some(thread::current().id());
        match graphs.filter(|_| whole) {
            Some(graphs) => self.graphs.launch(graphs, driver, stream, launches),
            None => launches.iter().try_for_each(|launch| launch.queue(driver, stream)),
        }
    }
}

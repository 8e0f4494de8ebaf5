//! Watches the system's memory and shrinks caches before it swaps: a state machine, and the thread
//! that feeds it.

use std::{
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use engine::{MemoryAccount, MemoryClass};

use super::{MemoryReading, Pressure};
use crate::{host::HostInfo, hub::megabytes};

/// Between two readings. macOS's costs a process.
const INTERVAL: Duration = Duration::from_secs(if cfg!(target_os = "macos") { 5 } else { 1 });
/// Roomy readings in a row before caches grow.
const CALM: usize = 15;
/// Under a warning caches keep at least their budget divided by this.
const FLOOR: usize = 16;

/// A thread that watches memory until this is dropped.
pub(crate) struct Monitor {
    /// Dropped to stop the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Limit of the caches, from one reading to the next.
#[derive(Debug)]
pub(super) struct CacheControl {
    /// Bytes of all prefix caches without pressure.
    pub budget: usize,
    /// The least pressure that counts.
    pub reacts_at: Pressure,
    /// Maximum now; `None`: the budget.
    pub most: Option<usize>,
    /// Roomy readings in a row.
    pub calm: usize,
}

/// A change of what caches may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub most: Option<usize>,
    /// Whether freed buffers go back to the system.
    pub release: bool,
}

impl CacheControl {
    /// Under a warning caches keep half of what they hold, again with each reading; when it is
    /// critical they keep nothing. After a calm time they may hold twice as much, again and again.
    pub(super) fn next(&mut self, reading: &MemoryReading, held: usize) -> Option<Change> {
        let pressure = reading.pressure();
        if pressure >= self.reacts_at.max(Pressure::Warning) {
            self.calm = 0;
            let most = self.most.unwrap_or(self.budget);
            let less = match pressure {
                Pressure::Critical => 0,
                _ => (held.min(most) / 2).max(self.budget / FLOOR).min(most),
            };
            let shrinks = self.most.is_none_or(|most| less < most);
            self.most = Some(less);
            return shrinks.then_some(Change { most: self.most, release: true });
        }
        self.calm = if reading.is_roomy() { self.calm + 1 } else { 0 };
        let most = self.most.filter(|_| self.calm >= CALM)?;
        self.calm = 0;
        let more = (2 * most).max(self.budget / FLOOR);
        self.most = (more < self.budget).then_some(more);
        Some(Change { most: self.most, release: false })
    }
}

impl Monitor {
    /// Watches for the engines of this account, whose prefix caches have `budget` bytes together.
    pub(crate) fn start(account: &Arc<MemoryAccount>, budget: usize, reacts_at: Pressure) -> Monitor {
        let host = HostInfo::here();
        Monitor::with(account, budget, reacts_at, INTERVAL, move || MemoryReading::of(&host))
    }

    /// Monitor like that of [`start`](Monitor::start), with the readings of `read`.
    pub(super) fn with(
        account: &Arc<MemoryAccount>,
        budget: usize,
        reacts_at: Pressure,
        interval: Duration,
        mut read: impl FnMut() -> MemoryReading + Send + 'static,
    ) -> Monitor {
        let (stop, stopped) = mpsc::channel::<()>();
        let account = account.clone();
        let mut control = CacheControl { budget, reacts_at, most: None, calm: 0 };
        let watch = move || {
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let (reading, held) = (read(), account.bytes(MemoryClass::PrefixCache));
                if let Some(change) = control.next(&reading, held) {
                    report(change, &reading, held);
                    account.press_caches(change.most, change.release);
                }
            }
        };
        let thread = thread::Builder::new().name("lanner-memory".into()).spawn(watch);
        if let Err(error) = &thread {
            tracing::warn!("the system's memory is not watched: {error}");
        }
        Monitor { stop: Some(stop), thread: thread.ok() }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there is reported already.
            let _ = thread.join();
        }
    }
}

fn report(Change { most, .. }: Change, reading: &MemoryReading, held: usize) {
    let human = |bytes: usize| megabytes(bytes as u64);
    match most {
        Some(most) if reading.pressure() > Pressure::Normal && held > most => tracing::warn!(
            "memory is short ({reading}): the prefix cache shrinks from {} to at most {}",
            human(held),
            human(most)
        ),
        Some(_) if reading.pressure() > Pressure::Normal => {
            tracing::info!("memory is short ({reading}), and the prefix cache holds little");
        }
        Some(most) => tracing::info!("memory is free again: the prefix cache may hold {}", human(most)),
        None => tracing::info!("memory is free again: the prefix cache has its whole size"),
    }
}

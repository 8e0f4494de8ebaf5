//! Counters of graph nodes built and kernels run, for the whole process. All but those by name are
//! always on.
//!
//! Nodes that MLX adds to a graph by itself (broadcasts, conversions) are not counted.

use std::{
    ops::Sub,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

static ON_DEVICE: AtomicBool = AtomicBool::new(false);
static COUNTS_BY_NAME: AtomicBool = AtomicBool::new(false);
static NODES: AtomicU64 = AtomicU64::new(0);
static KERNELS: AtomicU64 = AtomicU64::new(0);
static KERNEL_NANOSECONDS: AtomicU64 = AtomicU64::new(0);
static WAITED_NANOSECONDS: AtomicU64 = AtomicU64::new(0);

/// See [`kernels`]. The kernels of a thread run one after another, so the lock is rarely contended.
static BY_NAME: Mutex<Vec<KernelTime>> = Mutex::new(vec![]);

/// Runs and time of one kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelTime {
    /// `products` is the time of matrix products within all other kernels.
    pub name: &'static str,
    pub runs: u64,
    pub time: Duration,
}

/// Counts since the program began or since [`reset`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Operations built, each once however many outputs it has, and arrays made from numbers.
    pub nodes: u64,
    /// Runs of our kernels, those that panicked included.
    pub kernels: u64,
    /// Time inside our kernels. They run one after another, so this is wall time. On a device of
    /// ours only with [`time_on_device`].
    pub kernel_time: Duration,
    /// Time in which threads waited for a device of ours.
    pub waited: Duration,
}

/// Measures the time that each kernel takes on a device of ours; each is then waited for.
pub fn time_on_device(on_device: bool) {
    ON_DEVICE.store(on_device, Relaxed);
}

/// Also counts each kernel by its name, for [`kernels`]. A decode step of a small model takes a
/// hundredth longer.
pub fn count_by_name(by_name: bool) {
    COUNTS_BY_NAME.store(by_name, Relaxed);
}

pub(crate) fn times_on_device() -> bool {
    ON_DEVICE.load(Relaxed)
}

/// The counts so far; a graph in evaluation counts as far as it is done.
pub fn read() -> Counters {
    Counters {
        nodes: NODES.load(Relaxed),
        kernels: KERNELS.load(Relaxed),
        kernel_time: Duration::from_nanos(KERNEL_NANOSECONDS.load(Relaxed)),
        waited: Duration::from_nanos(WAITED_NANOSECONDS.load(Relaxed)),
    }
}

/// Runs and time of each kernel while [`count_by_name`] was on, in the order of their first runs.
pub fn kernels() -> Vec<KernelTime> {
    BY_NAME.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Sets all counts of the process to 0. Code that is not alone in its process subtracts two
/// [`read`]s instead.
pub fn reset() {
    let counters = [&NODES, &KERNELS, &KERNEL_NANOSECONDS, &WAITED_NANOSECONDS];
    counters.into_iter().for_each(|counter| counter.store(0, Relaxed));
    BY_NAME.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

impl Sub for Counters {
    type Output = Counters;

    /// The counts between `before` and `self`.
    fn sub(self, before: Counters) -> Counters {
        Counters {
            nodes: self.nodes - before.nodes,
            kernels: self.kernels - before.kernels,
            kernel_time: self.kernel_time - before.kernel_time,
            waited: self.waited - before.waited,
        }
    }
}

pub(crate) fn count_node() {
    NODES.fetch_add(1, Relaxed);
}

/// Runs and counts a kernel's body.
pub(crate) fn timed<T>(name: &'static str, body: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = body();
    record(name, started.elapsed());
    result
}

/// Waits for a device of ours, and counts the time.
pub(crate) fn waited<T>(wait: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = wait();
    WAITED_NANOSECONDS.fetch_add(started.elapsed().as_nanos() as u64, Relaxed);
    result
}

/// Counts a kernel that a device of ours runs later.
pub(crate) fn launched(name: &'static str) {
    record(name, Duration::ZERO);
}

/// Counts a kernel that took `time`.
pub(crate) fn record(name: &'static str, time: Duration) {
    add(name, time);
    KERNEL_NANOSECONDS.fetch_add(time.as_nanos() as u64, Relaxed);
    KERNELS.fetch_add(1, Relaxed);
}

/// Runs a part of a kernel, which also counts under this name.
pub fn part<T>(name: &'static str, body: impl FnOnce() -> T) -> T {
    if !COUNTS_BY_NAME.load(Relaxed) {
        return body();
    }
    let started = Instant::now();
    let result = body();
    add(name, started.elapsed());
    result
}

fn add(name: &'static str, time: Duration) {
    if !COUNTS_BY_NAME.load(Relaxed) {
        return;
    }
    let mut all = BY_NAME.lock().unwrap_or_else(PoisonError::into_inner);
    match all.iter_mut().find(|kernel| kernel.name == name) {
        Some(kernel) => (kernel.runs, kernel.time) = (kernel.runs + 1, kernel.time + time),
        None => all.push(KernelTime { name, runs: 1, time }),
    }
}

//! Counters of what this process had MLX build and our kernels run: always on, for the whole process, no tracing.
//!
//! What MLX adds to a graph by itself (broadcasts, conversions inside an operation) is not seen here.

use std::{
    ops::Sub,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

static NODES: AtomicU64 = AtomicU64::new(0);
static KERNELS: AtomicU64 = AtomicU64::new(0);
static KERNEL_NANOSECONDS: AtomicU64 = AtomicU64::new(0);

/// See [`kernels`]. One thread computes, so nobody waits for another.
static BY_NAME: Mutex<Vec<KernelTime>> = Mutex::new(vec![]);

/// What one kernel took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelTime {
    /// `products` are the products of matrices within all the others.
    pub name: &'static str,
    pub runs: u64,
    pub time: Duration,
}

/// What was counted since the program began or since [`reset`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Operations built, each once however many outputs it has, and arrays made from numbers.
    pub nodes: u64,
    /// Runs of our kernels, those that panicked included.
    pub kernels: u64,
    /// Time inside our kernels. They run one after another, so this is wall time.
    pub kernel_time: Duration,
}

/// What was counted so far. Of a graph that is being computed, the part that is done.
pub fn read() -> Counters {
    Counters {
        nodes: NODES.load(Relaxed),
        kernels: KERNELS.load(Relaxed),
        kernel_time: Duration::from_nanos(KERNEL_NANOSECONDS.load(Relaxed)),
    }
}

/// Each kernel's part of that, in the order in which they first ran.
pub fn kernels() -> Vec<KernelTime> {
    BY_NAME.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Counts from 0 again, for everybody in the process; whoever is not alone subtracts two [`read`]s instead.
pub fn reset() {
    [&NODES, &KERNELS, &KERNEL_NANOSECONDS].into_iter().for_each(|counter| counter.store(0, Relaxed));
    BY_NAME.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

impl Sub for Counters {
    type Output = Counters;

    /// What was counted between `before` and `self`.
    fn sub(self, before: Counters) -> Counters {
        Counters {
            nodes: self.nodes - before.nodes,
            kernels: self.kernels - before.kernels,
            kernel_time: self.kernel_time - before.kernel_time,
        }
    }
}

pub(crate) fn count_node() {
    NODES.fetch_add(1, Relaxed);
}

/// Runs a kernel's body and counts it.
pub(crate) fn timed<T>(name: &'static str, body: impl FnOnce() -> T) -> T {
    let (result, time) = part(name, body);
    KERNEL_NANOSECONDS.fetch_add(time.as_nanos() as u64, Relaxed);
    KERNELS.fetch_add(1, Relaxed);
    result
}

/// Runs a part of a kernel, which counts under this name too.
pub fn part<T>(name: &'static str, body: impl FnOnce() -> T) -> (T, Duration) {
    let started = Instant::now();
    let result = body();
    let time = started.elapsed();
    let mut all = BY_NAME.lock().unwrap_or_else(PoisonError::into_inner);
    match all.iter_mut().find(|kernel| kernel.name == name) {
        Some(kernel) => (kernel.runs, kernel.time) = (kernel.runs + 1, kernel.time + time),
        None => all.push(KernelTime { name, runs: 1, time }),
    }
    (result, time)
}

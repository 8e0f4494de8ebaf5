//! A thread pool for kernels.
//!
//! A token is hundreds of short kernels, so threads spin for a while before they sleep: waking a
//! thread can take longer than a kernel.

use std::{
    any::Any,
    cell::UnsafeCell,
    num::NonZeroUsize,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*},
    },
    thread::{self, Thread},
    time::{Duration, Instant},
};

use crate::disjoint::DisjointMut;

/// Multiply-adds from which on work is shared with other threads.
const MIN_SHARED_WORK: usize = 40_000;
/// How long an idle thread spins before it sleeps: longer than the pauses between kernels of a
/// token.
const SPIN: Duration = Duration::from_micros(200);

/// Calls `f` with the index and contents of each `size` elements of `out`; `work` is the
/// multiply-adds of all calls. Chunks are disjoint, so results do not depend on the threads that
/// run them.
pub fn for_each_chunk<T: Send>(out: &mut [T], size: usize, work: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    let (length, out) = (out.len(), DisjointMut::new(out));
    for_each(length.div_ceil(size.max(1)), work, |i| {
        let start = i * size;
        // SAFETY: chunks are disjoint, and each is passed to one call of `f`.
        f(i, unsafe { out.part(start, size.min(length - start)) });
    });
}

/// Calls `f` once with each index below `count`, in any order; `work` is the multiply-adds of all
/// calls.
///
/// # Panics
/// If a call of `f` panics, with that panic, once all running calls have ended.
pub(crate) fn for_each(count: usize, work: usize, f: impl Fn(usize) + Sync) {
    let pool = pool();
    if count > 1 && work >= MIN_SHARED_WORK && !pool.workers.is_empty() {
        // If another engine's thread is using the pool, this one works alone.
        if let Some(_guard) = try_lock(&pool.caller) {
            return pool.run(count, &f);
        }
    }
    (0..count).for_each(f);
}

/// Sets the number of threads that kernels use, including the calling one. Only the first call has
/// an effect. The default is the number of physical cores, at most the hardware threads that this
/// process may use.
pub fn set_threads(threads: usize) {
    THREADS.get_or_init(|| threads.max(1));
}

/// The number of threads that kernels use.
pub fn threads() -> usize {
    *THREADS.get_or_init(physical_cores)
}

static THREADS: OnceLock<usize> = OnceLock::new();

struct Pool {
    workers: Vec<Thread>,
    /// Locked by the thread whose job is running.
    caller: Mutex<()>,
    slot: CachePadded<JobSlot>,
    /// [`OPEN`] while workers may join the current job, plus [`INSIDE`] for each that is working on
    /// it. The caller does not wait for workers that have not joined: another process may occupy
    /// their core.
    gate: CachePadded<AtomicUsize>,
    /// The caller's share, then the workers'.
    shares: Vec<CachePadded<Share>>,
    /// For each worker, whether it sleeps or is about to.
    asleep: Vec<AtomicBool>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

const OPEN: usize = 1;
const INSIDE: usize = 2;

/// A value with its own cache lines, to avoid false sharing.
#[repr(align(128))]
struct CachePadded<T>(T);

struct JobSlot {
    /// The current job, written by the caller before it increments `round`, while no worker reads
    /// it.
    job: UnsafeCell<Option<Job>>,
    /// The number of jobs so far.
    round: AtomicU32,
}

#[derive(Clone, Copy)]
struct Job {
    /// Outlives the job: `run` returns only after every worker has left it.
    body: *const (dyn Fn(usize) + Sync),
    count: usize,
    round: u32,
}

/// The indices of one thread, an equal part of all, at the same position in each job to find its
/// data in cache. A thread that has finished its share takes indices from the others' shares.
struct Share {
    /// The round and its next index. The first access in a round resets it.
    next: AtomicU64,
}

impl Share {
    /// The next index below `range`'s end, if there is one.
    fn take(&self, round: u32, range: Range<usize>) -> Option<usize> {
        let mut current = self.next.load(Relaxed);
        loop {
            let started = (current >> 32) as u32 == round;
            let index = if started { current as u32 as usize } else { range.start };
            if index >= range.end {
                return None;
            }
            let next = u64::from(round) << 32 | (index as u64 + 1);
            match self.next.compare_exchange_weak(current, next, Relaxed, Relaxed) {
                Ok(_) => return Some(index),
                Err(now) => current = now,
            }
        }
    }
}

// SAFETY: `job` is written only between jobs, by the thread that has locked `caller`, and its body
// is `Sync`.
unsafe impl Sync for Pool {}
// SAFETY: as above.
unsafe impl Send for Pool {}

/// Locks if free, ignoring poisoning.
fn try_lock(lock: &Mutex<()>) -> Option<MutexGuard<'_, ()>> {
    match lock.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Pool {
    /// The calling thread has locked `caller`.
    fn run(&self, count: usize, body: &(dyn Fn(usize) + Sync)) {
        assert!(u32::try_from(count).is_ok(), "{count} pieces of work");
        let round = self.slot.0.round.load(Relaxed).wrapping_add(1);
        // SAFETY: no worker is inside, so none reads the job; the erased lifetime ends after the
        // last worker has left, below.
        let job = unsafe {
            let body =
                std::mem::transmute::<*const (dyn Fn(usize) + Sync), *const (dyn Fn(usize) + Sync)>(body);
            let job = Job { body, count, round };
            *self.slot.0.job.get() = Some(job);
            job
        };
        self.gate.0.store(OPEN, Release);
        self.slot.0.round.store(round, SeqCst);
        for (worker, asleep) in self.workers.iter().zip(&self.asleep) {
            if asleep.load(SeqCst) {
                worker.unpark();
            }
        }
        self.join(0, job);
        self.gate.0.fetch_sub(OPEN, SeqCst);
        let mut backoff = Backoff::new();
        while self.gate.0.load(Acquire) > 0 {
            backoff.wait();
        }
        if let Some(panic) = self.panic.lock().unwrap_or_else(PoisonError::into_inner).take() {
            resume_unwind(panic);
        }
    }

    fn join(&self, own: usize, job: Job) {
        // SAFETY: the body outlives the job, which lasts until all threads have left.
        let body = unsafe { &*job.body };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.take_indices(own, job, body))) {
            // Skip the other indices.
            self.take_indices(own, job, |_| ());
            *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
        }
    }

    /// Calls `body` with the remaining indices of thread `own`'s share, then of the others'.
    fn take_indices(&self, own: usize, Job { count, round, .. }: Job, body: impl Fn(usize)) {
        let threads = self.shares.len();
        for thread in (own..threads).chain(0..own) {
            let range = count * thread / threads..count * (thread + 1) / threads;
            while let Some(i) = self.shares[thread].0.take(round, range.clone()) {
                body(i);
            }
        }
    }

    fn work_forever(&self, worker: usize) {
        let mut done = 0;
        loop {
            done = self.wait(worker, done);
            if self.enter() {
                // SAFETY: jobs are written only while no worker is inside.
                if let Some(job) = unsafe { *self.slot.0.job.get() } {
                    self.join(worker + 1, job);
                }
                self.gate.0.fetch_sub(INSIDE, Release);
            }
        }
    }

    /// Enters the current job, unless it is closed.
    fn enter(&self) -> bool {
        let join = |gate: usize| (gate & OPEN == OPEN).then_some(gate + INSIDE);
        self.gate.0.fetch_update(AcqRel, Acquire, join).is_ok()
    }

    /// Waits for the round after `done`; returns its number.
    fn wait(&self, worker: usize, done: u32) -> u32 {
        let mut backoff = Backoff::new();
        loop {
            let round = self.slot.0.round.load(Acquire);
            if round != done {
                return round;
            }
            if backoff.wait() {
                self.asleep[worker].store(true, SeqCst);
                while self.slot.0.round.load(SeqCst) == done {
                    thread::park();
                }
                self.asleep[worker].store(false, SeqCst);
            }
        }
    }
}

/// Backoff while waiting for another thread: spins, then yields.
struct Backoff {
    passes: u32,
    start: Instant,
}

impl Backoff {
    fn new() -> Backoff {
        Backoff { passes: 0, start: Instant::now() }
    }

    /// Waits briefly; true once the total exceeds [`SPIN`].
    fn wait(&mut self) -> bool {
        self.passes += 1;
        if self.passes < 1000 {
            std::hint::spin_loop();
            return false;
        }
        thread::yield_now();
        self.start.elapsed() > SPIN
    }
}

fn pool() -> &'static Pool {
    static POOL: OnceLock<&'static Pool> = OnceLock::new();
    POOL.get_or_init(|| {
        let count = threads() - 1;
        let workers: OnceLock<&'static Pool> = OnceLock::new();
        let ready: &'static OnceLock<&'static Pool> = Box::leak(Box::new(workers));
        let spawn = |worker| {
            let name = format!("lanner-kernels-{worker}");
            let body = move || ready.wait().work_forever(worker);
            // With fewer threads than requested, results are the same.
            thread::Builder::new().name(name).spawn(body).ok().map(|handle| handle.thread().clone())
        };
        let workers: Vec<Thread> = (0..count).map_while(spawn).collect();
        let asleep = workers.iter().map(|_| AtomicBool::new(false)).collect();
        let share = |_| CachePadded(Share { next: AtomicU64::new(0) });
        let shares = (0..workers.len() + 1).map(share).collect();
        let pool = Box::leak(Box::new(Pool {
            workers,
            caller: Mutex::new(()),
            slot: CachePadded(JobSlot { job: UnsafeCell::new(None), round: AtomicU32::new(0) }),
            gate: CachePadded(AtomicUsize::new(0)),
            shares,
            asleep,
            panic: Mutex::new(None),
        }));
        ready.get_or_init(|| pool)
    })
}

/// The machine's physical cores, at most the hardware threads that this process may use.
fn physical_cores() -> usize {
    let logical = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    // Linux: hardware threads of one core list the same siblings.
    let siblings = |cpu: usize| {
        std::fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
            .ok()
    };
    let mut cores: Vec<String> = (0..).map_while(siblings).collect();
    cores.sort_unstable();
    cores.dedup();
    if cores.is_empty() { logical } else { logical.min(cores.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn for_each_calls_each_index_once() {
        for count in [0, 1, 2, 3, 1000] {
            let calls: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            for_each(count, usize::MAX, |i| {
                calls[i].fetch_add(1, Relaxed);
            });
            assert!(calls.iter().all(|calls| calls.load(Relaxed) == 1), "{count}");
        }
    }

    #[test]
    fn concurrent_and_nested_for_each_calls_finish() {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..500 {
                        let mut values = vec![0usize; 64];
                        for_each_chunk(&mut values, 8, usize::MAX, |i, chunk| {
                            for_each(2, usize::MAX, |_| std::hint::spin_loop());
                            chunk.fill(i + round);
                        });
                        assert!(values.iter().enumerate().all(|(at, &value)| value == at / 8 + round));
                    }
                });
            }
        });
    }

    #[test]
    fn panic_in_for_each_reaches_the_caller_and_the_pool_survives() {
        for round in 0..20 {
            let result = catch_unwind(|| {
                for_each(16, usize::MAX, |i| assert!(i != round % 16, "planted"));
            });
            assert!(result.is_err());
            for_each(16, usize::MAX, |_| {});
        }
    }

    #[test]
    fn sleeping_threads_wake_for_new_work() {
        for _ in 0..5 {
            thread::sleep(SPIN * 4);
            let sum = AtomicUsize::new(0);
            for_each(100, usize::MAX, |i| {
                sum.fetch_add(i, Relaxed);
            });
            assert_eq!(sum.load(Relaxed), 4950);
        }
    }
}

//! Splits work over threads, where it is worth waking them.
//!
//! A token is hundreds of short kernels, so the pool's threads wait for the next one by spinning for a while before
//! they sleep: waking a sleeping thread takes longer than many a kernel.

use std::{
    any::Any,
    cell::UnsafeCell,
    num::NonZeroUsize,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicUsize, Ordering::*},
    },
    thread::{self, Thread},
    time::{Duration, Instant},
};

use crate::shared::Parts;

/// Multiply-adds that take longer than handing a part of them to another thread.
const WORTHWHILE: usize = 40_000;
/// How long a thread without work spins before it sleeps: longer than a token's pauses between kernels.
const SPIN: Duration = Duration::from_micros(200);

/// Calls `f` with the index and contents of each `size` elements of `out`; `work` is the multiply-adds of all calls.
///
/// Results do not depend on who runs what: chunks share nothing.
pub fn for_each_chunk<T: Send>(out: &mut [T], size: usize, work: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    let (length, out) = (out.len(), Parts::new(out));
    for_each(length.div_ceil(size.max(1)), work, |i| {
        let start = i * size;
        // SAFETY: chunks do not overlap, and each is handed to one call of `f` only.
        f(i, unsafe { out.part(start, size.min(length - start)) });
    });
}

/// Calls `f` with every index below `count`, each once, in any order; `work` is the multiply-adds of all calls.
///
/// # Panics
/// With the panic of a call of `f`, once all running calls have ended.
pub(crate) fn for_each(count: usize, work: usize, f: impl Fn(usize) + Sync) {
    let pool = pool();
    if count > 1 && work >= WORTHWHILE && !pool.workers.is_empty() {
        // Another engine's thread may be using the pool: then this one works alone.
        if let Some(_alone) = try_lock(&pool.caller) {
            return pool.run(count, &f);
        }
    }
    (0..count).for_each(f);
}

/// Lets kernels compute on this many threads, the calling one included. The first call decides; without one it is
/// the number of physical cores this process may use.
pub fn set_threads(threads: usize) {
    THREADS.get_or_init(|| threads.max(1));
}

/// How many threads kernels compute on.
pub fn threads() -> usize {
    *THREADS.get_or_init(physical_cores)
}

static THREADS: OnceLock<usize> = OnceLock::new();

struct Pool {
    workers: Vec<Thread>,
    /// Held by the thread whose job is being run.
    caller: Mutex<()>,
    /// The current job: written by the caller before `round` counts up, while no worker reads it.
    job: UnsafeCell<Option<Job>>,
    /// Counts jobs.
    round: AtomicUsize,
    /// The next index of the current job.
    next: AtomicUsize,
    /// [`OPEN`] while workers may join the current job, and [`INSIDE`] for each that has and is not done. Nobody waits for
    /// a worker that comes too late: another process may have its core.
    gate: AtomicUsize,
    /// For each worker, whether it sleeps or is about to.
    asleep: Vec<AtomicBool>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

const OPEN: usize = 1;
const INSIDE: usize = 2;

#[derive(Clone, Copy)]
struct Job {
    /// Outlives the job: `run` does not return before every worker is done with it.
    body: *const (dyn Fn(usize) + Sync),
    count: usize,
}

// SAFETY: `job` is written only between jobs, by the holder of `caller`, and its body is `Sync`.
unsafe impl Sync for Pool {}
// SAFETY: as above.
unsafe impl Send for Pool {}

/// A lock that no panic spoils, if it is free.
fn try_lock(lock: &Mutex<()>) -> Option<MutexGuard<'_, ()>> {
    match lock.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Pool {
    /// The caller holds `caller`.
    fn run(&self, count: usize, body: &(dyn Fn(usize) + Sync)) {
        // SAFETY: no worker is inside, so none reads the job; and the lifetime that is forgotten here ends after the
        // last worker has left, below.
        unsafe {
            let body =
                std::mem::transmute::<*const (dyn Fn(usize) + Sync), *const (dyn Fn(usize) + Sync)>(body);
            *self.job.get() = Some(Job { body, count });
        }
        self.next.store(0, Relaxed);
        self.gate.store(OPEN, Release);
        self.round.fetch_add(1, SeqCst);
        for (worker, asleep) in self.workers.iter().zip(&self.asleep) {
            if asleep.load(SeqCst) {
                worker.unpark();
            }
        }
        self.take_part(count, body);
        self.gate.fetch_sub(OPEN, SeqCst);
        let mut patience = Patience::new();
        while self.gate.load(Acquire) > 0 {
            patience.pass();
        }
        if let Some(panic) = self.panic.lock().unwrap_or_else(PoisonError::into_inner).take() {
            resume_unwind(panic);
        }
    }

    fn take_part(&self, count: usize, body: &(dyn Fn(usize) + Sync)) {
        let work = || {
            loop {
                let i = self.next.fetch_add(1, Relaxed);
                if i >= count {
                    return;
                }
                body(i);
            }
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            self.next.store(count, Relaxed);
            *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
        }
    }

    fn work_forever(&self, worker: usize) {
        let mut done = 0;
        loop {
            done = self.wait(worker, done);
            if self.enter() {
                // SAFETY: jobs are written while nobody is inside.
                if let Some(Job { body, count }) = unsafe { *self.job.get() } {
                    // SAFETY: the body outlives the job, which lasts while somebody is inside.
                    self.take_part(count, unsafe { &*body });
                }
                self.gate.fetch_sub(INSIDE, Release);
            }
        }
    }

    /// Joins the current job, if there still is one.
    fn enter(&self) -> bool {
        let join = |gate: usize| (gate & OPEN == OPEN).then_some(gate + INSIDE);
        self.gate.fetch_update(AcqRel, Acquire, join).is_ok()
    }

    /// Returns the number of the round that has begun since round `done`.
    fn wait(&self, worker: usize, done: usize) -> usize {
        let mut patience = Patience::new();
        loop {
            let round = self.round.load(Acquire);
            if round != done {
                return round;
            }
            if patience.pass() {
                self.asleep[worker].store(true, SeqCst);
                while self.round.load(SeqCst) == done {
                    thread::park();
                }
                self.asleep[worker].store(false, SeqCst);
            }
        }
    }
}

/// Waiting for another thread: first without a pause, then letting others have the core, and not for long.
struct Patience {
    passes: u32,
    start: Instant,
}

impl Patience {
    fn new() -> Patience {
        Patience { passes: 0, start: Instant::now() }
    }

    /// Waits a moment; true once it has waited for [`SPIN`] in all.
    fn pass(&mut self) -> bool {
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
            // Fewer threads than asked for compute the same, later.
            thread::Builder::new().name(name).spawn(body).ok().map(|handle| handle.thread().clone())
        };
        let workers: Vec<Thread> = (0..count).map_while(spawn).collect();
        let asleep = workers.iter().map(|_| AtomicBool::new(false)).collect();
        let pool = Box::leak(Box::new(Pool {
            workers,
            caller: Mutex::new(()),
            job: UnsafeCell::new(None),
            round: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            gate: AtomicUsize::new(0),
            asleep,
            panic: Mutex::new(None),
        }));
        ready.get_or_init(|| pool)
    })
}

/// Cores behind the hardware threads this process may use, as far as the system tells.
fn physical_cores() -> usize {
    let logical = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    // Linux: CPUs of one core list the same siblings.
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
    fn every_index_comes_once() {
        for count in [0, 1, 2, 3, 1000] {
            let calls: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            for_each(count, usize::MAX, |i| {
                calls[i].fetch_add(1, Relaxed);
            });
            assert!(calls.iter().all(|calls| calls.load(Relaxed) == 1), "{count}");
        }
    }

    #[test]
    fn callers_on_several_threads_and_within_each_other_all_finish() {
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
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        for round in 0..20 {
            let result = catch_unwind(|| {
                for_each(16, usize::MAX, |i| assert!(i != round % 16, "planted"));
            });
            assert!(result.is_err());
            for_each(16, usize::MAX, |_| {});
        }
    }

    #[test]
    fn sleeping_threads_wake_up() {
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

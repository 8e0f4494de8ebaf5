//! Splits work over threads, where it is worth waking them.
//!
//! A token is hundreds of short kernels, so the pool's threads wait for the next one by spinning for a while before
//! they sleep: waking a sleeping thread takes longer than many a kernel.

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
    call: Line<Call>,
    /// [`OPEN`] while workers may join the current job, and [`INSIDE`] for each that has and is not done. Nobody waits for
    /// a worker that comes too late: another process may have its core.
    gate: Line<AtomicUsize>,
    /// The caller's, then the workers'.
    shares: Vec<Line<Share>>,
    /// For each worker, whether it sleeps or is about to.
    asleep: Vec<AtomicBool>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

const OPEN: usize = 1;
const INSIDE: usize = 2;

/// What has cache lines for itself: threads that wait for one thing do not slow down those that write another.
#[repr(align(128))]
struct Line<T>(T);

struct Call {
    /// The current job: written by the caller before `round` counts up, while no worker reads it.
    job: UnsafeCell<Option<Job>>,
    /// Counts jobs.
    round: AtomicU32,
}

#[derive(Clone, Copy)]
struct Job {
    /// Outlives the job: `run` does not return before every worker is done with it.
    body: *const (dyn Fn(usize) + Sync),
    count: usize,
    round: u32,
}

/// The indices of one thread, an equal part of all: job after job it gets those of the same place, whose memory is in its
/// cache. Who is done with his own takes from the others'.
struct Share {
    /// The round and, of its indices, the next one. Whoever first looks at it in a round begins it.
    next: AtomicU64,
}

impl Share {
    /// The next index below `range`'s end, if there is one.
    fn take(&self, round: u32, range: Range<usize>) -> Option<usize> {
        let mut seen = self.next.load(Relaxed);
        loop {
            let begun = (seen >> 32) as u32 == round;
            let index = if begun { seen as u32 as usize } else { range.start };
            if index >= range.end {
                return None;
            }
            let next = u64::from(round) << 32 | (index as u64 + 1);
            match self.next.compare_exchange_weak(seen, next, Relaxed, Relaxed) {
                Ok(_) => return Some(index),
                Err(now) => seen = now,
            }
        }
    }
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
        assert!(u32::try_from(count).is_ok(), "{count} pieces of work");
        let round = self.call.0.round.load(Relaxed).wrapping_add(1);
        // SAFETY: no worker is inside, so none reads the job; and the lifetime that is forgotten here ends after the
        // last worker has left, below.
        let job = unsafe {
            let body =
                std::mem::transmute::<*const (dyn Fn(usize) + Sync), *const (dyn Fn(usize) + Sync)>(body);
            let job = Job { body, count, round };
            *self.call.0.job.get() = Some(job);
            job
        };
        self.gate.0.store(OPEN, Release);
        self.call.0.round.store(round, SeqCst);
        for (worker, asleep) in self.workers.iter().zip(&self.asleep) {
            if asleep.load(SeqCst) {
                worker.unpark();
            }
        }
        self.take_part(0, job);
        self.gate.0.fetch_sub(OPEN, SeqCst);
        let mut patience = Patience::new();
        while self.gate.0.load(Acquire) > 0 {
            patience.pass();
        }
        if let Some(panic) = self.panic.lock().unwrap_or_else(PoisonError::into_inner).take() {
            resume_unwind(panic);
        }
    }

    fn take_part(&self, own: usize, job: Job) {
        // SAFETY: the body outlives the job, which lasts while somebody takes part.
        let body = unsafe { &*job.body };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.take_indices(own, job, body))) {
            // Nobody needs the rest.
            self.take_indices(own, job, |_| ());
            *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
        }
    }

    /// What is left of thread `own`'s share, then of the others'.
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
                // SAFETY: jobs are written while nobody is inside.
                if let Some(job) = unsafe { *self.call.0.job.get() } {
                    self.take_part(worker + 1, job);
                }
                self.gate.0.fetch_sub(INSIDE, Release);
            }
        }
    }

    /// Joins the current job, if there still is one.
    fn enter(&self) -> bool {
        let join = |gate: usize| (gate & OPEN == OPEN).then_some(gate + INSIDE);
        self.gate.0.fetch_update(AcqRel, Acquire, join).is_ok()
    }

    /// Returns the number of the round that has begun since round `done`.
    fn wait(&self, worker: usize, done: u32) -> u32 {
        let mut patience = Patience::new();
        loop {
            let round = self.call.0.round.load(Acquire);
            if round != done {
                return round;
            }
            if patience.pass() {
                self.asleep[worker].store(true, SeqCst);
                while self.call.0.round.load(SeqCst) == done {
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
        let share = |_| Line(Share { next: AtomicU64::new(0) });
        let shares = (0..workers.len() + 1).map(share).collect();
        let pool = Box::leak(Box::new(Pool {
            workers,
            caller: Mutex::new(()),
            call: Line(Call { job: UnsafeCell::new(None), round: AtomicU32::new(0) }),
            gate: Line(AtomicUsize::new(0)),
            shares,
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

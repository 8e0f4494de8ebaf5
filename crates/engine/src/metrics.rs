//! What engines have done and what they hold, as numbers that anyone may read at any time. They are kept where the facts
//! arise, as atomics: nobody waits for a reader, and a reader for nobody. How they are written down is not known here.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::{
    account::MemoryAccount,
    request::{CacheReport, CacheSource, CacheStats, Event, FinishReason, MissReason},
    step::Load,
};

/// Upper bounds of the time to a first token, in seconds.
const FIRST_TOKEN: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];
/// Upper bounds of the time between two tokens, in seconds.
const BETWEEN_TOKENS: &[f64] = &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5];

/// Shared by the engines that one after another, or for a while beside each other, do the same work: what they have done
/// is counted on, what they hold is summed.
#[derive(Debug)]
pub struct Metrics {
    /// Sequences that wait for their turn, and those that have been admitted.
    pub waiting: Gauge,
    pub running: Gauge,
    /// Tokens of prompts that began, and those of them whose state was there.
    pub prompt_tokens: Counter,
    pub cached_tokens: Counter,
    /// Those that ended an answer included.
    pub generated_tokens: Counter,
    /// From when a request was taken in.
    pub first_token: Histogram,
    /// 0 between tokens of one step.
    pub between_tokens: Histogram,
    hits: [Counter; CacheSource::ALL.len()],
    misses: [Counter; MissReason::ALL.len()],
    pub evictions: Counter,
    pub cache_bytes: Gauge,
    pub cache_entries: Gauge,
    pub cache_budget: Gauge,
    pub disk_bytes: Gauge,
    pub disk_files: Gauge,
    /// Steps with some of a prompt in them, steps that only decode, and those of them that verify drafts.
    pub prompt_steps: Counter,
    pub plain_steps: Counter,
    pub verifying_steps: Counter,
    pub failed_steps: Counter,
    /// Sequences whose state made room for others', and was computed again.
    pub preemptions: Counter,
    /// Rows of all steps, and their tokens, drafted ones included.
    pub step_rows: Counter,
    pub step_tokens: Counter,
    /// Nanoseconds from one step's end to that of the next, without times in which there was nothing to do.
    pub step_time: Counter,
    /// Nanoseconds of those that drafting took.
    pub draft_time: Counter,
    /// What MLX holds in this process, and the most it has held, in bytes.
    pub memory: Gauge,
    pub most_memory: Gauge,
    /// What memory was promised to, by class.
    pub account: Arc<MemoryAccount>,
    drafts: Mutex<Vec<Arc<Drafts>>>,
}

/// Only ever grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

/// How often something took how long.
#[derive(Debug)]
pub struct Histogram {
    /// Upper bounds, ascending, in seconds.
    bounds: &'static [f64],
    /// One for each bound, and one for all that took longer.
    counts: Vec<Counter>,
    nanoseconds: Counter,
}

/// What a [`Histogram`] held when it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Upper bounds in seconds, and how many took at most so long; the last bound is infinite.
    pub buckets: Vec<(f64, u64)>,
    pub seconds: f64,
}

/// Tokens of one drafter.
#[derive(Debug)]
pub struct Drafts {
    pub drafter: &'static str,
    pub drafted: Counter,
    pub accepted: Counter,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let (counter, gauge) = (Counter::default, Gauge::default);
        Metrics {
            waiting: gauge(),
            running: gauge(),
            prompt_tokens: counter(),
            cached_tokens: counter(),
            generated_tokens: counter(),
            first_token: Histogram::new(FIRST_TOKEN),
            between_tokens: Histogram::new(BETWEEN_TOKENS),
            hits: Default::default(),
            misses: Default::default(),
            evictions: counter(),
            cache_bytes: gauge(),
            cache_entries: gauge(),
            cache_budget: gauge(),
            disk_bytes: gauge(),
            disk_files: gauge(),
            prompt_steps: counter(),
            plain_steps: counter(),
            verifying_steps: counter(),
            failed_steps: counter(),
            preemptions: counter(),
            step_rows: counter(),
            step_tokens: counter(),
            step_time: counter(),
            draft_time: counter(),
            memory: gauge(),
            most_memory: gauge(),
            account: Arc::default(),
            drafts: Mutex::default(),
        }
    }
}

impl Metrics {
    /// Sequences that reused something, by where it lay.
    pub fn hits(&self) -> impl Iterator<Item = (CacheSource, u64)> {
        CacheSource::ALL.into_iter().zip(self.hits.iter().map(Counter::get))
    }

    /// Sequences that reused less than their prompt, by why.
    pub fn misses(&self) -> impl Iterator<Item = (MissReason, u64)> {
        MissReason::ALL.into_iter().zip(self.misses.iter().map(Counter::get))
    }

    /// What every drafter that there was has drafted.
    pub fn drafts(&self) -> Vec<Arc<Drafts>> {
        self.drafts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where a drafter's tokens are counted. Asked once for each drafter of an engine.
    pub(crate) fn drafts_of(&self, drafter: &'static str) -> Arc<Drafts> {
        let mut all = self.drafts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.iter().find(|of| of.drafter == drafter) {
            return known.clone();
        }
        let own = Arc::new(Drafts { drafter, drafted: Counter::default(), accepted: Counter::default() });
        all.push(own.clone());
        own
    }

    fn began(&self, prompt: usize, report: &CacheReport) {
        self.prompt_tokens.add(prompt);
        self.cached_tokens.add(report.reused);
        report.source.into_iter().for_each(|source| self.hits[source as usize].add(1));
        report.miss.into_iter().for_each(|miss| self.misses[miss.reason as usize].add(1));
    }

    /// A step was read.
    pub(crate) fn stepped(&self, load: Load) {
        let steps = match load {
            Load { decodes: false, .. } => &self.prompt_steps,
            Load { drafted: false, .. } => &self.plain_steps,
            _ => &self.verifying_steps,
        };
        steps.add(1);
        self.step_rows.add(load.rows);
        self.step_tokens.add(load.width);
    }

    /// It took so many milliseconds since the one before, drafting among them.
    pub(crate) fn took(&self, ms: f64, drafting: f64) {
        let nanoseconds = |ms: f64| (ms * 1e6) as usize;
        self.step_time.add(nanoseconds(ms));
        self.draft_time.add(nanoseconds(drafting));
    }

    pub(crate) fn saw_memory(&self) {
        self.memory.set(mlx::active_memory());
        self.most_memory.set(mlx::peak_memory());
    }
}

impl Counter {
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn add(&self, more: usize) {
        self.0.fetch_add(more as u64, Relaxed);
    }
}

impl Gauge {
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn set(&self, value: usize) {
        self.0.store(value as u64, Relaxed);
    }

    /// Moves one party's part of it, whatever the others' are.
    fn shift(&self, before: usize, now: usize) {
        self.0.fetch_add((now as u64).wrapping_sub(before as u64), Relaxed);
    }
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Histogram {
        let counts = (0..=bounds.len()).map(|_| Counter::default()).collect();
        Histogram { bounds, counts, nanoseconds: Counter::default() }
    }

    fn saw(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        self.counts[self.bounds.partition_point(|bound| *bound < seconds)].add(1);
        self.nanoseconds.add(time.as_nanos() as usize);
    }

    pub fn read(&self) -> Distribution {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let cumulative = self.counts.iter().scan(0, |sum, count| {
            *sum += count.get();
            Some(*sum)
        });
        let seconds = self.nanoseconds.get() as f64 / 1e9;
        Distribution { buckets: bounds.zip(cumulative).collect(), seconds }
    }
}

/// A sequence on its way, from when it was taken in until it ends or is dropped.
pub(crate) struct Meter {
    metrics: Arc<Metrics>,
    taken_in: Instant,
    /// When its last token came.
    last: Option<Instant>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    Running,
    Ended,
}

impl Meter {
    pub fn new(metrics: Arc<Metrics>) -> Meter {
        metrics.waiting.shift(0, 1);
        Meter { metrics, taken_in: Instant::now(), last: None, stage: Stage::Waiting }
    }

    /// It is admitted.
    pub fn admitted(&mut self) {
        self.moves_to(Stage::Running);
    }

    /// It begins, for the first time, with what `report` says of its prompt's state.
    pub fn began(&self, prompt: usize, report: &CacheReport) {
        self.metrics.began(prompt, report);
    }

    /// It is told something.
    pub fn told(&mut self, event: &Event) {
        let token = matches!(event, Event::Token { .. });
        let ended = matches!(event, Event::Finished { reason: FinishReason::Eos(_), .. });
        self.metrics.generated_tokens.add(usize::from(token || ended));
        if token {
            let now = Instant::now();
            match self.last.replace(now) {
                None => self.metrics.first_token.saw(now - self.taken_in),
                Some(last) => self.metrics.between_tokens.saw(now - last),
            }
        }
        if matches!(event, Event::Finished { .. } | Event::Failed(_)) {
            self.moves_to(Stage::Ended);
        }
    }

    fn moves_to(&mut self, stage: Stage) {
        let before = std::mem::replace(&mut self.stage, stage);
        let count = |of: Stage| (usize::from(before == of), usize::from(stage == of));
        for (gauge, (before, now)) in
            [(&self.metrics.waiting, count(Stage::Waiting)), (&self.metrics.running, count(Stage::Running))]
        {
            gauge.shift(before, now);
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.moves_to(Stage::Ended);
    }
}

/// One engine's part of what is held; none of it once this is dropped.
pub(crate) struct Holding {
    metrics: Arc<Metrics>,
    last: CacheStats,
}

impl Holding {
    pub fn new(metrics: Arc<Metrics>) -> Holding {
        Holding { metrics, last: CacheStats::default() }
    }

    pub fn is(&mut self, now: CacheStats) {
        let (metrics, before) = (&self.metrics, std::mem::replace(&mut self.last, now));
        metrics.evictions.add(now.evictions.saturating_sub(before.evictions));
        metrics.cache_budget.shift(before.budget_bytes, now.budget_bytes);
        metrics.cache_bytes.shift(before.bytes, now.bytes);
        metrics.cache_entries.shift(before.entries, now.entries);
        metrics.disk_bytes.shift(before.disk_bytes, now.disk_bytes);
        metrics.disk_files.shift(before.disk_files, now.disk_files);
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.is(CacheStats::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_in_every_bucket_that_holds_it() {
        let histogram = Histogram::new(&[0.1, 0.5, 1.0]);
        for ms in [0, 100, 101, 500, 900, 4000] {
            histogram.saw(Duration::from_millis(ms));
        }
        let read = histogram.read();
        assert_eq!(read.buckets, [(0.1, 2), (0.5, 4), (1.0, 5), (f64::INFINITY, 6)]);
        assert!((read.seconds - 5.601).abs() < 1e-9, "{}", read.seconds);
    }

    #[test]
    fn what_is_held_is_a_sum_and_what_was_done_never_falls() {
        let metrics = Arc::new(Metrics::default());
        let held = |bytes, evictions| CacheStats { bytes, evictions, ..CacheStats::default() };
        let (mut one, mut other) = (Holding::new(metrics.clone()), Holding::new(metrics.clone()));
        one.is(held(100, 2));
        other.is(held(30, 1));
        one.is(held(70, 5));
        assert_eq!((metrics.cache_bytes.get(), metrics.evictions.get()), (100, 6));
        drop(one);
        assert_eq!((metrics.cache_bytes.get(), metrics.evictions.get()), (30, 6));
    }

    #[test]
    fn a_sequence_is_at_one_stage_at_a_time() {
        let metrics = Arc::new(Metrics::default());
        let check = |waiting, running| {
            assert_eq!((metrics.waiting.get(), metrics.running.get()), (waiting, running));
        };
        let (mut meter, left) = (Meter::new(metrics.clone()), Meter::new(metrics.clone()));
        check(2, 0);
        meter.admitted();
        check(1, 1);
        drop(left);
        check(0, 1);
        meter.told(&Event::Failed(crate::RequestError::TimeIsUp));
        check(0, 0);
        drop(meter);
        check(0, 0);
    }

    #[test]
    fn drafters_of_one_name_are_counted_together() {
        let metrics = Metrics::default();
        metrics.drafts_of("ngram").drafted.add(3);
        metrics.drafts_of("mtp").drafted.add(4);
        metrics.drafts_of("ngram").drafted.add(5);
        let all: Vec<_> = metrics.drafts().iter().map(|of| (of.drafter, of.drafted.get())).collect();
        assert_eq!(all, [("ngram", 8), ("mtp", 4)]);
    }
}

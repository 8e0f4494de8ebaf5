//! Counters, gauges and histograms of engines, as atomics: recording and reading never block. Their
//! text format is the server's.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::api::{
    cache::{CacheSource, MissReason},
    memory_account::MemoryAccount,
};

/// Upper bounds of the time to a first token, in seconds.
const FIRST_TOKEN: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];
/// Upper bounds of the time between two tokens, in seconds.
const BETWEEN_TOKENS: &[f64] = &[0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5];

/// Shared by engines that replace each other, or run beside each other for a while: counters
/// continue, gauges are summed.
#[derive(Debug)]
pub struct Metrics {
    /// Requests that wait for admission.
    pub waiting: Gauge,
    /// Sequences that have been admitted.
    pub running: Gauge,
    /// Tokens of prompts that began.
    pub prompt_tokens: Counter,
    /// Prompt tokens whose state was reused.
    pub cached_tokens: Counter,
    /// Generated tokens, including end-of-sequence tokens.
    pub generated_tokens: Counter,
    /// Time from a request's submission to its first token.
    pub first_token: Histogram,
    /// Time between two tokens; 0 within a step.
    pub between_tokens: Histogram,
    pub(crate) hits: [Counter; CacheSource::ALL.len()],
    pub(crate) misses: [Counter; MissReason::ALL.len()],
    /// Entries and snapshots that the prefix cache evicted.
    pub evictions: Counter,
    /// Bytes that the prefix cache stores in memory.
    pub cache_bytes: Gauge,
    /// KV spans that the prefix cache stores in memory.
    pub cache_entries: Gauge,
    /// Maximum bytes of the prefix cache in memory.
    pub cache_budget: Gauge,
    /// Bytes of the prefix cache on the disk.
    pub disk_bytes: Gauge,
    /// Files of the prefix cache on the disk.
    pub disk_files: Gauge,
    /// Steps that compute only prompts.
    pub prompt_steps: Counter,
    /// Steps that decode without a draft.
    pub plain_steps: Counter,
    /// Steps that decode and verify drafts.
    pub verifying_steps: Counter,
    /// Steps that were queued before the one before them was read.
    pub queued_steps: Counter,
    /// Steps that ended with an error or a panic.
    pub failed_steps: Counter,
    /// Sequences that were preempted: their state was dropped and computed again.
    pub preemptions: Counter,
    /// Images whose features the vision tower computed.
    pub images_computed: Counter,
    /// Images whose features were kept from an earlier request.
    pub images_reused: Counter,
    /// Rows of all steps.
    pub step_rows: Counter,
    /// Tokens of all steps, drafted ones included.
    pub step_tokens: Counter,
    /// Nanoseconds from one step's end to that of the next, without idle times.
    pub step_time: Counter,
    /// Nanoseconds of drafting within `step_time`.
    pub draft_time: Counter,
    /// Bytes that MLX holds in this process.
    pub memory: Gauge,
    /// The maximum bytes that MLX has held.
    pub most_memory: Gauge,
    /// Reserved memory, by class.
    pub account: Arc<MemoryAccount>,
    drafts: Mutex<Vec<Arc<Drafts>>>,
}

/// A counter, which only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

/// A value that rises and falls.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

/// Distribution of durations.
#[derive(Debug)]
pub struct Histogram {
    /// Upper bounds, ascending, in seconds.
    bounds: &'static [f64],
    /// One for each bound, and one for longer times.
    counts: Vec<Counter>,
    nanoseconds: Counter,
}

/// Content of a [`Histogram`] when it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    /// Upper bounds in seconds, and the number of times up to each; the last bound is infinite.
    pub buckets: Vec<(f64, u64)>,
    /// Sum of all recorded times.
    pub seconds: f64,
}

/// Tokens of one drafter.
#[derive(Debug)]
pub struct Drafts {
    /// Name of the drafter.
    pub drafter: &'static str,
    /// Tokens that it proposed.
    pub drafted: Counter,
    /// Proposed tokens that verification accepted.
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
            queued_steps: counter(),
            failed_steps: counter(),
            preemptions: counter(),
            images_computed: counter(),
            images_reused: counter(),
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
    /// Sequences that reused state, by where the state was stored.
    pub fn hits(&self) -> impl Iterator<Item = (CacheSource, u64)> {
        CacheSource::ALL.into_iter().zip(self.hits.iter().map(Counter::get))
    }

    /// Sequences that reused less than their prompt, by reason.
    pub fn misses(&self) -> impl Iterator<Item = (MissReason, u64)> {
        MissReason::ALL.into_iter().zip(self.misses.iter().map(Counter::get))
    }

    /// Counts of every drafter so far.
    pub fn drafts(&self) -> Vec<Arc<Drafts>> {
        self.drafts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The counters of a drafter; called once for each drafter of an engine.
    pub(crate) fn drafts_of(&self, drafter: &'static str) -> Arc<Drafts> {
        let mut all = self.drafts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.iter().find(|of| of.drafter == drafter) {
            return known.clone();
        }
        let own = Arc::new(Drafts { drafter, drafted: Counter::default(), accepted: Counter::default() });
        all.push(own.clone());
        own
    }
}

impl Counter {
    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn add(&self, more: usize) {
        self.0.fetch_add(more as u64, Relaxed);
    }
}

impl Gauge {
    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn set(&self, value: usize) {
        self.0.store(value as u64, Relaxed);
    }

    /// Changes one engine's share of the gauge.
    pub(crate) fn shift(&self, before: usize, now: usize) {
        self.0.fetch_add((now as u64).wrapping_sub(before as u64), Relaxed);
    }
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Histogram {
        let counts = (0..=bounds.len()).map(|_| Counter::default()).collect();
        Histogram { bounds, counts, nanoseconds: Counter::default() }
    }

    pub(crate) fn record(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        self.counts[self.bounds.partition_point(|bound| *bound < seconds)].add(1);
        self.nanoseconds.add(time.as_nanos() as usize);
    }

    /// The counts so far.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_counts_a_time_in_every_bucket_that_reaches_it() {
        let histogram = Histogram::new(&[0.1, 0.5, 1.0]);
        for ms in [0, 100, 101, 500, 900, 4000] {
            histogram.record(Duration::from_millis(ms));
        }
        let read = histogram.read();
        assert_eq!(read.buckets, [(0.1, 2), (0.5, 4), (1.0, 5), (f64::INFINITY, 6)]);
        assert!((read.seconds - 5.601).abs() < 1e-9, "{}", read.seconds);
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

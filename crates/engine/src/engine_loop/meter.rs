//! Records requests, steps and the prefix cache in the metrics.

use std::{sync::Arc, time::Instant};

use super::step_shape::StepShape;
use crate::api::{CacheReport, CacheStats, Event, FinishReason, Metrics};

impl Metrics {
    fn record_start(&self, prompt: usize, report: &CacheReport) {
        self.prompt_tokens.add(prompt);
        self.cached_tokens.add(report.reused);
        report.source.into_iter().for_each(|source| self.hits[source as usize].add(1));
        report.miss.into_iter().for_each(|miss| self.misses[miss.reason as usize].add(1));
    }

    pub(crate) fn record_step(&self, shape: StepShape) {
        let steps = match shape {
            StepShape { decodes: false, .. } => &self.prompt_steps,
            StepShape { drafted: false, .. } => &self.plain_steps,
            _ => &self.verifying_steps,
        };
        steps.add(1);
        self.step_rows.add(shape.rows);
        self.step_tokens.add(shape.width);
    }

    /// Milliseconds since the last step, and those of drafting among them.
    pub(crate) fn record_time(&self, ms: f64, drafting: f64) {
        let nanoseconds = |ms: f64| (ms * 1e6) as usize;
        self.step_time.add(nanoseconds(ms));
        self.draft_time.add(nanoseconds(drafting));
    }

    pub(crate) fn record_memory(&self) {
        self.memory.set(mlx::active_memory());
        self.most_memory.set(mlx::peak_memory());
    }
}

/// Records one request, until it ends or is dropped.
pub(crate) struct Meter {
    metrics: Arc<Metrics>,
    submitted: Instant,
    last_token: Option<Instant>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Waiting,
    Running,
    Ended,
}

impl Meter {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Meter {
        metrics.waiting.shift(0, 1);
        Meter { metrics, submitted: Instant::now(), last_token: None, stage: Stage::Waiting }
    }

    pub(crate) fn admitted(&mut self) {
        self.enter(Stage::Running);
    }

    /// The request's first step follows.
    pub(crate) fn started(&self, prompt: usize, report: &CacheReport) {
        self.metrics.record_start(prompt, report);
    }

    pub(crate) fn record(&mut self, event: &Event) {
        let token = matches!(event, Event::Token { .. });
        let ended = matches!(event, Event::Finished { reason: FinishReason::Eos(_), .. });
        self.metrics.generated_tokens.add(usize::from(token || ended));
        if token {
            let now = Instant::now();
            match self.last_token.replace(now) {
                None => self.metrics.first_token.record(now - self.submitted),
                Some(last) => self.metrics.between_tokens.record(now - last),
            }
        }
        if matches!(event, Event::Finished { .. } | Event::Failed(_)) {
            self.enter(Stage::Ended);
        }
    }

    fn enter(&mut self, stage: Stage) {
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
        self.enter(Stage::Ended);
    }
}

/// One engine's share of the prefix-cache gauges, subtracted on drop.
pub(crate) struct CacheGauges {
    metrics: Arc<Metrics>,
    last: CacheStats,
}

impl CacheGauges {
    pub(super) fn new(metrics: Arc<Metrics>) -> CacheGauges {
        CacheGauges { metrics, last: CacheStats::default() }
    }

    pub(super) fn set(&mut self, now: CacheStats) {
        let (metrics, before) = (&self.metrics, std::mem::replace(&mut self.last, now));
        metrics.evictions.add(now.evictions.saturating_sub(before.evictions));
        metrics.cache_budget.shift(before.budget_bytes, now.budget_bytes);
        metrics.cache_bytes.shift(before.bytes, now.bytes);
        metrics.cache_entries.shift(before.entries, now.entries);
        metrics.disk_bytes.shift(before.disk_bytes, now.disk_bytes);
        metrics.disk_files.shift(before.disk_files, now.disk_files);
    }
}

impl Drop for CacheGauges {
    fn drop(&mut self) {
        self.set(CacheStats::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_gauges_of_several_engines_add_up_and_counters_never_fall() {
        let metrics = Arc::new(Metrics::default());
        let stats = |bytes, evictions| CacheStats { bytes, evictions, ..CacheStats::default() };
        let (mut one, mut other) = (CacheGauges::new(metrics.clone()), CacheGauges::new(metrics.clone()));
        one.set(stats(100, 2));
        other.set(stats(30, 1));
        one.set(stats(70, 5));
        assert_eq!((metrics.cache_bytes.get(), metrics.evictions.get()), (100, 6));
        drop(one);
        assert_eq!((metrics.cache_bytes.get(), metrics.evictions.get()), (30, 6));
    }

    #[test]
    fn meter_counts_a_request_in_one_stage_at_a_time() {
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
        meter.record(&Event::Failed(crate::RequestError::TimeIsUp));
        check(0, 0);
        drop(meter);
        check(0, 0);
    }
}

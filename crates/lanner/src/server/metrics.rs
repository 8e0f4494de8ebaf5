//! `GET /metrics` in Prometheus' text format. Reads the engine's counters; measures nothing and
//! never blocks.
//!
//! Reference: Prometheus documentation, "Exposition formats", text-based format 0.0.4.

use std::{
    fmt::{Display, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use axum::{
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
};
use engine::{Distribution, MemoryClass, Metrics};

use super::{
    openai::{error::ApiError, usage},
    request_log::RequestLog,
};

const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How a request for a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Answered,
    /// Answered with an earlier answer.
    Replayed,
    /// The client disconnected before the end.
    Cancelled,
    /// The request is not valid.
    Invalid,
    /// The queue or the memory was full.
    Full,
    Timeout,
    Failed,
}

impl Outcome {
    pub(super) const ALL: [Outcome; 7] = [
        Outcome::Answered,
        Outcome::Replayed,
        Outcome::Cancelled,
        Outcome::Invalid,
        Outcome::Full,
        Outcome::Timeout,
        Outcome::Failed,
    ];

    /// The name in metrics and statistics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Outcome::Answered => "answered",
            Outcome::Replayed => "replayed",
            Outcome::Cancelled => "cancelled",
            Outcome::Invalid => "invalid",
            Outcome::Full => "full",
            Outcome::Timeout => "timeout",
            Outcome::Failed => "failed",
        }
    }

    pub(super) fn of(error: &ApiError) -> Outcome {
        match error.status {
            StatusCode::TOO_MANY_REQUESTS => Outcome::Full,
            _ if matches!(error.body.code, Some("out_of_memory" | "too_many_models")) => Outcome::Full,
            StatusCode::GATEWAY_TIMEOUT => Outcome::Timeout,
            status if status.is_client_error() => Outcome::Invalid,
            _ => Outcome::Failed,
        }
    }
}

/// Ended requests for completions by outcome, over all models.
#[derive(Debug, Default)]
pub(super) struct OutcomeCounts([AtomicU64; Outcome::ALL.len()]);

impl OutcomeCounts {
    pub(super) fn count(&self, outcome: Outcome) -> u64 {
        self.0[outcome as usize].load(Relaxed)
    }
}

/// Counts a request once: with its outcome, or as cancelled when the last reference is dropped.
pub(super) struct OutcomeGuard {
    requests: Arc<OutcomeCounts>,
    log: Arc<RequestLog>,
    ended: AtomicBool,
}

impl OutcomeGuard {
    pub(super) fn new(requests: &Arc<OutcomeCounts>, log: Arc<RequestLog>) -> Arc<OutcomeGuard> {
        Arc::new(OutcomeGuard { requests: requests.clone(), log, ended: AtomicBool::new(false) })
    }

    pub(super) fn log(&self) -> &RequestLog {
        &self.log
    }

    pub(super) fn record(&self, outcome: Outcome) {
        if !self.ended.swap(true, Relaxed) {
            self.requests.0[outcome as usize].fetch_add(1, Relaxed);
            self.log.set_outcome(outcome.name());
        }
    }
}

impl Drop for OutcomeGuard {
    fn drop(&mut self) {
        self.record(Outcome::Cancelled);
    }
}

/// Figures of the page besides the engines' counters.
pub(crate) struct MetricsPage<'a> {
    pub(crate) engines: &'a Metrics,
    pub(crate) requests: &'a OutcomeCounts,
    /// Start of the server, in seconds since the Unix epoch.
    pub(crate) started_at: u64,
    /// Names of the loaded models, and bytes of their weights.
    pub(crate) models: Vec<(&'a str, usize)>,
    pub(crate) memory_limit: Option<usize>,
}

impl MetricsPage<'_> {
    pub(crate) fn respond(&self) -> impl IntoResponse + use<> {
        ([(CONTENT_TYPE, FORMAT)], self.render())
    }

    fn render(&self) -> String {
        let mut text = Text::default();
        self.about(&mut text);
        let metrics = self.engines;
        requests(&mut text, metrics, self.requests);
        speculation(&mut text, metrics);
        steps(&mut text, metrics);
        caches(&mut text, metrics);
        self.memory(&mut text);
        text.0
    }

    fn about(&self, text: &mut Text) {
        let version = env!("CARGO_PKG_VERSION");
        text.family("lanner_build_info", Kind::Gauge, "Version of the server.")
            .labelled(&[("version", version)], 1);
        let family = text.family("lanner_model_info", Kind::Gauge, "The loaded models.");
        self.models.iter().fold(family, |family, (model, _)| family.labelled(&[("model", model)], 1));
        text.gauge(
            "process_start_time_seconds",
            "Start of the server, in seconds since the Unix epoch.",
            self.started_at,
        );
    }

    fn memory(&self, text: &mut Text) {
        let metrics = self.engines;
        let weights: usize = self.models.iter().map(|(_, bytes)| bytes).sum();
        text.gauge("lanner_model_weight_bytes", "Bytes of the loaded models' weights.", weights);
        text.gauge(
            "lanner_memory_active_bytes",
            "Bytes that MLX holds, after the last step.",
            metrics.memory.get(),
        );
        text.gauge("lanner_memory_peak_bytes", "Most bytes that MLX has held.", metrics.most_memory.get());
        let promised =
            MemoryClass::ALL.map(|class| (memory_class(class), metrics.account.bytes(class) as u64));
        text.gauge_by_label(
            "lanner_memory_reserved_bytes",
            "Reserved memory by purpose; the prefix cache yields to the others.",
            "class",
            promised.into_iter(),
        );
        let help = "Times that prefix caches shrank because the system was short of memory.";
        text.counter("lanner_memory_shortages_total", help, metrics.account.cache_pressure().releases);
        if let Some(limit) = self.memory_limit {
            text.gauge("lanner_memory_limit_bytes", "Limit of the bytes that MLX holds.", limit);
        }
    }
}

fn requests(text: &mut Text, metrics: &Metrics, requests: &OutcomeCounts) {
    let help = "Ended requests for completions, by outcome.";
    let mut family = text.family("lanner_requests_total", Kind::Counter, help);
    for outcome in Outcome::ALL {
        let count = requests.count(outcome);
        family = family.labelled(&[("outcome", outcome.name())], count);
    }
    let gauges = [
        ("lanner_waiting_sequences", "Choices in the queue.", &metrics.waiting),
        ("lanner_running_sequences", "Choices being generated.", &metrics.running),
    ];
    gauges.into_iter().for_each(|(name, help, gauge)| text.gauge(name, help, gauge.get()));
    let counters = [
        ("lanner_prompt_tokens_total", "Prompt tokens, counted for each choice.", &metrics.prompt_tokens),
        (
            "lanner_cached_prompt_tokens_total",
            "Prompt tokens whose state was reused instead of computed.",
            &metrics.cached_tokens,
        ),
        ("lanner_generated_tokens_total", "Generated tokens.", &metrics.generated_tokens),
    ];
    counters.into_iter().for_each(|(name, help, counter)| text.counter(name, help, counter.get()));
    text.histogram(
        "lanner_time_to_first_token_seconds",
        "Time from when a choice entered the engine's queue to its first token.",
        &metrics.first_token.read(),
    );
    text.histogram(
        "lanner_inter_token_latency_seconds",
        "Time between two tokens of a choice; near 0 within a step.",
        &metrics.between_tokens.read(),
    );
}

fn speculation(text: &mut Text, metrics: &Metrics) {
    let drafts = metrics.drafts();
    let of = |count: fn(&engine::Drafts) -> u64| drafts.iter().map(move |of| (of.drafter, count(of)));
    text.by_label(
        "lanner_speculation_drafted_tokens_total",
        "Drafted tokens, by drafter.",
        "drafter",
        of(|of| of.drafted.get()),
    );
    text.by_label(
        "lanner_speculation_accepted_tokens_total",
        "Drafted tokens that were accepted, by drafter.",
        "drafter",
        of(|of| of.accepted.get()),
    );
    text.seconds(
        "lanner_speculation_seconds_total",
        "Time spent drafting; a part of lanner_step_seconds_total.",
        metrics.draft_time.get(),
    );
}

fn steps(text: &mut Text, metrics: &Metrics) {
    let kinds = [
        ("prompt", metrics.prompt_steps.get()),
        ("decode", metrics.plain_steps.get()),
        ("verify", metrics.verifying_steps.get()),
    ];
    text.by_label(
        "lanner_steps_total",
        "Steps by kind: with prompt tokens, with one token per sequence, or with drafts to verify.",
        "kind",
        kinds.into_iter(),
    );
    let counters = [
        ("lanner_step_sequences_total", "Sequences, summed over steps.", &metrics.step_rows),
        ("lanner_step_tokens_total", "Tokens, drafts included, summed over steps.", &metrics.step_tokens),
        (
            "lanner_steps_queued_ahead_total",
            "Steps that were queued before the one before them was read.",
            &metrics.queued_steps,
        ),
        ("lanner_step_failures_total", "Steps that failed.", &metrics.failed_steps),
        (
            "lanner_preemptions_total",
            "Sequences whose state was evicted for others and computed again.",
            &metrics.preemptions,
        ),
    ];
    counters.into_iter().for_each(|(name, help, counter)| text.counter(name, help, counter.get()));
    text.seconds(
        "lanner_step_seconds_total",
        "Time from the end of a step to that of the next, without idle time.",
        metrics.step_time.get(),
    );
}

fn caches(text: &mut Text, metrics: &Metrics) {
    let gauges = [
        ("lanner_prefix_cache_bytes", "Bytes of the prefix cache in memory.", &metrics.cache_bytes),
        ("lanner_prefix_cache_budget_bytes", "Limit of the prefix cache in memory.", &metrics.cache_budget),
        ("lanner_prefix_cache_entries", "Entries of the prefix cache in memory.", &metrics.cache_entries),
        ("lanner_disk_cache_bytes", "Bytes of the loaded models' disk caches.", &metrics.disk_bytes),
        ("lanner_disk_cache_files", "Files of the loaded models' disk caches.", &metrics.disk_files),
    ];
    gauges.into_iter().for_each(|(name, help, gauge)| text.gauge(name, help, gauge.get()));
    text.by_label(
        "lanner_prefix_cache_hits_total",
        "Choices that reused cached state, by source.",
        "source",
        metrics.hits().map(|(source, count)| (usage::source(source), count)),
    );
    text.by_label(
        "lanner_prefix_cache_misses_total",
        "Choices that could not reuse their whole prompt, by reason.",
        "reason",
        metrics.misses().map(|(reason, count)| (usage::reason(reason), count)),
    );
    let help = "Entries and state snapshots evicted from memory.";
    text.counter("lanner_prefix_cache_evictions_total", help, metrics.evictions.get());
}

/// The name in metrics and responses.
pub(super) fn memory_class(class: MemoryClass) -> &'static str {
    match class {
        MemoryClass::Weights => "weights",
        MemoryClass::Step => "step",
        MemoryClass::Sequences => "sequences",
        MemoryClass::Drafters => "drafters",
        MemoryClass::Loading => "loading",
        MemoryClass::PrefixCache => "prefix_cache",
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// A page in the text format.
#[derive(Default)]
struct Text(String);

/// One metric, to which samples are added.
struct Family<'a> {
    text: &'a mut String,
    name: &'a str,
}

impl Text {
    fn family<'a>(&'a mut self, name: &'a str, kind: Kind, help: &str) -> Family<'a> {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a string does not fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        Family { text: &mut self.0, name }
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, Kind::Counter, help).labelled(&[], value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, Kind::Gauge, help).labelled(&[], value);
    }

    /// A counter of nanoseconds.
    fn seconds(&mut self, name: &str, help: &str, nanoseconds: u64) {
        self.family(name, Kind::Counter, help).labelled(&[], nanoseconds as f64 / 1e9);
    }

    /// A counter for each value of one label.
    fn by_label(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        counts: impl Iterator<Item = (&'static str, u64)>,
    ) {
        let family = self.family(name, Kind::Counter, help);
        counts.fold(family, |family, (value, count)| family.labelled(&[(label, value)], count));
    }

    /// A gauge for each value of one label.
    fn gauge_by_label(
        &mut self,
        name: &str,
        help: &str,
        label: &str,
        values: impl Iterator<Item = (&'static str, u64)>,
    ) {
        let family = self.family(name, Kind::Gauge, help);
        values.fold(family, |family, (value, now)| family.labelled(&[(label, value)], now));
    }

    fn histogram(&mut self, name: &str, help: &str, read: &Distribution) {
        let mut family = self.family(name, Kind::Histogram, help);
        for (bound, count) in &read.buckets {
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".into() };
            family = family.sample("_bucket", &[("le", &bound)], count);
        }
        let count = read.buckets.last().map_or(0, |(_, count)| *count);
        family.sample("_sum", &[], read.seconds).sample("_count", &[], count);
    }
}

impl Family<'_> {
    fn labelled(self, labels: &[(&str, &str)], value: impl Display) -> Self {
        self.sample("", labels, value)
    }

    fn sample(self, suffix: &str, labels: &[(&str, &str)], value: impl Display) -> Self {
        let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels = labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value)));
        let labels = labels.collect::<Vec<_>>().join(",");
        let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
        let _ = writeln!(self.text, "{}{suffix}{labels} {value}", self.name);
        self
    }
}

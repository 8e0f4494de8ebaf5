//! One reading of a server's /metrics, in Prometheus' text format.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    commands::{CommandError, remote},
    config::ServerAddress,
};

/// A server that is busy answers well within this time, as its counters wait for no step.
const ANSWER: Duration = Duration::from_secs(5);

pub(super) struct Reading {
    pub at: Instant,
    pub models: Vec<Value>,
    /// Values by name and labels, as in `lanner_steps_total{kind="decode"}`.
    samples: BTreeMap<String, f64>,
}

impl Reading {
    pub(super) fn take(server: &ServerAddress) -> Result<Reading, CommandError> {
        let models = remote::models_within(server, ANSWER)?;
        let text = remote::text_within(server, "/metrics", ANSWER)?;
        Ok(Reading::new(&text, models, Instant::now()))
    }

    pub(super) fn new(text: &str, models: Vec<Value>, at: Instant) -> Reading {
        let sample = |line: &str| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect();
        Reading { at, models, samples }
    }

    /// Zero if the server does not report it.
    pub(super) fn value(&self, name: &str) -> f64 {
        self.samples.get(name).copied().unwrap_or(0.0)
    }

    /// Values of a metric by its only label.
    pub(super) fn by_label<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        self.samples.iter().filter_map(move |(sample, value)| {
            let label = sample.strip_prefix(name)?.strip_prefix('{')?.strip_suffix("\"}")?;
            Some((label.split_once("=\"")?.1, *value))
        })
    }

    /// The value of the label of an information metric.
    pub(super) fn info<'a>(&'a self, name: &'a str) -> &'a str {
        self.by_label(name).next().map_or("-", |(label, _)| label)
    }
}

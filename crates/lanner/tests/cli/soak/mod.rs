//! Soak test: a long mixed load with invalid requests, cancelled, slow and idle clients, hot loads
//! and too little memory. Afterwards threads, descriptors and MLX's memory must be back at the
//! start, resident memory must have stayed flat, and the tokens of one stream must never have
//! stalled.
//!
//! `LANNER_SOAK=1800 cargo test --release -p lanner --test cli -- soak:: --ignored --nocapture`
//! measures 30 minutes (20 s without LANNER_SOAK, without the bounds on growth and stalls). Before
//! them the load runs until resident memory has stopped growing, at most 20 minutes.
//! LANNER_SOAK_PROGRAM is the path of another `lanner` to test.

mod clients;
mod watch;

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use self::{
    clients::Draws,
    watch::{Gaps, Pauses, Sample, metric},
};
use crate::{
    load::{Random, median},
    support::{client, process::ServerProcess},
};

/// Clients with mixed requests; four more load models, idle, send slowly and stream.
const CLIENTS: u64 = 12;
/// Longest time between two tokens, beyond the longest step.
const STALL: Duration = Duration::from_millis(100);
/// Largest growth of resident memory without live arrays from the first to any other tenth of the
/// measured time, as a share of all resident memory: how many arrays live depends on which requests
/// happen to run at a time.
const GROWTH: f64 = 0.03;
/// Largest rise of the trend of resident memory over the measured time, as a share of its mean.
const TREND: f64 = 0.03;
/// The load is warm once resident memory has grown by less than this ratio for a sixth of the
/// measured time.
const WARM: f64 = 1.01;
/// Most resident megabytes that stay after the load, with an empty cache: code and pages of weights
/// that were not touched before, and pages that small live pieces share.
const KEPT: f64 = 20.0;
/// Time after the last request in which threads and connections must be gone.
const SETTLE: Duration = Duration::from_secs(60);
/// Longer than the lifetime of idle threads.
const REST: Duration = Duration::from_secs(12);

/// State shared by all clients.
pub(crate) struct Soak {
    pub server: ServerProcess,
    pub stop: AtomicBool,
    /// Start and end of each load that succeeded.
    pub loads: Mutex<Vec<(Instant, Instant)>>,
    /// End, kind and outcome of each request.
    pub outcomes: Mutex<Vec<(Instant, String)>>,
    pub known: (Value, Value),
    /// The disk cache's folder.
    _cache: TempDir,
}

impl Soak {
    fn start(memory: &str) -> Soak {
        let cache = tempdir().unwrap();
        let caches =
            ["--prefix-cache", "32M", "--disk-cache", "64M", "--cache-dir", cache.path().to_str().unwrap()];
        let limits = ["--memory-limit", memory, "--queue-limit", "64", "--max-batch", "8"];
        let server = ServerProcess::start_program(program(), &[&caches[..], &limits].concat());
        let known = json!({ "prompt": "The owl is", "temperature": 0, "max_tokens": 24, "ignore_eos": true });
        let text = server.complete(&known).json()["choices"][0]["text"].clone();
        let (stop, loads, outcomes) = Default::default();
        Soak { server, stop, loads, outcomes, known: (known, text), _cache: cache }
    }

    pub(crate) fn runs(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, what: &str, outcome: impl std::fmt::Display) {
        self.outcomes.lock().unwrap().push((Instant::now(), format!("{what}: {outcome}")));
    }

    /// Number of requests by kind and outcome.
    fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for (_, outcome) in &*self.outcomes.lock().unwrap() {
            *counts.entry(outcome.clone()).or_default() += 1;
        }
        counts
    }

    fn is_idle(&self) -> bool {
        client::get(self.server.address, "/health").json()["running"] == 0
    }

    /// Resources of the idle server after each kind of request ran once.
    fn before(&self) -> Sample {
        clients::each_once(self);
        thread::sleep(REST);
        self.at_rest()
    }

    /// Resources once they are back at `before`, at the latest after [`SETTLE`].
    fn after(&self, before: &Sample) -> Sample {
        let start = Instant::now();
        loop {
            let sample = self.at_rest();
            if (self.is_idle() && sample.is_back_at(before)) || start.elapsed() > SETTLE {
                return sample;
            }
            // Without requests in between: each one keeps an idle thread alive.
            thread::sleep(REST);
        }
    }

    /// Resources with an empty prefix cache.
    fn at_rest(&self) -> Sample {
        client::request(self.server.address, "DELETE /v1/cache", "", b"");
        Sample::of(&self.server)
    }

    /// The longest gap in a stream while other clients send only valid requests: a step with a
    /// whole batch and a full prefill chunk.
    fn longest_step(&self, time: Duration) -> Duration {
        let (start, pauses) = (Instant::now(), Pauses::default());
        let gaps = thread::scope(|scope| {
            scope.spawn(|| pauses.watch(self));
            for i in 0..CLIENTS {
                scope.spawn(move || {
                    let mut random = Draws::new(1000 + i);
                    while self.runs() {
                        clients::answered(self, &mut random);
                    }
                });
            }
            let canary = scope.spawn(|| watch::canary(self));
            thread::sleep(time.saturating_sub(start.elapsed()));
            self.stop.store(true, Ordering::Relaxed);
            canary.join().unwrap()
        });
        self.stop.store(false, Ordering::Relaxed);
        gaps.without(&pauses).longest()
    }

    /// Runs the mixed load until it is warm and then for `time`. Returns the samples of the latter
    /// and the gaps of all.
    fn soak(&self, time: Duration) -> (Vec<Sample>, Gaps) {
        let pauses = Pauses::default();
        let (samples, gaps) = thread::scope(|scope| {
            scope.spawn(|| pauses.watch(self));
            for i in 0..CLIENTS {
                scope.spawn(move || clients::mixed(self, Draws::new(i + 1)));
            }
            scope.spawn(|| clients::loads(self, Random(90)));
            scope.spawn(|| clients::idle(self, Random(91)));
            scope.spawn(|| clients::slow_sender(self));
            let canary = scope.spawn(|| watch::canary(self));
            self.warm_up(time);
            let samples = self.sample(time);
            self.stop.store(true, Ordering::Relaxed);
            (samples, canary.join().unwrap())
        });
        (samples, gaps.without(&pauses))
    }

    /// Waits until resident memory has not grown for a sixth of `time`, at most two thirds of it.
    fn warm_up(&self, time: Duration) {
        let start = Instant::now();
        let largest = || {
            let samples = self.sample(time / 6);
            samples.iter().map(|sample| sample.resident).fold(0.0, f64::max)
        };
        let mut before = largest();
        while start.elapsed() < time * 2 / 3 {
            let now = largest();
            if now < before * WARM {
                break;
            }
            before = now;
        }
        eprintln!("warm after {:.0?}: {before:.1} MB", start.elapsed());
    }

    fn sample(&self, time: Duration) -> Vec<Sample> {
        let (start, mut samples) = (Instant::now(), vec![]);
        while start.elapsed() < time {
            samples.push(Sample::of(&self.server));
            thread::sleep(Duration::from_millis(500).min(time / 40));
        }
        samples
    }
}

fn program() -> String {
    std::env::var("LANNER_SOAK_PROGRAM").unwrap_or(env!("CARGO_BIN_EXE_lanner").into())
}

/// A memory limit with room for two built-in models, but not for all requests. With room for three,
/// MLX would keep the threads of a third engine's streams, which no earlier request started.
fn memory_limit() -> String {
    let server = ServerProcess::start_program(program(), &["--disk-cache", "off"]);
    let memory = client::get(server.address, "/v1/models").json()["data"][0]["memory"].take();
    let bytes = |key: &str| memory[key].as_u64().unwrap();
    let limit = 2 * (bytes("weight_bytes") + bytes("step_bytes")) + bytes("context_bytes");
    limit.to_string()
}

/// The median of each tenth of the samples.
fn tenths(samples: &[f64]) -> Vec<f64> {
    let at = |i: usize| samples.len() * i / 10;
    (0..10).map(|i| median(&samples[at(i)..at(i + 1)])).collect()
}

fn tenths_of(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> Vec<f64> {
    tenths(&samples.iter().map(of).collect::<Vec<f64>>())
}

/// How much the least-squares line through equidistant samples rises from end to end, as a share of
/// their mean.
fn trend(samples: &[f64]) -> f64 {
    let count = samples.len() as f64;
    let (middle, mean) = ((count - 1.0) / 2.0, samples.iter().sum::<f64>() / count);
    let from_middle = |i: usize| i as f64 - middle;
    let (rise, run) = samples.iter().enumerate().fold((0.0, 0.0), |(rise, run), (i, sample)| {
        (rise + from_middle(i) * (sample - mean), run + from_middle(i).powi(2))
    });
    rise / run * (count - 1.0) / mean
}

#[test]
fn trend_is_the_rise_of_the_samples_whatever_their_noise() {
    let samples = |rise: f64| -> Vec<f64> {
        let noise = |i: usize| if i.is_multiple_of(2) { 5.0 } else { -5.0 };
        (0..1001).map(|i| 100.0 + rise * i as f64 / 1000.0 + noise(i)).collect()
    };
    assert!(trend(&samples(0.0)).abs() < 1e-3);
    assert!((trend(&samples(4.0)) - 4.0 / 102.0).abs() < 1e-3);
    assert!((trend(&samples(-4.0)) + 4.0 / 98.0).abs() < 1e-3);
}

#[test]
#[ignore = "takes 20 seconds, or LANNER_SOAK=SECONDS"]
fn long_mixed_load_releases_everything() {
    let long: Option<u64> = std::env::var("LANNER_SOAK").ok().map(|seconds| seconds.parse().unwrap());
    let time = Duration::from_secs(long.unwrap_or(20));
    let soak = Soak::start(&memory_limit());
    let before = soak.before();
    let step = soak.longest_step(time / 10);
    let (samples, gaps) = soak.soak(time);
    let after = soak.after(&before);

    let counts = soak.counts();
    for (what, count) in &counts {
        eprintln!("{count:8} {what}");
    }
    let memory: Vec<f64> = samples.iter().map(|sample| sample.resident).collect();
    let (resident, arrays) = (tenths(&memory), tenths_of(&samples, |sample| sample.arrays));
    let others = tenths_of(&samples, |sample| sample.resident - sample.arrays);
    eprintln!("memory in MB, by tenths: {resident:.1?}; arrays {arrays:.1?}; without them {others:.1?}");
    eprintln!("at rest before: {before:?}\nat rest after:  {after:?}");
    eprintln!("a chunk of a prompt takes up to {step:?}; {}", gaps.describe());
    eprintln!(
        "{} tokens in {} steps, {:.0} s in all",
        metric(&soak.server, "lanner_generated_tokens_total"),
        metric(&soak.server, "lanner_steps_total"),
        metric(&soak.server, "lanner_step_seconds_total")
    );

    let mut faults = vec![];
    let mut check = |holds: bool, fault: String| faults.extend((!holds).then_some(fault));
    let text = &soak.server.complete(&soak.known.0).json()["choices"][0]["text"];
    check(*text == soak.known.1, format!("the known prompt is answered with {text}"));
    check(after.is_back_at(&before), format!("{after:?} after the load, {before:?} before"));
    let broken: Vec<_> =
        counts.keys().filter(|what| what.contains("500") || what.contains("wrong")).collect();
    check(broken.is_empty(), format!("{broken:?}"));
    let kept = after.resident - before.resident;
    check(kept <= KEPT, format!("{kept:.1} MB are kept with an empty cache"));
    if long.is_some() {
        let growth = (others.iter().fold(0.0f64, |most, own| most.max(*own)) - others[0]) / resident[0];
        check(growth <= GROWTH, format!("memory beside arrays grew by {growth:.3} of all memory"));
        let trend = trend(&memory);
        check(trend <= TREND, format!("the trend of memory rose by {trend:.3} of its mean"));
        let loads = soak.loads.lock().unwrap();
        let late = gaps.over(step + STALL, 2 * step + STALL, &loads, &soak.outcomes.lock().unwrap());
        check(late.is_empty(), format!("the stream waited beside steps of up to {step:?}: {late:?}"));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

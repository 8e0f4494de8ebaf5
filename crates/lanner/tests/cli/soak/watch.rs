//! Measurements from outside the server: memory, threads and descriptors of the process, and the
//! time between the tokens of one stream.

use std::{
    fs,
    io::{BufRead, BufReader},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::Soak;
use crate::support::{client, process::ServerProcess};

/// Maximum idle threads that the chat templates of one model keep.
const TEMPLATE_THREADS: usize = 2;
/// Threads of MLX that stay for later engines: the memory limit admits a second engine while the
/// first one ends, and MLX cannot end the thread of a stream.
const ENGINE_THREADS: usize = 1;
/// A sleep this much too long counts as a pause of the machine.
const PAUSE: Duration = Duration::from_millis(5);
/// Tokens of each watched stream.
const WATCHED: usize = 400;
/// Time after a gap in which the requests end that may have caused it.
const SHORTLY: Duration = Duration::from_millis(200);
/// Time without data after which a stream counts as dead.
const SILENCE: Duration = Duration::from_secs(120);

/// Resources that a process holds.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// In megabytes.
    pub resident: f64,
    /// Names of all threads, sorted.
    pub threads: Vec<String>,
    pub descriptors: usize,
    /// MLX's active memory in megabytes.
    pub arrays: f64,
}

impl Sample {
    pub(super) fn of(server: &ServerProcess) -> Sample {
        let folder = format!("/proc/{}", server.child.id());
        let entries = |name: &str| fs::read_dir(format!("{folder}/{name}")).into_iter().flatten().flatten();
        let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).ok();
        // Before descriptors are counted: reading a metric opens a connection.
        let arrays = metric(server, "lanner_memory_active_bytes") / 1e6;
        let mut names: Vec<String> =
            entries("task").filter_map(name).map(|name| name.trim().to_owned()).collect();
        names.sort();
        Sample {
            resident: server.memory().unwrap_or_default(),
            threads: names,
            descriptors: entries("fd").count(),
            arrays,
        }
    }

    /// Without the threads that chat templates may keep.
    fn num_threads(&self) -> usize {
        let templates = self.threads.iter().filter(|name| *name == "template").count();
        self.threads.len() - templates.min(TEMPLATE_THREADS)
    }

    /// Whether the process holds no more than at `before`.
    pub(super) fn is_back_at(&self, before: &Sample) -> bool {
        self.num_threads() <= before.num_threads() + ENGINE_THREADS
            && self.descriptors <= before.descriptors
            && self.arrays <= before.arrays + 0.5
    }
}

/// The sum of a metric's samples, whatever their labels.
pub(super) fn metric(server: &ServerProcess, name: &str) -> f64 {
    let reply = client::get(server.address, "/metrics");
    let is_it = |line: &&str| line.split(['{', ' ']).next() == Some(name);
    reply.body.lines().filter(is_it).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// Intervals in which the machine did not schedule this process.
#[derive(Default)]
pub(super) struct Pauses(Mutex<Vec<(Instant, Instant)>>);

impl Pauses {
    pub(super) fn watch(&self, soak: &Soak) {
        let nap = Duration::from_millis(1);
        while soak.runs() {
            let slept = Instant::now();
            thread::sleep(nap);
            if slept.elapsed() > nap + PAUSE {
                self.0.lock().unwrap().push((slept + nap, Instant::now()));
            }
        }
    }
}

/// Intervals between the tokens of a stream, and their lengths without pauses of the machine.
pub(super) struct Gaps(Vec<(Instant, Instant)>, Vec<Duration>);

impl Gaps {
    fn new(gaps: Vec<(Instant, Instant)>) -> Gaps {
        let lengths = gaps.iter().map(|(from, to)| *to - *from).collect();
        Gaps(gaps, lengths)
    }

    /// Subtracts pauses of the machine.
    pub(super) fn without(mut self, pauses: &Pauses) -> Gaps {
        let pauses = pauses.0.lock().unwrap();
        for ((from, to), length) in self.0.iter().zip(&mut self.1) {
            let first = pauses.partition_point(|(_, end)| end <= from);
            for (start, end) in pauses[first..].iter().take_while(|(start, _)| start < to) {
                *length = length.saturating_sub(*end.min(to) - *start.max(from));
            }
        }
        self
    }

    pub(super) fn longest(&self) -> Duration {
        self.1.iter().max().copied().unwrap_or_default()
    }

    /// Gaps longer than `limit`; longer than `busy` during a load and shortly after it, while two
    /// models share the processors. Each with its time after the first one and the requests that
    /// ended in it or shortly after it.
    pub(super) fn over(
        &self,
        limit: Duration,
        busy: Duration,
        loads: &[(Instant, Instant)],
        outcomes: &[(Instant, String)],
    ) -> Vec<String> {
        let ended = |from: Instant, to: Instant| -> Vec<&str> {
            let near = outcomes.iter().filter(|(end, _)| *end > from && *end < to + SHORTLY);
            near.map(|(_, outcome)| outcome.as_str()).collect()
        };
        let settle = Duration::from_secs(5);
        let during =
            |from: Instant, to: Instant| loads.iter().any(|load| load.0 < to && from < load.1 + settle);
        let late = self.0.iter().zip(&self.1).filter_map(|(&(from, to), length)| {
            let is_busy = during(from, to);
            let at = from - self.0[0].0;
            let load = if is_busy { " during a load" } else { "" };
            (*length > if is_busy { busy } else { limit })
                .then(|| format!("{length:.2?} at {at:.1?}{load}, beside {:?}", ended(from, to)))
        });
        late.collect()
    }

    pub(super) fn describe(&self) -> String {
        let mut lengths = self.1.clone();
        lengths.sort();
        let at =
            |share: f64| lengths.get((lengths.len() as f64 * share) as usize).copied().unwrap_or_default();
        let (half, most, longest) = (at(0.5), at(0.999), self.longest());
        format!(
            "the stream's {} gaps: median {half:?}, 999th of 1000 {most:?}, longest {longest:?}",
            lengths.len()
        )
    }
}

/// Runs one stream after another without drafts and records the time between tokens.
pub(super) fn canary(soak: &Soak) -> Gaps {
    let body = json!({
        "prompt": "The owl hunts", "temperature": 0, "max_tokens": WATCHED, "ignore_eos": true, "stream": true,
        "priority": "interactive", "speculation": "off", "return_token_ids": true,
    });
    let body = body.to_string();
    let mut gaps = vec![];
    while soak.runs() {
        let headers = "Content-Type: application/json\r\n";
        let stream = client::open(soak.server.address, "POST /v1/completions", headers, body.as_bytes());
        let _ = stream.set_read_timeout(Some(SILENCE));
        let (mut last, mut tokens, mut ended) = (None, 0, "wrong: cut off");
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if line.starts_with("HTTP/1.1 503") || line.starts_with("HTTP/1.1 429") {
                ended = "refused";
                break;
            }
            let Some(data) = line.strip_prefix("data: ") else { continue };
            if data == "[DONE]" {
                ended = if tokens == WATCHED { "whole" } else { "wrong: tokens are missing" };
                break;
            }
            if data.contains("\"error\"") {
                ended = if data.contains("out_of_memory") { "no memory" } else { "wrong: an error" };
                break;
            }
            // The first event opens the answer, before the request is admitted.
            let event: Value = serde_json::from_str(data).unwrap_or_default();
            if event["choices"][0]["token_ids"].as_array().is_none_or(Vec::is_empty) {
                continue;
            }
            tokens += 1;
            let now = Instant::now();
            gaps.extend(last.replace(now).map(|last| (last, now)));
            if !soak.runs() {
                ended = "left";
                break;
            }
        }
        soak.count("the watched stream", ended);
    }
    Gaps::new(gaps)
}

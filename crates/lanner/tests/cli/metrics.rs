//! `GET /metrics`: parsed as strictly as by Prometheus, and compared with the usage of answers.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::support::{
    client::{self, Reply},
    server::{Setup, TestServer, token},
    wait::wait_until,
};

/// Samples by name and labels, as they are written.
struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    fn get(server: &TestServer) -> Metrics {
        Metrics::parse(&client::get(server.address, "/metrics"))
    }

    /// # Panics
    /// If Prometheus would reject it, or its conventions are violated.
    fn parse(reply: &Reply) -> Metrics {
        assert_eq!(reply.status, 200, "{}", reply.body);
        let head = reply.head.to_lowercase();
        assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
        assert!(reply.body.ends_with('\n'));
        let (mut samples, mut families) = (BTreeMap::new(), BTreeSet::new());
        let mut lines = reply.body.lines().peekable();
        while let Some(help) = lines.next() {
            let (name, help) = help.strip_prefix("# HELP ").unwrap().split_once(' ').unwrap();
            assert!(help.ends_with('.') && is_name(name), "{name}: {help}");
            assert!(families.insert(name.to_owned()), "{name} comes twice");
            let kind = lines.next().unwrap().strip_prefix(&format!("# TYPE {name} ")).unwrap();
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
            let mut of_family = vec![];
            while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
                let (sample, value) = line.rsplit_once(' ').unwrap();
                let value: f64 = value.parse().unwrap();
                assert!(value >= 0.0 && value.is_finite(), "{line}");
                let (of, labels) = split(sample);
                let suffix = of.strip_prefix(name).unwrap();
                match kind {
                    "histogram" => assert!(["_bucket", "_sum", "_count"].contains(&suffix), "{line}"),
                    "counter" | "gauge" => assert_eq!(suffix, "", "{line}"),
                    other => panic!("{other}"),
                }
                of_family.push((suffix.to_owned(), labels, value));
                assert!(samples.insert(sample.to_owned(), value).is_none(), "{sample} comes twice");
            }
            if kind == "histogram" {
                check_histogram(name, &of_family);
            }
        }
        Metrics(samples)
    }

    fn of(&self, sample: &str) -> u64 {
        *self.0.get(sample).unwrap_or_else(|| panic!("no {sample} in {:?}", self.0)) as u64
    }

    fn outcome(&self, outcome: &str) -> u64 {
        self.of(&format!("lanner_requests_total{{outcome=\"{outcome}\"}}"))
    }

    /// Counters, which never decrease.
    fn counters(&self) -> impl Iterator<Item = (&String, f64)> {
        let counts =
            |name: &str| ["_total", "_bucket", "_sum", "_count"].iter().any(|end| name.ends_with(end));
        self.0
            .iter()
            .filter(move |(sample, _)| counts(&split(sample).0))
            .map(|(sample, value)| (sample, *value))
    }
}

fn is_name(name: &str) -> bool {
    name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        && name.starts_with(|first: char| first.is_ascii_lowercase())
}

/// Name and labels of a sample; values unescaped.
fn split(sample: &str) -> (String, Vec<(String, String)>) {
    let Some((name, rest)) = sample.split_once('{') else {
        assert!(is_name(sample), "{sample}");
        return (sample.into(), vec![]);
    };
    assert!(is_name(name), "{sample}");
    let (mut labels, mut rest) = (vec![], rest);
    loop {
        let (label, quoted) = rest.split_once("=\"").unwrap();
        assert!(is_name(label), "{sample}");
        let (mut value, mut chars) = (String::new(), quoted.char_indices());
        let end = loop {
            match chars.next().expect("a closing quote") {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next() {
                    Some((_, 'n')) => '\n',
                    Some((_, c @ ('"' | '\\'))) => c,
                    other => panic!("{other:?} is no escape in {sample}"),
                }),
                (_, c) => value.push(c),
            }
        };
        labels.push((label.to_owned(), value));
        match &quoted[end + 1..] {
            "}" => return (name.into(), labels),
            more => rest = more.strip_prefix(',').unwrap(),
        }
    }
}

type Sample = (String, Vec<(String, String)>, f64);

/// Asserts that buckets ascend in bound and count, and that the last, without a bound, has all.
fn check_histogram(name: &str, samples: &[Sample]) {
    let buckets: Vec<(f64, f64)> = samples
        .iter()
        .filter(|(suffix, ..)| suffix == "_bucket")
        .map(|(_, labels, count)| {
            assert_eq!((labels.len(), labels[0].0.as_str()), (1, "le"));
            let bound = if labels[0].1 == "+Inf" { f64::INFINITY } else { labels[0].1.parse().unwrap() };
            (bound, *count)
        })
        .collect();
    assert!(
        buckets.len() > 3 && buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1)
    );
    let value = |suffix: &str| samples.iter().find(|(of, ..)| of == suffix).unwrap().2;
    assert_eq!(buckets.last(), Some(&(f64::INFINITY, value("_count"))), "{name}");
    let least: f64 = buckets.windows(2).map(|pair| pair[0].0 * (pair[1].1 - pair[0].1)).sum();
    assert!(value("_sum") >= least - 1e-6, "{name}");
}

/// merlin without other influences.
fn merlin() -> TestServer {
    Setup::default().merlin()
}

/// Adds what a request used to the samples that count it.
fn add_usage(sums: &mut BTreeMap<String, u64>, usage: &Value) {
    let mut add = |name: String, of: &Value| *sums.entry(name).or_default() += of.as_u64().unwrap();
    add("lanner_prompt_tokens_total".into(), &usage["prompt_tokens"]);
    add("lanner_generated_tokens_total".into(), &usage["completion_tokens"]);
    add("lanner_cached_prompt_tokens_total".into(), &usage["prompt_tokens_details"]["cached_tokens"]);
    for (drafter, of) in usage["lanner"]["speculation"]["by_drafter"].as_object().unwrap() {
        for what in ["drafted", "accepted"] {
            let name = format!("lanner_speculation_{what}_tokens_total{{drafter=\"{drafter}\"}}");
            add(name, &of[what]);
        }
    }
    let cache = &usage["lanner"]["cache"];
    if let Some(source) = cache["source"].as_str() {
        add(format!("lanner_prefix_cache_hits_total{{source=\"{source}\"}}"), &json!(1));
    }
    if let Some(reason) = cache["miss"]["reason"].as_str() {
        add(format!("lanner_prefix_cache_misses_total{{reason=\"{reason}\"}}"), &json!(1));
    }
}

#[test]
fn metrics_match_the_usage_of_answers() {
    let server = merlin();
    let list = "one two three four five six seven eight nine ten ";
    let mut sums = BTreeMap::<String, u64>::new();
    let (started, mut answered) = (Instant::now(), 0);
    for (speculation, drafter) in
        [("off", None), ("ngram:5", Some("ngram")), ("self:2", Some("self")), ("mtp", Some("mtp"))]
    {
        let mut rounds = 0;
        while rounds < 2 {
            let body = json!({ "prompt": list.repeat((rounds + 1) * 8), "max_tokens": 40, "temperature": 0,
                               "ignore_eos": true, "speculation": speculation });
            let usage = server.complete(&body).json()["usage"].take();
            let by_drafter = usage["lanner"]["speculation"]["by_drafter"].as_object().unwrap();
            let drafters: Vec<&str> = by_drafter.keys().map(String::as_str).collect();
            answered += 1;
            // `self` drafts once the layers are measured, which happens beside requests.
            let drafts = drafter != Some("self") || !drafters.is_empty();
            assert!(!drafts || drafters == Vec::from_iter(drafter), "{drafters:?}");
            rounds += usize::from(drafts);
            assert!(started.elapsed() < Duration::from_secs(120), "`self` never drafts");
            add_usage(&mut sums, &usage);
        }
    }
    let metrics = Metrics::get(&server);
    for (sample, sum) in &sums {
        assert_eq!(metrics.of(sample), *sum, "{sample}");
    }
    assert!(sums["lanner_cached_prompt_tokens_total"] > 0 && sums.len() > 9, "{sums:?}");
    let of = |sample: &str| metrics.of(sample);
    let answers = metrics.outcome("answered");
    assert_eq!((answers, of("lanner_time_to_first_token_seconds_count")), (answered, answered));
    let between = of("lanner_generated_tokens_total") - answers;
    assert_eq!(of("lanner_inter_token_latency_seconds_count"), between);
    assert!(of("lanner_steps_total{kind=\"verify\"}") > 10 && of("lanner_steps_total{kind=\"decode\"}") > 39);
    assert!(of("lanner_steps_total{kind=\"prompt\"}") >= 8);
    assert!(of("lanner_memory_active_bytes") >= of("lanner_model_weight_bytes") / 2);
    assert!(of("lanner_model_weight_bytes") > 1_000_000);
    // Gauges of the cache are updated after a step.
    let cache = client::get(server.address, "/v1/cache").json();
    wait_until("the gauges show the cache", || {
        let metrics = Metrics::get(&server);
        ["bytes", "entries", "budget_bytes"]
            .iter()
            .all(|of| Some(metrics.of(&format!("lanner_prefix_cache_{of}"))) == cache[of].as_u64())
    });
    assert!(cache["bytes"].as_u64().unwrap() > 0);
}

#[test]
fn requests_are_counted_by_outcome() {
    let server =
        Setup { capacity: 1, delay: Duration::from_millis(5), ..Setup::default() }.script(|request, n| {
            match request.prompt[0] {
                b if b == u32::from(b'!') => engine::scripted::Step::Fail("broken".into()),
                _ if n < 400 => token(u32::from(b'x')),
                _ => token(crate::support::server::IM_END),
            }
        });
    const TEXT: &str = "Content-Type: text/plain\r\n";
    let ask = |body: Value| server.complete(&body).status;
    assert_eq!(ask(json!({ "prompt": "a", "max_tokens": 2 })), 200);
    assert_eq!(ask(json!({ "prompt": "a", "max_tokens": 2, "stream": true })), 200);
    let again = json!({ "prompt": "a", "max_tokens": 2, "seed": 1, "idempotency_key": "k" });
    assert_eq!((ask(again.clone()), ask(again)), (200, 200));
    assert_eq!(ask(json!({ "prompt": "a", "n": 99 })), 400);
    assert_eq!(ask(json!({ "prompt": "a", "model": "other" })), 404);
    assert_eq!(client::post_raw(server.address, "/v1/completions", b"{").status, 400);
    assert_eq!(client::request(server.address, "POST /v1/completions", TEXT, b"{}").status, 415);
    assert_eq!(ask(json!({ "prompt": "!" })), 500);
    assert_eq!(ask(json!({ "prompt": "!", "stream": true })), 200, "it fails later");
    assert_eq!(ask(json!({ "prompt": "a", "max_tokens": 400, "timeout": 0.02 })), 504);

    // One runs and is cancelled half-way; meanwhile the queue is full.
    let body = json!({ "prompt": "a", "max_tokens": 400, "stream": true }).to_string();
    let headers = "Content-Type: application/json\r\n";
    let stream = client::open(server.address, "POST /v1/completions", headers, body.as_bytes());
    wait_until("it runs", || Metrics::get(&server).of("lanner_running_sequences") == 1);
    assert_eq!(ask(json!({ "prompt": "a" })), 429);
    drop(stream);
    wait_until("it is cancelled", || Metrics::get(&server).outcome("cancelled") == 1);
    let metrics = Metrics::get(&server);
    let outcomes = ["answered", "replayed", "cancelled", "invalid", "full", "timeout", "failed"];
    assert_eq!(outcomes.map(|outcome| metrics.outcome(outcome)), [3, 1, 1, 4, 1, 1, 2]);
    wait_until("nothing is left of it", || {
        let metrics = Metrics::get(&server);
        ["running", "waiting"].iter().all(|stage| metrics.of(&format!("lanner_{stage}_sequences")) == 0)
    });
}

#[test]
fn metrics_counters_never_decrease() {
    let server = merlin();
    let folder = crate::support::checkpoint::folder("qwen3_5-hub");
    fs::write(folder.path().join("tokenizer.json"), crate::support::server::tokenizer_json()).unwrap();
    let names = [folder.path().to_str().unwrap(), "merlin"];
    let mut before = Metrics::get(&server);
    let mut asked = 0;
    for model in names.into_iter().cycle().take(4) {
        let body = json!({ "prompt": "a b a b a b", "max_tokens": 12, "temperature": 0, "ignore_eos": true,
                           "speculation": "ngram:3" });
        assert_eq!(server.complete(&body).status, 200);
        asked += 1;
        let loaded = client::post(server.address, "/v1/models/load", &json!({ "model": model }));
        assert_eq!(loaded.status, 200, "{}", loaded.body);
        let now = Metrics::get(&server);
        for (sample, value) in before.counters() {
            assert!(now.0[sample] >= value, "{sample} was {value} and is {}", now.0[sample]);
        }
        assert_eq!(now.of("lanner_generated_tokens_total"), 12 * asked, "none is forgotten");
        assert_eq!(now.outcome("answered"), asked);
        before = now;
    }
    // Memory of the former models is freed with them.
    wait_until("one cache is left", || {
        let cache = client::get(server.address, "/v1/cache").json();
        let metrics = Metrics::get(&server);
        Some(metrics.of("lanner_prefix_cache_bytes")) == cache["bytes"].as_u64()
            && Some(metrics.of("lanner_prefix_cache_budget_bytes")) == cache["budget_bytes"].as_u64()
    });
    server.host.stop();
    let stopped = Metrics::get(&server);
    assert_eq!(stopped.of("lanner_generated_tokens_total"), 12 * asked, "it answers without an engine");
    assert_eq!(stopped.of("lanner_prefix_cache_bytes"), 0);
}

#[test]
fn model_names_in_metrics_are_escaped() {
    let server = Setup { name: "a \"b\" \\ c\nd", ..Setup::default() }.says("x");
    let metrics = Metrics::get(&server);
    let info = metrics.0.keys().find(|sample| sample.starts_with("lanner_model_info")).unwrap();
    assert_eq!(split(info).1, [("model".to_owned(), "a \"b\" \\ c\nd".to_owned())]);
}

#[test]
fn metrics_require_the_api_key() {
    let server = Setup { api_key: Some("secret"), ..Setup::default() }.says("x");
    let get = |headers: &str| client::request(server.address, "GET /metrics", headers, b"").status;
    assert_eq!((get(""), get("Authorization: Bearer secret\r\n")), (401, 200));
    assert_eq!(client::get(server.address, "/health").status, 200);
}

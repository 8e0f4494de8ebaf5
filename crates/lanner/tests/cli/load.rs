//! The built-in model under 64 clients that disconnect, read slowly, and mix requests.
//!
//! Each client makes a few requests. With `LANNER_LOAD=600` they make requests for this number of
//! seconds, and limits are enforced that need an idle machine with eight processors and an
//! optimised program.

use std::{
    io::Read,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::support::{client, process::ServerProcess, wait::wait_until};

const STREAMS: u64 = 64;
/// Requests of each client without `LANNER_LOAD`.
const REQUESTS: usize = 2;
pub(crate) const WORDS: [&str; 8] = ["owl", "night", "the", "forest", "hunts", "mouse", "quiet", "feathers"];

impl ServerProcess {
    /// Tokens per second of `streams` equal streams, from the first to the last.
    fn race(&self, streams: u64, tokens: u64, speculation: &str) -> f64 {
        let start = Instant::now();
        thread::scope(|scope| {
            for _ in 0..streams {
                let body = json!({
                    "prompt": "The owl", "temperature": 0, "max_tokens": tokens, "ignore_eos": true, "stream": true,
                    "speculation": speculation,
                });
                scope.spawn(move || assert!(self.complete(&body).is_done()));
            }
        });
        (streams * tokens) as f64 / start.elapsed().as_secs_f64()
    }
}

/// Pseudorandom numbers, the same in every run (xorshift64*, Vigna 2016).
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % limit
    }
}

/// Measurements of the clients.
#[derive(Default)]
struct Outcomes {
    answered: usize,
    cancelled: usize,
    slow: usize,
    health: Vec<Duration>,
    /// Resident megabytes after each request.
    memory: Vec<f64>,
}

/// One client's next request: read, cancelled half-way, or read slowly.
fn ask(server: &ServerProcess, known: &(Value, String), random: &mut Random, outcomes: &Mutex<Outcomes>) {
    let kind = random.below(8);
    if kind == 0 {
        let text = server.complete(&known.0).json()["choices"][0]["text"].clone();
        assert_eq!(text, known.1, "the answer does not depend on other requests");
        outcomes.lock().unwrap().answered += 1;
        return;
    }
    let words = (0..3 + random.below(300)).map(|_| WORDS[random.below(8) as usize]).collect::<Vec<_>>();
    let priority = ["interactive", "normal", "background"][random.below(3) as usize];
    let max_tokens = if kind == 1 { 200 } else { 8 + random.below(100) };
    let body = json!({
        "prompt": words.join(" "), "seed": random.below(1 << 30), "max_tokens": max_tokens, "ignore_eos": true,
        "priority": priority, "stream": true,
    });
    if kind > 3 {
        let reply = server.complete(&body);
        assert!(
            reply.is_done() && reply.events().iter().all(|event| event["error"].is_null()),
            "{}",
            reply.body
        );
        outcomes.lock().unwrap().answered += 1;
        return;
    }
    let headers = "Content-Type: application/json\r\n";
    let mut stream =
        client::open(server.address, "POST /v1/completions", headers, body.to_string().as_bytes());
    if kind > 1 {
        let _ = stream.read_exact(&mut vec![0; random.below(5000) as usize]);
        outcomes.lock().unwrap().cancelled += 1;
        return;
    }
    let (mut all, mut some) = (vec![], [0; 4096]);
    while let Ok(read @ 1..) = stream.read(&mut some) {
        all.extend_from_slice(&some[..read]);
        thread::sleep(Duration::from_millis(20));
    }
    let end = String::from_utf8_lossy(&all[all.len().saturating_sub(40)..]).into_owned();
    assert!(end.contains("[DONE]"), "a slow reader got all of it: {end}");
    outcomes.lock().unwrap().slow += 1;
}

/// Runs all clients for `time`, or until each has made [`REQUESTS`].
fn soak(server: &ServerProcess, known: &(Value, String), time: Option<Duration>) -> Outcomes {
    let (outcomes, start) = (Mutex::new(Outcomes::default()), Instant::now());
    let go_on = |asked: usize| time.map_or(asked < REQUESTS, |time| start.elapsed() < time);
    thread::scope(|scope| {
        let clients = (0..STREAMS).map(|i| {
            let (outcomes, go_on) = (&outcomes, &go_on);
            scope.spawn(move || {
                let mut random = Random(i + 1);
                for _ in (0..).take_while(|asked| go_on(*asked)) {
                    ask(server, known, &mut random, outcomes);
                    outcomes.lock().unwrap().memory.extend(server.memory());
                }
            })
        });
        let clients: Vec<_> = clients.collect();
        loop {
            let asked = Instant::now();
            assert_eq!(client::get(server.address, "/health").status, 200);
            outcomes.lock().unwrap().health.push(asked.elapsed());
            if clients.iter().all(|client| client.is_finished()) {
                break;
            }
            thread::sleep(Duration::from_millis(100));
        }
    });
    outcomes.into_inner().unwrap()
}

pub(crate) fn median<T: Copy + PartialOrd>(values: &[T]) -> T {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).unwrap());
    sorted[sorted.len() / 2]
}

#[test]
fn sixty_four_clients_that_leave_or_read_slowly_change_no_answer() {
    let long: Option<u64> = std::env::var("LANNER_LOAD").ok().map(|seconds| seconds.parse().unwrap());
    let server = ServerProcess::start(&["--disk-cache", "off"]);
    let known = json!({ "prompt": "The owl is", "temperature": 0, "max_tokens": 24, "ignore_eos": true });
    let text = server.complete(&known).json()["choices"][0]["text"].as_str().unwrap().to_owned();
    let known = (known, text);

    let tokens = if long.is_some() { 256 } else { 32 };
    // The gain of batching is measured without drafts: a lone stream with drafts has wide steps of
    // its own, most of all in this text, which repeats itself.
    let [gain, _] = ["off", "auto"].map(|speculation| {
        let (one, all) = (server.race(1, tokens, speculation), server.race(STREAMS, tokens, speculation));
        let gain = all / one;
        eprintln!(
            "{speculation}: one stream {one:.0} tok/s, {STREAMS} streams {all:.0} tok/s: {gain:.1} times"
        );
        gain
    });

    let mut outcomes = soak(&server, &known, long.map(Duration::from_secs));
    eprintln!("{} answered, {} cancelled, {} slow", outcomes.answered, outcomes.cancelled, outcomes.slow);
    assert!(outcomes.answered > 0 && outcomes.cancelled > 0);
    wait_until("requests of disconnected clients end", || {
        client::get(server.address, "/health").json()["running"] == 0
    });
    assert_eq!(server.complete(&known.0).json()["choices"][0]["text"], known.1);

    outcomes.health.sort();
    let late = outcomes.health[outcomes.health.len() * 99 / 100];
    eprintln!("/health: median {:?}, 99th of 100 {late:?}", median(&outcomes.health));

    // Memory grows until every kind of request has been handled, and not after.
    let growth = (!outcomes.memory.is_empty()).then(|| {
        let [warm, late] = [0.4..0.7, 0.7..1.0].map(|part: std::ops::Range<f64>| {
            let at = |part: f64| (part * outcomes.memory.len() as f64) as usize;
            median(&outcomes.memory[at(part.start)..at(part.end)])
        });
        eprintln!("memory: {warm:.0} MB when warm, {late:.0} MB in the end");
        late / warm
    });
    assert!(growth.is_none_or(|growth| growth < if long.is_some() { 1.05 } else { 1.5 }), "{growth:?}");
    if long.is_some() {
        assert!(gain >= 4.0, "{gain}");
        assert!(median(&outcomes.health) < Duration::from_millis(50));
        assert!(late < Duration::from_millis(50), "{late:?}");
    }
}

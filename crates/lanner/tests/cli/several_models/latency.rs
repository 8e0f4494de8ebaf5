//! How long an interactive request waits for another model's background work.

use std::{
    thread,
    time::{Duration, Instant},
};

use engine::WhenFull;
use serde_json::json;

use super::{Zoo, pinned};

use crate::support::wait::Done;

/// Tokens in a step of a prompt.
const CHUNK: usize = 512;
const CHUNKS: u32 = 6;

fn timed(work: impl FnOnce()) -> Duration {
    let started = Instant::now();
    work();
    started.elapsed()
}

/// A prompt of another text for each `n`, of about as many chunks as [`CHUNKS`].
fn read(zoo: &Zoo, n: usize) {
    let prompt: String = (0..).map(|i| format!("{n} {i} ")).take(1000).collect();
    let length = zoo.post("/tokenize", &json!({ "model": "merlin", "content": prompt })).json();
    let tokens = length["count"].as_u64().unwrap() as usize;
    let chars = prompt.len() * CHUNK * CHUNKS as usize / tokens;
    assert!(chars < prompt.len(), "{tokens} tokens are too few");
    let body = json!({ "prompt": prompt[..chars], "max_tokens": 1, "priority": "background" });
    let reply = zoo.ask("merlin", body);
    assert_eq!(reply.status, 200, "{}", reply.body);
}

#[test]
fn interactive_request_waits_for_at_most_a_step_of_another_model() {
    let zoo = Zoo::with(pinned(), WhenFull::Wait, None, |mut setup| {
        setup.models.options.prefill_chunk = CHUNK;
        setup.merlin()
    });
    let ask = |n: usize| {
        let body = json!({ "prompt": format!("hi {n}"), "priority": "interactive" });
        assert_eq!(zoo.ask("a", body).status, 200);
    };
    (0..3).for_each(ask);
    let mut alone: Vec<Duration> = (3..10).map(|n| timed(|| ask(n))).collect();
    alone.sort();
    let step = timed(|| read(&zoo, 0)) / CHUNKS;
    let done = Done::default();
    let mut beside: Vec<Duration> = thread::scope(|scope| {
        let _ends = done.on_drop();
        let background = scope.spawn(|| {
            let reads = (1..).take_while(|_| !done.is_set());
            reads.for_each(|n| read(&zoo, n));
        });
        thread::sleep(step / 2);
        let times = (10..19).map(|n| {
            let time = timed(|| ask(n));
            thread::sleep(step * 3 / 2);
            time
        });
        let times = times.collect();
        assert!(!background.is_finished());
        times
    });
    beside.sort();
    let [middle, last] = [beside[beside.len() / 2], beside[beside.len() - 1]];
    eprintln!(
        "{} interactive answers beside a background prompt: median {middle:?}, longest {last:?}; alone {:?}; a step of \
         the other model {step:?}",
        beside.len(),
        alone[alone.len() / 2]
    );
    // An answer of three tokens takes four steps of its own; one that waited for a step of the
    // other model before each would take four of those.
    assert!(middle < step * 5 / 2 + alone[alone.len() / 2], "{middle:?}, where a step takes {step:?}");
}

//! Guarantees under a memory limit. A binary of its own with one test: the limit is that of the
//! process.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

#[path = "it/support/checkpoint.rs"]
mod checkpoint;

use std::{
    sync::mpsc::{self, Receiver},
    thread,
    time::{Duration, Instant},
};

use lanner_engine::*;

fn load(golden: &str, options: Options) -> Result<Engine, LoadError> {
    let folder = checkpoint::folder(golden);
    let options = Options { device: Some(Device::Cpu), max_batch: 4, prefill_chunk: 64, ..options };
    start(Checkpoint::Folder(folder.path().into()), options, |_| {})
}

fn request(seed: u32, tokens: u32) -> Request {
    let prompt = (0..tokens).map(|i| 3 + (i * seed + i / 7) % 240).collect();
    Request { ignore_eos: true, ..Request::new(prompt, 24) }
}

fn submit(engine: &Engine, request: Request) -> Result<(RequestHandle, Receiver<Event>), RequestError> {
    let (sender, events) = mpsc::channel();
    Ok((engine.submit(request, move |event| drop(sender.send(event)))?, events))
}

/// The tokens, or the error.
fn end((_handle, events): (RequestHandle, Receiver<Event>)) -> Result<Vec<u32>, RequestError> {
    let mut tokens = vec![];
    for event in events {
        match event {
            Event::Token { id, .. } => tokens.push(id),
            Event::Failed(error) => return Err(error),
            _ => {}
        }
    }
    Ok(tokens)
}

fn requests() -> Vec<Request> {
    (1..13).map(|i| request(i, 40 + 60 * (i % 5))).collect()
}

fn answers(engine: &Engine) -> Vec<Vec<u32>> {
    let running: Vec<_> = requests().into_iter().map(|r| submit(engine, r).expect("fits")).collect();
    running.into_iter().map(|running| end(running).expect("an answer")).collect()
}

/// The limit for this many bytes of state.
fn limit(memory: &Memory, state: usize) -> Option<usize> {
    Some(memory.weights + memory.step + state)
}

// Long: stages of one comparison.
fn check(golden: &str) {
    let free = load(golden, Options { prefix_cache_bytes: 0, ..Options::default() }).expect("loads");
    assert_eq!(free.info().memory.limit, None);
    let expected = answers(&free);
    free.stop();

    let plenty = Options { memory_limit: Some(1 << 30), prefix_cache_bytes: 0, ..Options::default() };
    let measured = load(golden, plenty).expect("loads");
    let memory = measured.info().memory.clone();
    let held = mlx::active_memory();
    mlx::reset_peak_memory();
    end(submit(&measured, request(91, 300)).expect("fits")).expect("an answer");
    let taken = mlx::peak_memory() - held;
    eprintln!("{golden}: {taken} {memory:?} {}", memory.state(324));
    assert!(taken <= memory.step + memory.state(324), "{golden}: {taken} bytes, and {memory:?}");
    assert!(memory.step + memory.state(324) < 4 * taken, "{golden}: {taken} bytes, and {memory:?}");
    measured.stop();

    // Memory for two and a half of the longest requests.
    let tight = memory.state(304) * 5 / 2;
    let options =
        |when_full| Options { memory_limit: limit(&memory, tight), when_full, ..Options::default() };
    let engine = load(golden, options(WhenFull::Wait)).expect("loads");
    let room = engine.info().memory.room().expect("a limit");
    assert_eq!(engine.info().memory.prefix_cache, room / 2, "{golden}: what the cache can get");
    mlx::reset_peak_memory();
    assert_eq!(answers(&engine), expected, "{golden}: with a limit");
    assert_eq!(answers(&engine), expected, "{golden}: once more, from the cache");
    let (peak, allowed) = (mlx::peak_memory(), engine.info().memory.limit.expect("a limit"));
    eprintln!("{golden}: peak {peak} of {allowed}");
    assert!(peak <= allowed, "{golden}: {peak} bytes, where the limit is {allowed}");
    let stats = engine.cache_stats().expect("runs");
    assert!(stats.bytes > 0 && stats.bytes <= room, "{golden}: {stats:?}");

    let most = engine.info().memory.most_tokens(engine.info().context_length);
    let error = submit(&engine, Request { max_tokens: most, ..request(1, 100) }).err().expect("never fits");
    let RequestError::NeverFits { prompt: 100, room: left, needs, .. } = &error else { panic!("{error}") };
    assert!(
        *left == room && *needs > room && error.to_string().contains(&format!("at most {most} tokens")),
        "{error}"
    );
    let just = Request { max_tokens: most - 100, ..request(1, 100) };
    assert_eq!(end(submit(&engine, just).expect("fits")).expect("an answer").len(), most - 100);

    // A step for which there is no memory.
    let prompt = request(77, 200);
    let alone = end(submit(&engine, prompt.clone()).expect("fits")).expect("an answer");
    engine.clear_cache().expect("runs");
    mlx::set_memory_limit(100).expect("set");
    let failed: Vec<_> = (0..3).map(|_| submit(&engine, prompt.clone()).expect("fits")).collect();
    for failed in failed {
        let error = end(failed).expect_err("no memory");
        assert!(matches!(error, RequestError::OutOfMemory(_)), "{error}");
    }
    mlx::set_memory_limit(engine.info().memory.limit.expect("a limit")).expect("set");
    assert_eq!(
        end(submit(&engine, prompt).expect("fits")).expect("an answer"),
        alone,
        "{golden}: afterwards"
    );
    assert_eq!(answers(&engine), expected, "{golden}: afterwards");
    engine.stop();
    drop(engine);

    refuses(&load(golden, options(WhenFull::Refuse)).expect("loads"), golden);
    let error = load(golden, Options { memory_limit: limit(&memory, 0), ..Options::default() })
        .err()
        .expect("too little");
    assert!(
        error.to_string().contains("the weights take") && error.to_string().contains("the limit is"),
        "{error}"
    );
    mlx::set_memory_limit(64 << 30).expect("set");
}

/// Some of many concurrent requests are refused, and a retry succeeds.
fn refuses(engine: &Engine, golden: &str) {
    let long = || Request { max_tokens: 200, ..request(5, 100) };
    let (started, first) = mpsc::channel();
    let sink = move |event| drop(started.send(event));
    let _handle = engine.submit(long(), sink).expect("fits");
    assert!(matches!(first.recv().expect("runs"), Event::Token { .. }));
    let mut refused = 0;
    let others: Vec<_> = (0..4).map(|_| submit(engine, long()).expect("fits")).collect();
    for other in others {
        match end(other) {
            Ok(tokens) => assert_eq!(tokens.len(), 200),
            Err(RequestError::MemoryFull { needs, free }) if needs > free => refused += 1,
            Err(error) => panic!("{golden}: {error}"),
        }
    }
    assert!(refused >= 1, "{golden}: no request was refused");
    let start = Instant::now();
    while end(submit(engine, long()).expect("fits")).is_err() {
        assert!(start.elapsed() < Duration::from_secs(120), "{golden}: no memory after two minutes");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Keys and values, a recurrence, windows, latents.
#[test]
fn memory_limit_is_never_exceeded_and_answers_are_unchanged() {
    for golden in ["qwen3-a", "qwen3_5-text-sharded", "gemma3_text-a", "deepseek_v3-a"] {
        check(golden);
    }
}

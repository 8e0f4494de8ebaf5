//! Engines that share a memory limit. A binary of its own with one test: the limit is that of the
//! process.

// Tests fail by panicking.
#![allow(clippy::unwrap_used)]

#[path = "it/support/checkpoint.rs"]
mod checkpoint;

use std::sync::mpsc::{self, Receiver};

use lanner_engine::*;

const GOLDEN: &str = "qwen3-a";

fn load(options: &Options) -> Result<Engine, LoadError> {
    let folder = checkpoint::folder(GOLDEN);
    start(Checkpoint::Folder(folder.path().into()), options.clone(), |_| {})
}

fn submit(engine: &Engine, i: u32) -> (RequestHandle, Receiver<Event>) {
    let prompt = (0..40 + i).map(|t| 3 + (t * 7 + i) % 240).collect();
    let request = Request { ignore_eos: true, ..Request::new(prompt, 400) };
    let (sender, events) = mpsc::channel();
    (engine.submit(request, move |event| drop(sender.send(event))).expect("fits"), events)
}

fn answer((_handle, events): (RequestHandle, Receiver<Event>)) -> Vec<u32> {
    let token = |event| match event {
        Event::Token { id, .. } => Some(id),
        Event::Failed(error) => panic!("{error}"),
        _ => None,
    };
    events.into_iter().filter_map(token).collect()
}

#[test]
fn load_beyond_the_memory_limit_is_refused_and_running_requests_continue() {
    let options = |limit| Options {
        device: Some(Device::Cpu),
        max_batch: 4,
        prefill_chunk: 64,
        memory_limit: Some(limit),
        metrics: Default::default(),
        ..Options::default()
    };
    let free = load(&options(1 << 30)).expect("loads");
    let memory = free.info().memory.clone();
    let expected: Vec<_> = (0..3).map(|i| answer(submit(&free, i))).collect();
    free.stop();
    drop(free);

    // Memory for one model and three answers.
    let tight = options(memory.weights + memory.step + 3 * memory.state(450));
    let engine = load(&tight).expect("loads");
    let running: Vec<_> = (0..3).map(|i| submit(&engine, i)).collect();
    // Steps of this many tokens need more memory than is left.
    match load(&Options { prefill_chunk: 4096, ..tight.clone() }).err() {
        Some(error @ LoadError::MemoryFull { .. }) => {
            assert!(error.to_string().contains("raise the memory limit"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let answers: Vec<_> = running.into_iter().map(answer).collect();
    assert_eq!(answers, expected, "running requests are unchanged");
    engine.stop();
    drop(engine);

    // Memory for both, after evicting the cache of the first.
    let wide = options(3 * (memory.weights + memory.step) + 20 * memory.state(450));
    let first = load(&wide).expect("loads");
    (0..3).for_each(|i| assert_eq!(answer(submit(&first, i)), expected[i as usize]));
    let running: Vec<_> = (0..3).map(|i| submit(&first, i)).collect();
    let second = load(&wide).expect("loads");
    let others: Vec<_> = (0..3).map(|i| submit(&second, i)).collect();
    assert_eq!(running.into_iter().map(answer).collect::<Vec<_>>(), expected);
    assert_eq!(others.into_iter().map(answer).collect::<Vec<_>>(), expected);
    let account = &wide.metrics.account;
    assert_eq!(account.bytes(MemoryClass::Loading), 0);
    first.stop();
    assert_eq!(account.bytes(MemoryClass::Weights), second.info().memory.weights, "its memory is free");
    second.stop();
    assert_eq!(account.promised(), 0);
    mlx::set_memory_limit(64 << 30).expect("set");
}

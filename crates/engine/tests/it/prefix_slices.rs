//! Restoring and storing state does not delay other requests: it is copied in slices between steps.

use std::{
    fs,
    path::Path,
    sync::mpsc,
    time::{Duration, Instant},
};

use lanner_engine::*;
use serde_json::{Value, json};

use crate::support::{
    checkpoint,
    requests::{Random, answer, request, submit},
};

/// A small model with large keys and values: 98 kB per token.
fn wide() -> tempfile::TempDir {
    let recorded = checkpoint::recorded().join("qwen3-a");
    let read = |name: &str| -> Value {
        serde_json::from_str(&fs::read_to_string(recorded.join(name)).expect("a file")).expect("JSON")
    };
    let (mut golden, mut config) = (read("golden.json"), read("config.json"));
    for (key, value) in [("num_attention_heads", 32), ("num_key_value_heads", 32), ("head_dim", 128)] {
        config[key] = json!(value);
    }
    for (name, spec) in golden["tensors"].as_object_mut().expect("tensors") {
        let shape = match name.rsplit('.').nth(1) {
            Some("q_proj" | "k_proj" | "v_proj") => json!([32 * 128, 64]),
            Some("o_proj") => json!([64, 32 * 128]),
            Some("q_norm" | "k_norm") => json!([128]),
            _ => continue,
        };
        spec["shape"] = shape;
    }
    let folder = tempfile::tempdir().expect("a folder");
    checkpoint::write(&golden, folder.path());
    fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
    folder
}

fn load(model: &Path, disk: &Path) -> Engine {
    let disk_cache = Some(DiskCache { folder: disk.into(), bytes: 1 << 30, bits: None });
    let options =
        Options { device: Some(Device::Cpu), speculate: Speculate::Off, disk_cache, ..Options::default() };
    start(Checkpoint::Folder(model.into()), options, |_| {}).expect("loads")
}

/// Measurements of a request that runs beside a decoding one.
struct Concurrent {
    usage: Usage,
    /// Tokens of the other request before this one's first, and the longest time between two of
    /// them.
    others: usize,
    longest: Duration,
}

fn run_concurrently(engine: &Engine, prompt: &[u32]) -> Concurrent {
    let (sender, events) = mpsc::channel();
    let submit = |id: usize, request: Request| {
        let sender = sender.clone();
        engine.submit(request, move |event| drop(sender.send((id, Instant::now(), event)))).expect("valid")
    };
    let other = submit(0, request(vec![5, 6, 7], 4000));
    let token = |id, event: &Event| id == 0 && matches!(event, Event::Token { .. });
    // Wait until it decodes.
    while !events.recv().is_ok_and(|(id, _, event)| token(id, &event)) {}
    let _own = submit(1, request(prompt.to_vec(), 2));
    let (mut others, mut first, mut longest) = (0, false, Duration::ZERO);
    let mut last: Option<Instant> = None;
    for (id, at, event) in &events {
        if token(id, &event) {
            others += usize::from(!first);
            longest = last.replace(at).map_or(longest, |last| longest.max(at - last));
        }
        match event {
            Event::Token { .. } if id == 1 => first = true,
            Event::Finished { usage, .. } if id == 1 => {
                other.cancel();
                return Concurrent { usage, others, longest };
            }
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    panic!("no final event")
}

#[test]
fn other_requests_continue_while_long_prefix_is_restored() {
    let (model, disk) = (wide(), tempfile::tempdir().expect("a folder"));
    let prompt = Random(1).tokens(1300);
    // 127 MB at 32 MiB between two steps: four slices to build arrays, and three to restore.
    answer(submit(&load(model.path(), disk.path()), request(prompt.clone(), 2)));
    let engine = load(model.path(), disk.path());
    for (source, least) in [(CacheSource::Disk, 6), (CacheSource::Ram, 3)] {
        let concurrent = run_concurrently(&engine, &prompt);
        let report = (concurrent.usage.cached_tokens, concurrent.usage.cache.source);
        assert_eq!(report, (1299, Some(source)));
        assert!(
            concurrent.others >= least,
            "{source:?}: {} tokens of the other meanwhile",
            concurrent.others
        );
    }
}

/// The longest stall of another request, by source of the prefix.
#[test]
#[ignore = "measures time"]
fn stall_beside_a_long_prefix_is_measured() {
    let (model, disk) = (wide(), tempfile::tempdir().expect("a folder"));
    let prompt = Random(1).tokens(4000);
    let cold = load(model.path(), disk.path());
    println!("computed: {:?}", run_concurrently(&cold, &prompt).longest);
    drop(cold);
    let engine = load(model.path(), disk.path());
    for _ in 0..3 {
        let concurrent = run_concurrently(&engine, &prompt);
        println!(
            "{:?}: {:?}, {} tokens meanwhile",
            concurrent.usage.cache.source, concurrent.longest, concurrent.others
        );
    }
}

//! Restoring and storing state and measuring step costs do not delay other requests: they are done
//! in slices between steps.

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
    /// Times between tokens of the other request: before this one's first token, during its answer,
    /// and for [`AFTER`] tokens after it, while its state is stored.
    gaps: [Vec<Duration>; 3],
}

const AFTER: usize = 30;

impl Concurrent {
    fn longest(&self) -> [Duration; 3] {
        self.gaps.each_ref().map(|gaps| gaps.iter().max().copied().unwrap_or_default())
    }
}

fn run_concurrently(engine: &Engine, own: Request) -> Concurrent {
    let (sender, events) = mpsc::channel();
    let submit = |id: usize, request: Request| {
        let sender = sender.clone();
        engine.submit(request, move |event| drop(sender.send((id, Instant::now(), event)))).expect("valid")
    };
    let plain = Some(Speculate::Off);
    let _other = submit(0, Request { speculation: plain, ..request(vec![5, 6, 7], 4000) });
    let token = |id, event: &Event| id == 0 && matches!(event, Event::Token { .. });
    // Wait until it decodes.
    let mut last = events.iter().find(|(id, _, event)| token(*id, event)).expect("a token").1;
    let _own = submit(1, own);
    let (mut phase, mut gaps, mut ended) = (0, [vec![], vec![], vec![]], None);
    for (id, at, event) in &events {
        if token(id, &event) {
            gaps[phase].push(at - last);
            last = at;
        }
        match event {
            Event::Token { .. } if id == 1 => phase = 1,
            Event::Finished { usage, .. } if id == 1 => (phase, ended) = (2, Some(usage)),
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
        if let Some(usage) = ended.take_if(|_| gaps[2].len() == AFTER) {
            return Concurrent { usage, gaps };
        }
    }
    panic!("no final event")
}

#[test]
fn other_requests_continue_while_long_prefix_is_restored() {
    let (model, disk) = (wide(), tempfile::tempdir().expect("a folder"));
    let prompt = Random(1).tokens(1300);
    // 127 MB at 32 MiB between two steps: four slices to build arrays, and as many to restore.
    answer(submit(&load(model.path(), disk.path()), request(prompt.clone(), 2)));
    let engine = load(model.path(), disk.path());
    for (source, least) in [(CacheSource::Disk, 7), (CacheSource::Ram, 4)] {
        let concurrent = run_concurrently(&engine, request(prompt.clone(), 2));
        let report = (concurrent.usage.cached_tokens, concurrent.usage.cache.source);
        assert_eq!(report, (1299, Some(source)));
        let others = concurrent.gaps[0].len();
        assert!(others >= least, "{source:?}: {others} tokens of the other meanwhile");
    }
}

/// The longest stall that work beside a stream may add to it.
const MAX_STALL: Duration = Duration::from_millis(50);
/// Other programs also delay a stream, but not at the same work every time.
const ATTEMPTS: usize = 12;

/// Fails unless the stream's longest pause with some work exceeds the one without by less than
/// [`MAX_STALL`] in one of several attempts, which measure both.
fn check_stall(what: &str, attempt: impl Fn() -> (Duration, Duration)) {
    let mut added = vec![];
    for _ in 0..ATTEMPTS {
        let (with, without) = attempt();
        println!("{what}: {with:?}, {without:?} without");
        if with < without + MAX_STALL {
            return;
        }
        added.push(with - without);
    }
    panic!("{what} stops a stream for {added:?}");
}

#[test]
fn long_prefix_from_disk_or_memory_and_its_copy_stall_no_stream() {
    let (model, disk) = (wide(), tempfile::tempdir().expect("a folder"));
    let prompt = Random(1).tokens(4000);
    let beside = request(prompt, 20);
    answer(submit(&load(model.path(), disk.path()), beside.clone()));
    let attempt = |engine: &Engine, source| {
        let concurrent = run_concurrently(engine, beside.clone());
        let usage = &concurrent.usage;
        assert_eq!((usage.cached_tokens, usage.cache.source), (3999, Some(source)));
        // Each step of the answer reads all of the state, too.
        let [restoring, answering, storing] = concurrent.longest();
        (restoring.max(storing), answering)
    };
    check_stall("393 MB from the disk", || attempt(&load(model.path(), disk.path()), CacheSource::Disk));
    let engine = load(model.path(), disk.path());
    answer(submit(&engine, beside.clone()));
    check_stall("393 MB from memory", || attempt(&engine, CacheSource::Ram));
}

#[test]
fn first_measurements_stall_no_stream() {
    let text = Random(2).tokens(120);
    for drafter in [Speculate::Auto, Speculate::Fixed { drafter: "self".into(), depth: None }] {
        check_stall(&format!("measuring for {drafter:?}"), || {
            // A server whose default is not to draft measures nothing at load.
            let options =
                Options { device: Some(Device::Cpu), speculate: Speculate::Off, ..Options::default() };
            let merlin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/merlin");
            let engine = start(Checkpoint::Folder(merlin), options, |_| {}).expect("loads");
            engine.set_calibration_text(text.clone());
            let beside = Request { speculation: Some(drafter.clone()), ..request(text[..9].to_vec(), 40) };
            assert!(engine.step_times().expect("runs").steps.is_empty());
            let [with, without] = [0, 1].map(|_| {
                let longest = run_concurrently(&engine, beside.clone()).longest();
                longest.into_iter().max().expect("three")
            });
            assert!(!engine.step_times().expect("runs").steps.is_empty());
            (with, without)
        });
    }
}

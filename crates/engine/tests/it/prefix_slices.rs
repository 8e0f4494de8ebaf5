//! State that is restored, resumed or stored does not hold up others' tokens: it is copied in slices between steps.

use std::{
    fs,
    path::Path,
    sync::mpsc,
    time::{Duration, Instant},
};

use engine::*;
use serde_json::{Value, json};

use crate::support::{
    checkpoint,
    requests::{Random, answer, request, submit},
};

/// A small model whose keys and values are large: 98 kB a token.
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

/// What became of a request beside one that decodes all the time.
struct Beside {
    usage: Usage,
    /// Tokens of the other before this one's first, and the longest time between two of them until its end.
    others: usize,
    longest: Duration,
}

fn beside(engine: &Engine, prompt: &[u32]) -> Beside {
    let (sender, events) = mpsc::channel();
    let submit = |who: usize, request: Request| {
        let sender = sender.clone();
        engine.submit(request, move |event| drop(sender.send((who, Instant::now(), event)))).expect("valid")
    };
    let other = submit(0, request(vec![5, 6, 7], 4000));
    let token = |who, event: &Event| who == 0 && matches!(event, Event::Token { .. });
    // It runs.
    while !events.recv().is_ok_and(|(who, _, event)| token(who, &event)) {}
    let _own = submit(1, request(prompt.to_vec(), 2));
    let (mut others, mut first, mut longest) = (0, false, Duration::ZERO);
    let mut last: Option<Instant> = None;
    for (who, at, event) in &events {
        if token(who, &event) {
            others += usize::from(!first);
            longest = last.replace(at).map_or(longest, |last| longest.max(at - last));
        }
        match event {
            Event::Token { .. } if who == 1 => first = true,
            Event::Finished { usage, .. } if who == 1 => {
                other.cancel();
                return Beside { usage, others, longest };
            }
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    panic!("no end")
}

#[test]
fn others_go_on_while_a_long_prefix_is_restored_and_resumed() {
    let (model, disk) = (wide(), tempfile::tempdir().expect("a folder"));
    let prompt = Random(1).tokens(1300);
    // 127 MB: at 32 MiB between two steps four of them to make arrays of what was read, and three to resume.
    answer(submit(&load(model.path(), disk.path()), request(prompt.clone(), 2)));
    let engine = load(model.path(), disk.path());
    for (source, least) in [(CacheSource::Disk, 6), (CacheSource::Ram, 3)] {
        let beside = beside(&engine, &prompt);
        let report = (beside.usage.cached_tokens, beside.usage.cache.source);
        assert_eq!(report, (1299, Some(source)));
        assert!(beside.others >= least, "{source:?}: {} tokens of the other meanwhile", beside.others);
    }
}

/// The longest time without a token for others, per way to come by a long prefix.
#[test]
#[ignore = "measures time"]
fn longest_stall_beside_a_long_prefix() {
    let (model, disk) = (wide(), tempfile::tempdir().expect("a folder"));
    let prompt = Random(1).tokens(4000);
    let cold = load(model.path(), disk.path());
    println!("computed: {:?}", beside(&cold, &prompt).longest);
    drop(cold);
    let engine = load(model.path(), disk.path());
    for _ in 0..3 {
        let beside = beside(&engine, &prompt);
        println!("{:?}: {:?}, {} tokens meanwhile", beside.usage.cache.source, beside.longest, beside.others);
    }
}

//! Several models under one memory limit: which leave, and that no request notices.

use std::{fs, path::Path, thread};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{FILES, check_error, copy_of};
use crate::support::{
    client::{self, Reply},
    fake_hub::FakeHub,
    process::ServerProcess,
};

const MEGABYTE: f64 = 1e6;
/// More than all models take.
const WIDE: usize = 1 << 30;

/// A server of its own process under a memory limit, whose models are the built-in one, copies of
/// it, and small ones.
struct Limited {
    server: ServerProcess,
    folders: TempDir,
}

impl Limited {
    fn new(limit: usize, more: &[&str]) -> Limited {
        let (folders, hub) = (tempfile::tempdir().unwrap(), FakeHub::tiny());
        let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/merlin");
        let mut args: Vec<String> =
            ["--memory-limit", &limit.to_string(), "--prefill-chunk", "64", "--max-batch", "4"]
                .map(String::from)
                .into();
        args.extend(more.iter().map(|arg| (*arg).to_owned()));
        for name in ["first", "second", "a", "b"] {
            let folder = folders.path().join(name);
            match name.len() {
                1 => copy_of(&hub, &folder),
                _ => {
                    fs::create_dir(&folder).unwrap();
                    FILES
                        .iter()
                        .for_each(|file| _ = fs::copy(built_in.join(file), folder.join(file)).unwrap());
                }
            }
            args.extend(["--alias".into(), format!("{name}={}", folder.display())]);
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Limited { server: ServerProcess::start(&args), folders }
    }

    fn described(&self, model: &str) -> Value {
        client::get(self.server.address, &format!("/v1/models/{model}")).json()
    }

    fn state(&self, model: &str) -> String {
        self.described(model)["state"].as_str().unwrap_or("none").to_owned()
    }

    fn states(&self, models: &[&str]) -> Vec<String> {
        models.iter().map(|model| self.state(model)).collect()
    }

    /// Bytes that a loaded model holds: weights and a step.
    fn held(&self, model: &str) -> usize {
        let memory = &self.described(model)["memory"];
        let bytes = |key: &str| memory[key].as_u64().unwrap() as usize;
        bytes("weight_bytes") + bytes("step_bytes")
    }

    /// Bytes promised to all models.
    fn promised(&self) -> usize {
        let promised = self.described("a")["memory"]["promised"].clone();
        let classes = ["weights", "step", "sequences", "drafters", "loading"];
        classes.map(|class| promised[class].as_u64().unwrap() as usize).iter().sum()
    }

    fn pin(&self, model: &str) {
        let body = json!({ "model": self.folders.path().join(model), "replace": false, "pin": true });
        let reply = client::post(self.server.address, "/v1/models/load", &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
    }

    fn ask(&self, model: &str, n: usize) -> Reply {
        let body = json!({ "model": model, "prompt": format!("Owl {n} sees"), "max_tokens": 12, "temperature": 0,
            "ignore_eos": true });
        client::post(self.server.address, "/v1/completions", &body)
    }

    fn text(&self, model: &str, n: usize) -> Value {
        let reply = self.ask(model, n);
        assert_eq!(reply.status, 200, "{model}: {}", reply.body);
        reply.json()["choices"][0]["text"].clone()
    }
}

/// Bytes of a copy of the built-in model, of a small one, and of loading a copy at most.
fn sizes() -> [usize; 3] {
    let wide = Limited::new(WIDE, &[]);
    wide.text("a", 0);
    let (copy, small) = (wide.held("merlin"), wide.held("a"));
    // The error says what loading takes.
    let narrow = Limited::new(copy + copy * 3 / 4, &["--when-full", "refuse"]);
    let refused = narrow.ask("first", 0);
    check_error(&refused, 503, "out_of_memory", "cannot load");
    assert!(refused.head.contains("retry-after: "), "{}", refused.head);
    let megabytes = refused.body.split("up to ").nth(1).and_then(|rest| rest.split(" MB").next());
    let megabytes: f64 = megabytes.unwrap_or_else(|| panic!("{}", refused.body)).parse().unwrap();
    narrow.text("merlin", 0);
    [copy, small, (megabytes * MEGABYTE) as usize]
}

#[test]
fn models_that_fit_one_at_a_time_answer_alternating_requests() {
    const THREADS: usize = 4;
    let [_, small, loading] = sizes();
    let models = ["merlin", "first", "second"];
    let wide = Limited::new(WIDE, &[]);
    let prompts = 0..2 * THREADS;
    let expected: Vec<Vec<Value>> =
        models.iter().map(|model| prompts.clone().map(|n| wide.text(model, n)).collect()).collect();
    let small_text = wide.text("a", 0);
    drop(wide);

    // Beside the pinned small model there is room to load one copy, but not beside another.
    let limit = loading + 3 * small;
    let server = Limited::new(limit, &["--no-pin"]);
    server.pin("a");
    for (at, model) in models.iter().enumerate().cycle().take(7) {
        assert_eq!(server.text(model, at), expected[at][at], "{model}");
        let loaded = models.iter().filter(|other| server.state(other) == "loaded").count();
        assert_eq!((loaded, &*server.state(model), &*server.state("a")), (1, "loaded", "loaded"));
        assert!(server.promised() <= limit, "{} of {limit} bytes with {model}", server.promised());
    }
    thread::scope(|scope| {
        for n in prompts {
            let (expected, server) = (&expected, &server);
            scope.spawn(move || {
                for turn in 0..4 {
                    let model = (n + turn) % models.len();
                    assert_eq!(server.text(models[model], n), expected[model][n], "{}", models[model]);
                }
            });
        }
    });
    assert_eq!((server.text("a", 0), &*server.state("a")), (small_text, "loaded"), "it is pinned");
}

#[test]
fn model_used_longest_ago_leaves_under_the_memory_limit() {
    let [copy, small, loading] = sizes();
    // Beside the small models there is room for two copies: a third one needs half a copy more,
    // less a small model.
    let server = Limited::new(copy + loading + copy / 2 + 2 * small, &["--no-pin"]);
    let models = ["merlin", "first", "second"];
    server.pin("a");
    ["merlin", "first", "merlin", "second"].iter().for_each(|model| _ = server.text(model, 0));
    assert_eq!(server.states(&models), ["loaded", "on_disk", "loaded"]);
    server.text("first", 0);
    assert_eq!(server.states(&models), ["on_disk", "loaded", "loaded"]);
    server.text("b", 0);
    ["first", "second", "merlin"].iter().for_each(|model| _ = server.text(model, 0));
    // The small one left too, since it was used before the copy that made room.
    assert_eq!(server.states(&["a", "b"]), ["loaded", "on_disk"]);
    assert_eq!(server.states(&models), ["loaded", "on_disk", "loaded"]);
}

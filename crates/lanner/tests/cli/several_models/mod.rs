//! Several models in one server: loaded by name, kept, evicted, unloaded, and used at once.

mod latency;
mod memory;
mod room;

use std::{fs, io::Read, net::TcpStream, path::Path, thread, time::Duration};

use engine::WhenFull;
use lanner::config::RegistryConfig;
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use crate::support::{
    client::{self, Reply},
    fake_hub::FakeHub,
    server::{Setup, TestServer, models},
    wait::{Done, wait_until},
};

const FILES: [&str; 4] = ["config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"];

/// A server over the built-in or a scripted model, a cache, and folders with the aliases a, b, c.
struct Zoo {
    folders: TempDir,
    hub: FakeHub,
    server: TestServer,
}

impl Zoo {
    fn new(registry: RegistryConfig) -> Zoo {
        Zoo::with(registry, WhenFull::Wait, None, |setup| setup.merlin())
    }

    fn with(
        registry: RegistryConfig,
        when_full: WhenFull,
        memory_limit: Option<usize>,
        start: impl FnOnce(Setup) -> TestServer,
    ) -> Zoo {
        let (folders, hub) = (tempdir().unwrap(), FakeHub::tiny());
        let mut models = models(hub.config(&folders.path().join("cache")));
        models.options.when_full = when_full;
        models.options.memory_limit = memory_limit;
        let mut registry = registry;
        for name in ["a", "b", "c", "broken"] {
            let folder = folders.path().join(name);
            copy_of(&hub, &folder);
            registry.aliases.insert(name.into(), folder.display().to_string());
        }
        fs::write(folders.path().join("broken/model.safetensors"), b"rubbish").unwrap();
        let server = start(Setup { models, registry, ..Setup::default() });
        Zoo { folders, hub, server }
    }

    fn post(&self, path: &str, body: &Value) -> Reply {
        client::post(self.server.address, path, body)
    }

    fn pull(&self) {
        assert_eq!(self.post("/v1/models/pull", &json!({ "model": "org/tiny" })).status, 200);
    }

    /// A short answer of a model.
    fn ask(&self, model: &str, more: Value) -> Reply {
        let mut body =
            json!({ "model": model, "prompt": "hi", "max_tokens": 3, "temperature": 0, "ignore_eos": true });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.post("/v1/completions", &body)
    }

    fn answers(&self, model: &str) {
        let reply = self.ask(model, json!({}));
        assert_eq!(reply.status, 200, "{model}: {}", reply.body);
    }

    /// A model as `GET /v1/models/{id}` describes it.
    fn described(&self, model: &str) -> Value {
        client::get(self.server.address, &format!("/v1/models/{model}")).json()
    }

    fn state(&self, model: &str) -> String {
        self.described(model)["state"].as_str().unwrap_or("none").to_owned()
    }

    fn states(&self, models: &[&str]) -> Vec<String> {
        models.iter().map(|model| self.state(model)).collect()
    }

    fn wait_for(&self, model: &str, state: &str) {
        wait_until(&format!("{model} is {state}"), || self.state(model) == state);
    }

    /// A running answer, of which some has arrived.
    fn stream(&self, model: &str, tokens: usize) -> TcpStream {
        let body = json!({ "model": model, "prompt": "hi", "stream": true, "max_tokens": tokens, "temperature": 0,
                           "ignore_eos": true });
        let headers = "Content-Type: application/json\r\n";
        let body = body.to_string();
        let mut stream = client::open(self.server.address, "POST /v1/completions", headers, body.as_bytes());
        stream.read_exact(&mut [0; 600]).unwrap();
        stream
    }
}

impl Drop for Zoo {
    fn drop(&mut self) {
        // The program does the same at exit.
        self.server.host.stop();
    }
}

fn copy_of(hub: &FakeHub, folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    FILES.iter().for_each(|file| fs::write(folder.join(file), hub.file(file)).unwrap());
}

fn pinned() -> RegistryConfig {
    RegistryConfig { pin: true, load_by_name: true, ..RegistryConfig::default() }
}

fn check_error(reply: &Reply, status: u16, code: &str, message: &str) {
    let error = &reply.json()["error"];
    assert_eq!((reply.status, error["code"].as_str()), (status, Some(code)), "{}", reply.body);
    assert!(error["message"].as_str().unwrap().contains(message), "{}", reply.body);
}

#[test]
fn request_loads_the_model_that_it_names_beside_the_default_one() {
    let zoo = Zoo::new(pinned());
    check_error(&zoo.ask("org/tiny", json!({})), 404, "model_not_found", "`org/tiny` does not exist");
    zoo.pull();
    assert_eq!(zoo.states(&["merlin", "org/tiny", "default"]), ["loaded", "on_disk", "loaded"]);
    let reply = zoo.ask("org/tiny", json!({}));
    assert_eq!((reply.status, &reply.json()["model"]), (200, &json!("org/tiny")), "{}", reply.body);
    assert_eq!(zoo.states(&["merlin", "org/tiny"]), ["loaded", "loaded"]);
    // Any spelling is the same model.
    for name in ["org/tiny@main", "org/tiny:latest"] {
        assert_eq!(zoo.ask(name, json!({})).json()["model"], "org/tiny", "{name}");
    }
    let chat = zoo.server.chat(&json!({ "max_tokens": 2 })).json();
    assert_eq!(chat["model"], "merlin", "requests without a name keep their model");

    let list = client::get(zoo.server.address, "/v1/models").json();
    let listed: Vec<(&str, &str, bool)> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| {
            let text = |key: &str| model[key].as_str().unwrap();
            (text("id"), text("state"), model["default"].as_bool().unwrap())
        })
        .collect();
    assert_eq!(listed[..2], [("merlin", "loaded", true), ("org/tiny", "loaded", false)], "{list}");
    assert!(listed.contains(&("a", "on_disk", false)), "{list}");
    let running = client::get(zoo.server.address, "/api/ps").json();
    let names: Vec<&Value> =
        running["models"].as_array().unwrap().iter().map(|model| &model["name"]).collect();
    assert_eq!(names, ["merlin", "org/tiny"]);
}

#[test]
fn every_route_answers_with_the_model_that_it_names() {
    let zoo = Zoo::new(pinned());
    let tokens = |model: &str| {
        let reply = zoo.post("/tokenize", &json!({ "model": model, "content": "The owl" })).json();
        reply["count"].as_u64().unwrap()
    };
    assert_eq!(tokens("a"), 7, "its tokenizer has bytes only");
    assert!(tokens("merlin") < 7);
    let messages = json!([{ "role": "user", "content": "hi" }]);
    let body = json!({ "model": "b", "messages": messages, "max_tokens": 2, "stream": false });
    for path in ["/v1/chat/completions", "/v1/messages", "/api/chat"] {
        let reply = zoo.post(path, &body);
        assert_eq!((reply.status, &reply.json()["model"]), (200, &json!("b")), "{path}: {}", reply.body);
    }
    let embeddings = zoo.post("/v1/embeddings", &json!({ "model": "c", "input": "hi" })).json();
    assert_eq!(embeddings["model"], "c", "{embeddings}");
    assert_eq!(zoo.states(&["a", "b", "c"]), ["loaded"; 3]);
    let show = |model: &str| zoo.post("/api/show", &json!({ "model": model })).json();
    let loaded = show("a");
    zoo.post("/v1/models/unload", &json!({ "model": "a" }));
    let on_disk = show("a");
    for field in ["template", "capabilities", "modelfile"] {
        assert_eq!(loaded[field], on_disk[field], "{field}");
    }
    assert_eq!(zoo.state("a"), "on_disk", "it was described without being loaded");
}

#[test]
fn name_of_a_request_is_never_a_path() {
    let zoo = Zoo::new(pinned());
    let folder = zoo.folders.path().join("a");
    for name in [folder.to_str().unwrap(), "/etc/passwd", "../a", "models/merlin", "", "gpt-4"] {
        check_error(&zoo.ask(name, json!({})), 404, "model_not_found", "does not exist");
    }
    zoo.answers("a");
}

#[test]
fn concurrent_first_requests_share_one_load() {
    let zoo = Zoo::new(pinned());
    thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| zoo.answers("a"));
        }
    });
    assert_eq!(zoo.server.host.registry().count(), 2);
    assert_eq!(zoo.server.host.engines().count(), 2, "no second engine was started");
}

#[test]
fn failed_load_is_one_error_and_leaves_the_others() {
    let zoo = Zoo::new(pinned());
    zoo.answers("a");
    for _ in 0..2 {
        check_error(&zoo.ask("broken", json!({})), 400, "model_not_loadable", "model.safetensors");
    }
    assert_eq!(zoo.states(&["merlin", "a", "broken"]), ["loaded", "loaded", "on_disk"]);
    zoo.answers("a");
    zoo.answers("merlin");
    // It can be loaded once it is whole.
    copy_of(&zoo.hub, &zoo.folders.path().join("broken"));
    zoo.answers("broken");
}

#[test]
fn unloaded_model_finishes_its_requests() {
    let zoo = Zoo::new(pinned());
    zoo.answers("a");
    let expected = zoo.ask("a", json!({ "max_tokens": 400 })).json()["choices"][0]["text"].clone();
    thread::scope(|scope| {
        let running: Vec<_> =
            (0..4).map(|_| scope.spawn(|| zoo.ask("a", json!({ "max_tokens": 400 })))).collect();
        thread::sleep(Duration::from_millis(50));
        let unloaded = zoo.post("/v1/models/unload", &json!({ "model": "a" }));
        assert_eq!(
            (unloaded.status, &unloaded.json()["state"]),
            (200, &json!("on_disk")),
            "{}",
            unloaded.body
        );
        for reply in running {
            let reply = reply.join().unwrap();
            assert_eq!(
                (reply.status, &reply.json()["choices"][0]["text"]),
                (200, &expected),
                "{}",
                reply.body
            );
        }
    });
    let again = zoo.post("/v1/models/unload", &json!({ "model": "nothing" }));
    check_error(&again, 404, "model_not_found", "not loaded");
}

#[test]
fn idempotency_key_outlives_its_model_and_is_its_own() {
    let zoo = Zoo::new(pinned());
    let ask = |model: &str| {
        let reply = zoo.ask(model, json!({ "max_tokens": 8, "idempotency_key": "k" }));
        assert_eq!(reply.status, 200, "{}", reply.body);
        let replayed = reply.head.contains("idempotent-replayed: true");
        (replayed, reply.json()["id"].clone(), reply.json()["model"].clone())
    };
    let (replayed, first, _) = ask("a");
    assert!(!replayed);
    zoo.post("/v1/models/unload", &json!({ "model": "a" }));
    assert_eq!(ask("a"), (true, first.clone(), json!("a")), "the model was loaded again for it");
    // The same key of another model, and of another model under the same name, is free.
    let (replayed, other, model) = ask("b");
    assert!(!replayed && other != first && model == "b");
    let load = json!({ "model": zoo.folders.path().join("c") });
    assert!(!ask("default").0);
    assert_eq!(zoo.post("/v1/models/load", &load).status, 200);
    assert!(!ask("default").0, "the default model is another one");
    assert!(ask("b").0 && ask("a").0);
}

#[test]
fn server_without_admin_routes_loads_nothing_for_requests() {
    let zoo = Zoo::with(pinned(), WhenFull::Wait, None, |setup| Setup { admin: false, ..setup }.merlin());
    check_error(&zoo.ask("a", json!({})), 404, "model_not_found", "loads none for requests");
    assert_eq!(zoo.post("/v1/models/unload", &json!({ "model": "merlin" })).status, 403);
    zoo.answers("merlin");
}

/// A request of the load test, by its number: greedy or with a seed, over two models.
fn numbered(i: usize) -> Value {
    let temperature = if i % 4 < 2 { 0.0 } else { 0.9 };
    let (model, priority) = (["merlin", "a"][i % 2], ["interactive", "background"][i / 2 % 2]);
    json!({
        "model": model, "prompt": format!("The owl {}", i / 4), "max_tokens": 24, "seed": i, "priority": priority,
        "temperature": temperature, "ignore_eos": true,
    })
}

#[test]
fn streams_over_two_models_answer_as_alone_while_one_is_swapped_out() {
    const STREAMS: usize = 32;
    let zoo = Zoo::new(RegistryConfig { pin: false, ..pinned() });
    let text = |i: usize| {
        let reply = zoo.post("/v1/completions", &numbered(i));
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.json()["choices"][0]["text"].clone()
    };
    let expected: Vec<Value> = (0..STREAMS).map(text).collect();
    let done = Done::default();
    thread::scope(|scope| {
        let ends = done.on_drop();
        let swaps = scope.spawn(|| {
            let mut swaps = 0;
            while !done.is_set() {
                let model = ["a", "merlin"][swaps % 2];
                // 404 if it has not been loaded again yet.
                zoo.post("/v1/models/unload", &json!({ "model": model }));
                swaps += 1;
                thread::sleep(Duration::from_millis(30));
            }
            swaps
        });
        for round in 0..3 {
            let streams: Vec<_> = (0..STREAMS).map(|i| scope.spawn(move || (i, text(i)))).collect();
            for stream in streams {
                let (i, answer) = stream.join().unwrap();
                assert_eq!(answer, expected[i], "request {i} of round {round}");
            }
        }
        drop(ends);
        assert!(swaps.join().unwrap() >= 3);
    });
}

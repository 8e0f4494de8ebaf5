//! `POST /v1/models/pull` and `POST /v1/models/load`: downloads, and swaps of the served model.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use lanner::hub::HubConfig;
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use crate::support::{
    client::{self, Reply},
    fake_hub::{FakeHub, Fault},
    server::{Setup, TestServer, models, token},
    wait::{Done, wait_until},
};

const WEIGHTS: &str = "model.safetensors";

/// A server whose scripted model generates until the client disconnects, a cache and a hub.
struct World {
    cache: TempDir,
    hub: FakeHub,
    server: TestServer,
}

impl World {
    fn new(hub: FakeHub) -> World {
        let cache = tempdir().unwrap();
        let setup = Setup {
            delay: Duration::from_millis(2),
            models: models(hub.config(cache.path())),
            ..Setup::default()
        };
        let server = setup.script(|_, _| token(65));
        World { cache, hub, server }
    }

    fn post(&self, path: &str, body: &Value) -> Reply {
        client::post(self.server.address, path, body)
    }

    fn load(&self, model: impl AsRef<Path>) -> Reply {
        self.post("/v1/models/load", &json!({ "model": model.as_ref() }))
    }

    fn served(&self) -> Value {
        client::get(self.server.address, "/v1/models").json()["data"][0]["id"].take()
    }

    fn complete(&self, body: &Value) -> Reply {
        self.server.complete(body)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // The program does the same at exit.
        self.server.host.stop();
    }
}

fn check_error(reply: &Reply, status: u16, code: &str, message: &str) {
    let error = &reply.json()["error"];
    assert_eq!((reply.status, error["code"].as_str()), (status, Some(code)), "{}", reply.body);
    assert!(error["message"].as_str().unwrap().contains(message), "{}", reply.body);
}

fn lines(reply: &Reply) -> Vec<Value> {
    reply.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn pull_route_answers_once_the_model_is_downloaded() {
    let world = World::new(FakeHub::tiny());
    let reply = world.post("/v1/models/pull", &json!({ "model": "org/tiny" }));
    assert_eq!(reply.status, 200, "{}", reply.body);
    let snapshot = world.cache.path().join("models--org--tiny/snapshots").join(world.hub.commit());
    let expected =
        json!({ "status": "done", "model": "org/tiny", "revision": world.hub.commit(), "path": snapshot });
    assert_eq!(reply.json(), expected);
    assert!(snapshot.join(WEIGHTS).exists());
}

#[test]
fn streamed_pull_reports_progress() {
    let world = World::new(FakeHub::tiny().fails(WEIGHTS, [Fault::Status(500, "")]));
    let reply = world.post("/v1/models/pull", &json!({ "model": "org/tiny@main", "stream": true }));
    assert!(reply.head.to_lowercase().contains("content-type: application/x-ndjson"), "{}", reply.head);
    let lines = lines(&reply);
    let total = world.hub.file(WEIGHTS).len();
    let whole = json!({ "status": "downloading", "file": WEIGHTS, "completed": total, "total": total });
    assert!(lines.contains(&whole), "{lines:?}");
    assert!(lines.iter().any(|line| line["status"] == "starting" && line["files"] == 4), "{lines:?}");
    assert!(lines.iter().any(|line| line["status"] == "waiting"), "{lines:?}");
    assert_eq!(lines.last().unwrap()["status"], "done");
    assert_eq!(lines.iter().filter(|line| line["status"] == "done").count(), 1);

    let reply = world.post("/v1/models/pull", &json!({ "model": "org/none", "stream": true }));
    let last = lines_last(&reply);
    assert_eq!((&last["status"], &last["error"]["code"]), (&json!("error"), &json!("model_not_found")));
}

fn lines_last(reply: &Reply) -> Value {
    lines(reply).pop().unwrap()
}

#[test]
fn failed_pull_returns_a_status_per_cause() {
    let check = |hub: FakeHub, model: &str, status, code, message| {
        let world = World::new(hub);
        check_error(&world.post("/v1/models/pull", &json!({ "model": model })), status, code, message);
    };
    let gated = [Fault::Status(403, "X-Error-Code: GatedRepo\r\n")];
    check(FakeHub::tiny(), "org/none", 404, "model_not_found", "there is no model org/none");
    check(FakeHub::tiny().fails("/api/", gated), "org/tiny", 403, "hub_access_denied", "accept its licence");
    check(
        FakeHub::tiny().fails(WEIGHTS, [Fault::Garble]),
        "org/tiny",
        502,
        "hub_error",
        "not what the hub promised",
    );
    let busy = [Fault::Status(429, "Retry-After: 999\r\n")];
    check(FakeHub::tiny().fails("/api/", busy), "org/tiny", 429, "hub_rate_limited", "asks to wait 999 s");
    check(FakeHub::new(vec![("x.gguf", vec![1])]), "org/tiny", 400, "model_not_usable", "only GGUF");

    let world = World::new(FakeHub::tiny());
    let reply = world.post("/v1/models/pull", &json!({ "model": "../etc" }));
    assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!("model")));
    assert_eq!(world.post("/v1/models/pull", &json!({})).status, 400);
    assert_eq!(client::get(world.server.address, "/v1/models/pull").status, 405);
}

#[test]
fn client_disconnect_cancels_its_pull() {
    for stream in [false, true] {
        let world = World::new(FakeHub::tiny().fails(WEIGHTS, [Fault::Slow(Duration::from_millis(5))]));
        let blobs = world.cache.path().join("models--org--tiny/blobs");
        let partial = blobs.join(format!("{}.incomplete", world.hub.etag(WEIGHTS)));
        let length = || fs::metadata(&partial).map_or(0, |metadata| metadata.len());
        let body = json!({ "model": "org/tiny", "stream": stream });
        let headers = "Content-Type: application/json\r\n";
        let body_text = body.to_string();
        let pull = client::open(world.server.address, "POST /v1/models/pull", headers, body_text.as_bytes());
        wait_until("weights come", || length() > 10_000);

        check_error(
            &world.post("/v1/models/pull", &body),
            409,
            "busy",
            "org/tiny is being downloaded already",
        );
        drop(pull);
        wait_until("the pull has ended", || {
            let before = length();
            thread::sleep(Duration::from_millis(50));
            before == length()
        });
        assert!(length() > 10_000 && length() < world.hub.file(WEIGHTS).len() as u64);
        wait_until("it can be pulled again", || {
            world.post("/v1/models/pull", &json!({ "model": "org/tiny" })).status == 200
        });
        assert!(world.hub.requests(WEIGHTS).last().unwrap().range.is_some(), "it was resumed");
    }
}

/// A hub that accepts every request and answers none.
fn silent_hub() -> (std::net::TcpListener, HubConfig, TempDir) {
    let (cache, listener) = (tempdir().unwrap(), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let config = HubConfig { endpoint, ..FakeHub::tiny().config(cache.path()) };
    (listener, config, cache)
}

#[test]
fn fifth_concurrent_pull_is_refused_until_a_client_disconnects() {
    let (silent, config, _cache) = silent_hub();
    let server = Setup { models: models(config), ..Setup::default() }.says("x");
    let headers = "Content-Type: application/json\r\n";
    let pull = |name: &str, stream: bool| {
        let body = json!({ "model": format!("org/{name}"), "stream": stream }).to_string();
        client::open(server.address, "POST /v1/models/pull", headers, body.as_bytes())
    };
    let pulls = [pull("a", false), pull("b", true), pull("c", false), pull("d", true)];
    let asked: Vec<_> = (0..4).map(|_| silent.accept().unwrap().0).collect();
    let reply = client::post(server.address, "/v1/models/pull", &json!({ "model": "org/e" }));
    check_error(&reply, 429, "too_many_pulls", "4 models are being downloaded");
    assert!(reply.head.contains("retry-after"), "{}", reply.head);
    drop(pulls);
    // The hub ends, and the pulls stop.
    thread::sleep(Duration::from_millis(50));
    drop(asked);
    silent.set_nonblocking(true).unwrap();
    wait_until("another pull is accepted", || {
        let another = pull("f", false);
        let taken = (0..50).any(|_| {
            thread::sleep(Duration::from_millis(2));
            silent.accept().is_ok()
        });
        drop(another);
        taken
    });
}

#[test]
fn loaded_model_is_served_under_its_names() {
    let world = World::new(FakeHub::tiny());
    check_error(&world.load("org/tiny"), 404, "model_not_found", "org/tiny has not been downloaded");
    world.post("/v1/models/pull", &json!({ "model": "org/tiny" }));
    let main = "org/tiny@main";
    let reply = world.load(main);
    assert_eq!((reply.status, &reply.json()["id"]), (200, &json!("org/tiny")), "{}", reply.body);
    assert!(reply.json()["load_seconds"].as_f64().unwrap() > 0.0);
    assert_eq!(
        (world.served(), world.server.health()["model"].take()),
        (json!("org/tiny"), json!("org/tiny"))
    );
    for name in ["org/tiny", main, "default"] {
        let reply =
            world.complete(&json!({ "model": name, "prompt": "hi", "max_tokens": 2, "ignore_eos": true }));
        assert_eq!((reply.status, &reply.json()["model"]), (200, &json!("org/tiny")), "{}", reply.body);
    }
    let reply = world.complete(&json!({ "model": "owl", "prompt": "hi" }));
    check_error(&reply, 404, "model_not_found", "the model `owl` does not exist");
    assert_eq!(world.load("merlin").json()["id"], "merlin");
    let reply = world.server.chat(&json!({ "max_tokens": 3 }));
    assert_eq!((reply.status, &reply.json()["model"]), (200, &json!("merlin")));
}

#[test]
fn failed_load_keeps_the_served_model() {
    let world = World::new(FakeHub::tiny());
    world.post("/v1/models/pull", &json!({ "model": "org/tiny" }));
    let snapshot = world.cache.path().join("models--org--tiny/snapshots").join(world.hub.commit());
    let broken = tempdir().unwrap();
    for name in ["config.json", "tokenizer.json"] {
        fs::copy(snapshot.join(name), broken.path().join(name)).unwrap();
    }
    let weights = fs::read(snapshot.join(WEIGHTS)).unwrap();
    let wreck = |bytes: &[u8]| fs::write(broken.path().join(WEIGHTS), bytes).unwrap();
    wreck(&weights[..weights.len() / 2]);
    check_error(&world.load(broken.path()), 400, "model_not_loadable", "download it again");
    wreck(b"rubbish");
    check_error(&world.load(broken.path()), 400, "model_not_loadable", "model.safetensors");
    fs::write(broken.path().join("config.json"), br#"{"model_type": "none"}"#).unwrap();
    check_error(&world.load(broken.path()), 400, "model_not_loadable", "model_type `none` is not supported");
    check_error(&world.load("/no/such"), 404, "model_not_found", "there is no model folder /no/such");
    check_error(&world.load("qwen9"), 404, "model_not_found", "there is no model `qwen9`");

    let blob = world.cache.path().join("models--org--tiny/blobs").join(world.hub.etag(WEIGHTS));
    fs::remove_file(blob).unwrap();
    check_error(&world.load("org/tiny"), 404, "model_not_found", "org/tiny is not complete");
    assert_eq!(world.served(), "owl");
    let reply = world.complete(&json!({ "model": "owl", "prompt": "a", "max_tokens": 2 }));
    assert_eq!(reply.json()["choices"][0]["text"], "AA");
}

#[cfg(unix)]
#[test]
fn load_of_a_folder_with_a_pipe_fails_and_the_next_load_works() {
    let world = World::new(FakeHub::tiny());
    world.post("/v1/models/pull", &json!({ "model": "org/tiny" }));
    let good = copy_of(&world, "good");
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", WEIGHTS] {
        let folder = copy_of(&world, &format!("piped-{name}"));
        let _ = fs::remove_file(folder.join(name));
        assert!(std::process::Command::new("mkfifo").arg(folder.join(name)).status().unwrap().success());
        let reply = world.load(&folder);
        assert_eq!(reply.status, 400, "{name}: {}", reply.body);
        assert!(reply.body.contains("not a regular file"), "{name}: {}", reply.body);
    }
    assert_eq!(world.load(&good).status, 200);
}

#[test]
fn load_of_a_hostile_template_fails_and_changes_nothing() {
    let world = World::new(FakeHub::tiny());
    world.post("/v1/models/pull", &json!({ "model": "org/tiny" }));
    let served = world.served();
    let folder = copy_of(&world, "hostile");
    let source = format!("{{{{ {}1 }}}}", "1 + ".repeat(100_000));
    fs::write(folder.join("chat_template.jinja"), source).unwrap();
    let reply = world.load(&folder);
    assert_eq!(reply.status, 400, "{}", reply.body);
    assert!(reply.body.contains("chat template"), "{}", reply.body);
    assert_eq!(world.served(), served);
}

#[test]
fn request_during_a_load_finishes_on_its_first_model() {
    let world = World::new(FakeHub::tiny());
    let body = json!({ "prompt": "a", "stream": true, "max_tokens": 900 }).to_string();
    let headers = "Content-Type: application/json\r\n";
    let mut stream = client::open(world.server.address, "POST /v1/completions", headers, body.as_bytes());
    let mut begun = [0; 1000];
    stream.read_exact(&mut begun).unwrap();
    assert_eq!(world.load("merlin").status, 200);
    assert_eq!(world.served(), "merlin");
    assert_eq!(world.server.health()["running"], 1, "the old model still answers");

    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    let text = String::from_utf8_lossy(&begun).into_owned() + &rest;
    assert_eq!(text.matches(r#""text":"A""#).count(), 900);
    assert!(text.contains("[DONE]") && !text.contains("merlin"));
    assert_eq!(world.server.health()["running"], 0);
}

/// The small checkpoint of the engine's tests under another name.
fn copy_of(world: &World, name: &str) -> PathBuf {
    let snapshot = world.cache.path().join("models--org--tiny/snapshots").join(world.hub.commit());
    let folder = world.cache.path().join(name);
    fs::create_dir_all(&folder).unwrap();
    for file in ["config.json", "tokenizer.json", "chat_template.jinja", WEIGHTS] {
        fs::copy(snapshot.join(file), folder.join(file)).unwrap();
    }
    folder
}

/// Two engines compute in one process during a load: neither may disturb the other.
#[test]
fn model_swaps_under_load_change_no_answer() {
    let world = World::new(FakeHub::tiny());
    world.post("/v1/models/pull", &json!({ "model": "org/tiny" }));
    let folders = ["a", "b"].map(|name| copy_of(&world, name));
    assert_eq!(world.load(&folders[0]).status, 200);
    let address = world.server.address;
    let expected = answer(address, "hi", 40);
    let (done, answers) = (Done::default(), AtomicUsize::new(0));
    thread::scope(|scope| {
        let _ends = done.on_drop();
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.is_set() {
                    assert_eq!(answer(address, "hi", 40), expected);
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut swaps: Vec<Reply> = Vec::new();
        // Enough of both to overlap; the bound catches a server that no longer answers.
        while swaps.len() < 20 || answers.load(Ordering::Relaxed) < 12 && swaps.len() < 2000 {
            swaps.push(world.load(&folders[(swaps.len() + 1) % 2]));
        }
        assert!(swaps.iter().all(|reply| reply.status == 200), "{swaps:?}");
    });
    assert!(answers.load(Ordering::Relaxed) >= 12);
}

fn answer(address: SocketAddr, prompt: &str, tokens: usize) -> String {
    let request = json!({ "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": true });
    let reply = client::post(address, "/v1/completions", &request);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()["choices"][0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn concurrent_load_is_refused() {
    let world = World::new(FakeHub::tiny());
    let replies: Vec<u16> = thread::scope(|scope| {
        let loads: Vec<_> = (0..6).map(|_| scope.spawn(|| world.load("merlin").status)).collect();
        loads.into_iter().map(|load| load.join().unwrap()).collect()
    });
    assert!(replies.contains(&200) && replies.contains(&409), "{replies:?}");
    assert!(replies.iter().all(|status| [200, 409].contains(status)), "{replies:?}");
    assert_eq!(world.served(), "merlin");
}

#[test]
fn admin_routes_require_api_key_json_and_own_host() {
    let server = Setup { api_key: Some("secret"), ..Setup::default() }.says("x");
    for path in ["/v1/models/pull", "/v1/models/load"] {
        let body = br#"{"model": "merlin"}"#;
        let ask =
            |headers: &str| client::request(server.address, &format!("POST {path}"), headers, body).status;
        let key = "Authorization: Bearer secret\r\n";
        assert_eq!(ask("Content-Type: application/json\r\n"), 401);
        assert_eq!(ask(&format!("{key}Content-Type: text/plain\r\n")), 415);
        assert_eq!(ask(&format!("{key}Content-Type: application/json\r\nHost: evil.example\r\n")), 403);
    }
    assert_eq!(server.chat(&json!({})).status, 401);
}

#[test]
fn pull_does_not_delay_completions() {
    let world = World::new(FakeHub::tiny().fails(WEIGHTS, [Fault::Slow(Duration::from_millis(1))]));
    let body = json!({ "model": "org/tiny", "stream": true }).to_string();
    let headers = "Content-Type: application/json\r\n";
    let pull = client::open(world.server.address, "POST /v1/models/pull", headers, body.as_bytes());
    let mut lines = BufReader::new(pull).lines().map(Result::unwrap);
    lines.find(|line| line.contains("downloading")).unwrap();
    let reply = world.complete(&json!({ "prompt": "a", "max_tokens": 3 }));
    assert_eq!(reply.json()["choices"][0]["text"], "AAA");
    assert!(lines.any(|line| line.contains(r#""status":"done""#)));
}

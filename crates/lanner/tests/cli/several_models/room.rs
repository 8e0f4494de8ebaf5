//! Which models stay loaded: expiry, limits of models and of memory, and waiting for room.

use std::{io::Read, net::TcpStream, thread, time::Duration};

use engine::WhenFull;
use lanner::{config::RegistryConfig, keep_alive::KeepAlive};
use serde_json::{Value, json};

use super::{Zoo, check_error, pinned};
use crate::support::{
    client,
    server::{Gate, Setup, token},
    wait::wait_until,
};

#[test]
fn model_expires_after_its_time_and_is_loaded_again() {
    let keep_alive = KeepAlive::For(Duration::from_millis(100));
    let zoo = Zoo::new(RegistryConfig { keep_alive, ..pinned() });
    zoo.answers("a");
    zoo.wait_for("a", "on_disk");
    assert_eq!(zoo.state("merlin"), "loaded", "it is pinned");
    // A request sets the time of its model.
    zoo.ask("a", json!({ "ttl": 3600 }));
    zoo.ask("b", json!({ "ttl": -1 }));
    zoo.ask("c", json!({ "ttl": 0 }));
    zoo.wait_for("c", "on_disk");
    thread::sleep(Duration::from_millis(300));
    assert_eq!(zoo.states(&["a", "b"]), ["loaded", "loaded"]);
    let now = zoo.described("merlin")["created"].as_u64().unwrap();
    let expires = zoo.described("a")["expires_at"].as_u64().unwrap();
    assert!((now + 3500..now + 3700).contains(&expires), "{now} {expires}");
    assert_eq!(zoo.described("b")["expires_at"], Value::Null);
    let ps = client::get(zoo.server.address, "/api/ps").json();
    assert!(ps["models"].as_array().unwrap().iter().all(|model| model["expires_at"].is_string()), "{ps}");
    assert_eq!(zoo.ask("a", json!({ "ttl": "soon" })).status, 400);
}

#[test]
fn keep_alive_of_ollamas_requests_loads_and_unloads() {
    let zoo = Zoo::new(pinned());
    let generate = |body: Value| zoo.post("/api/generate", &body);
    assert_eq!(generate(json!({ "model": "a", "keep_alive": "5m" })).json()["done_reason"], "load");
    assert_eq!(zoo.state("a"), "loaded");
    let unloaded = generate(json!({ "model": "a", "keep_alive": 0 })).json();
    assert_eq!((&unloaded["done_reason"], &unloaded["response"]), (&json!("unload"), &json!("")));
    assert_eq!(zoo.state("a"), "on_disk");
    assert_eq!(generate(json!({ "model": "a", "keep_alive": 0 })).json()["done_reason"], "unload");
    let body = json!({ "model": "a", "prompt": "hi", "stream": false, "keep_alive": 0, "options": { "num_predict": 2 } });
    assert_eq!(generate(body).json()["done"], true);
    zoo.wait_for("a", "on_disk");
    let refused = generate(json!({ "model": "merlin", "keep_alive": 0 }));
    assert_eq!(refused.status, 400, "{}", refused.body);
    assert!(refused.body.contains("pinned"), "{}", refused.body);
}

#[test]
fn model_used_longest_ago_leaves_for_another() {
    let zoo = Zoo::new(RegistryConfig { max_loaded: Some(3), ..pinned() });
    ["a", "b", "a", "c"].iter().for_each(|model| zoo.answers(model));
    assert_eq!(zoo.states(&["merlin", "a", "b", "c"]), ["loaded", "loaded", "on_disk", "loaded"]);
    zoo.answers("b");
    assert_eq!(zoo.states(&["merlin", "a", "b", "c"]), ["loaded", "on_disk", "loaded", "loaded"]);
    // A pinned one stays; then the others have one place.
    let load = json!({ "model": zoo.folders.path().join("c"), "replace": false, "pin": true });
    let pinned = zoo.post("/v1/models/load", &load).json();
    assert_eq!((&pinned["pinned"], &pinned["default"]), (&json!(true), &json!(false)), "{pinned}");
    zoo.answers("a");
    assert_eq!(zoo.states(&["merlin", "a", "b", "c"]), ["loaded", "loaded", "on_disk", "loaded"]);
}

#[test]
fn default_model_that_is_not_pinned_leaves_and_comes_back() {
    let zoo = Zoo::new(RegistryConfig { max_loaded: Some(1), pin: false, ..pinned() });
    zoo.answers("a");
    assert_eq!(zoo.states(&["merlin", "a"]), ["on_disk", "loaded"]);
    let health = zoo.server.health();
    assert_eq!((&health["status"], &health["model"]), (&json!("ok"), &json!("merlin")));
    let reply = zoo.server.chat(&json!({ "max_tokens": 2 }));
    assert_eq!((reply.status, &reply.json()["model"]), (200, &json!("merlin")), "{}", reply.body);
    assert_eq!(zoo.states(&["merlin", "a"]), ["loaded", "on_disk"]);
    zoo.post("/v1/models/unload", &json!({ "model": "default" }));
    assert_eq!(zoo.state("merlin"), "on_disk");
    assert_eq!(client::get(zoo.server.address, "/metrics").status, 200);
    assert_eq!(zoo.server.health()["engine"]["activity"], "idle");
    zoo.answers("default");
    assert_eq!(zoo.described("merlin")["default"], true);
}

/// A server whose scripted model, one of at most one, generates until the gate is open.
fn busy(when_full: WhenFull) -> (Zoo, TcpStream, Gate) {
    let registry = RegistryConfig { max_loaded: Some(1), pin: false, ..pinned() };
    let gate = Gate::default();
    let held = gate.clone();
    let slow = |setup: Setup| {
        setup.script(move |_, n| {
            if n == 100 {
                held.wait();
            }
            token(65)
        })
    };
    let zoo = Zoo::with(registry, when_full, None, slow);
    let stream = zoo.stream("owl", 900);
    (zoo, stream, gate)
}

#[test]
fn load_without_room_is_refused_while_all_models_are_in_use() {
    let (zoo, mut stream, gate) = busy(WhenFull::Refuse);
    let refused = zoo.ask("a", json!({}));
    check_error(&refused, 503, "too_many_models", "--max-loaded-models");
    assert!(refused.head.contains("retry-after: "), "{}", refused.head);
    gate.open();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("[DONE]"), "the running request was not disturbed");
    zoo.answers("a");
}

#[test]
fn load_waits_for_room() {
    let (zoo, stream, gate) = busy(WhenFull::Wait);
    let late = zoo.ask("a", json!({ "timeout": 0.1 }));
    check_error(&late, 504, "timeout", "");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| zoo.ask("a", json!({})));
        thread::sleep(Duration::from_millis(200));
        assert!(!waiting.is_finished(), "the model is in use");
        drop(stream);
        gate.open();
        let reply = waiting.join().unwrap();
        assert_eq!(reply.status, 200, "{}", reply.body);
    });
    assert_eq!(zoo.state("a"), "loaded");
}

#[test]
fn prefix_caches_without_a_limit_share_the_bytes_of_one() {
    const BYTES: usize = 2 << 20;
    let zoo = Zoo::with(pinned(), WhenFull::Wait, None, |mut setup| {
        setup.models.options.prefix_cache_bytes = BYTES;
        setup.merlin()
    });
    let cached = || client::get(zoo.server.address, "/v1/cache").json()["bytes"].as_u64().unwrap() as usize;
    let fill = |model: &str| {
        for i in 0..12 {
            let reply = zoo.ask(model, json!({ "prompt": format!("{i} {}", "owl ".repeat(60)) }));
            assert_eq!(reply.status, 200, "{}", reply.body);
        }
    };
    fill("a");
    let alone = cached();
    assert!(alone > BYTES / 2, "one cache may use what no other does: {alone}");
    fill("b");
    wait_until("both caches together are no larger", || cached() <= BYTES);
    zoo.post("/v1/models/unload", &json!({ "model": "a" }));
    assert!(cached() > BYTES / 4, "the second model's cache has its part");
}

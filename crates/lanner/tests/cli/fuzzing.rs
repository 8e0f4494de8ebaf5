//! A structure-aware fuzzer of every route of a real server: mutated valid requests.
//! The server must answer in JSON, with the right status class, and release all resources.
//!
//! `LANNER_FUZZ=1000000` sets the number of requests (use `--release`),
//! `LANNER_FUZZ_SEED` the seed.

mod connection;
mod fields;
mod more_fields;
mod requests;

use std::{
    collections::BTreeMap,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use self::{
    connection::{Connection, Reply},
    requests::{Ask, Random, ask, extremes},
};
use crate::support::{client, process::ServerProcess, wait::PATIENCE};

/// Concurrent clients.
const CONNECTIONS: usize = 6;
/// Default number of requests.
const USUAL: usize = 3_000;
/// Megabytes that may remain: stored answers (64) and memory retained by allocators.
const SLACK: f64 = 160.0;
/// Files that the store keeps open for further reads.
const STORE_FILES: usize = 12;
/// The first bytes of a file compressed by gzip.
const GZIP: &[u8] = b"\x1f\x8b";

/// The fault of an error object, if any.
fn check_error(error: &Value, status: Option<u16>) -> Result<(), String> {
    // Ollama's errors are their messages.
    let message = error.as_str().or_else(|| error["message"].as_str()).ok_or("no error.message")?;
    if message.is_empty() || message.contains("panicked") || message.contains(".rs:") || message.len() > 2_000
    {
        return Err(format!("an odd message: {message}"));
    }
    let (r#type, code) = (&error["type"], error["code"].as_str().unwrap_or_default());
    let passes = matches!(code, "timeout" | "out_of_memory" | "hub_offline");
    // Anthropic's errors have no code, and a type for each status.
    if r#type == "api_error" || r#type == "server_error" && !passes {
        return Err(format!("the server blames itself: {message}"));
    }
    match status {
        Some(503) => Ok(()),
        Some(529) if r#type == "overloaded_error" => Ok(()),
        Some(504) if code == "timeout" || r#type == "timeout_error" || error.is_string() => Ok(()),
        Some(500..) => Err("a 5xx".into()),
        _ => Ok(()),
    }
}

fn check(ask: &Ask, reply: &Reply) -> Result<(), String> {
    if ask.line.starts_with("HEAD") {
        return Ok(());
    }
    // A file of the web page, which is stored compressed.
    if reply.status == 200 && reply.body.starts_with(GZIP) && ask.line.starts_with("GET /page/") {
        return Ok(());
    }
    let body = std::str::from_utf8(&reply.body).map_err(|_| "no UTF-8")?;
    if reply.status >= 400 {
        let body: Value = serde_json::from_str(body).map_err(|error| format!("no JSON: {error}"))?;
        return check_error(&body["error"], Some(reply.status));
    }
    if ["data: ", "event: ", ": "].iter().any(|start| body.starts_with(start)) {
        for data in
            body.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]")
        {
            let event: Value = serde_json::from_str(data).map_err(|error| format!("no JSON: {error}"))?;
            event.get("error").map_or(Ok(()), |error| check_error(error, None))?;
        }
        return Ok(());
    }
    let is_json = |text| serde_json::from_str::<Value>(text).is_ok();
    let is_text = ["GET /", "GET /docs", "GET /metrics"].contains(&&*ask.line);
    if is_json(body) || body.lines().all(is_json) || is_text { Ok(()) } else { Err("no JSON".into()) }
}

/// State shared by the clients.
#[derive(Default)]
struct Outcomes {
    statuses: BTreeMap<u16, usize>,
    /// The last request of each connection, to report if the server crashes.
    last: BTreeMap<usize, String>,
    memory: Vec<f64>,
    /// Faults of answers.
    wrong: Vec<String>,
}

fn shown(ask: &Ask) -> String {
    let body: String = String::from_utf8_lossy(&ask.body).chars().take(3_000).collect();
    format!("{} {body}", ask.line)
}

/// One connection's requests.
fn send_all(
    server: &ServerProcess,
    connection: usize,
    asks: impl Iterator<Item = Ask>,
    outcomes: &Mutex<Outcomes>,
) {
    let mut wire = Connection { address: server.address, stream: None };
    for (i, ask) in asks.enumerate() {
        outcomes.lock().unwrap().last.insert(connection, shown(&ask));
        let reply = wire.send(&ask).unwrap_or_else(|error| {
            let outcomes = outcomes.lock().unwrap();
            panic!("{error}; the last requests were {:#?}", outcomes.last)
        });
        let mut outcomes = outcomes.lock().unwrap();
        if let Err(wrong) = check(&ask, &reply) {
            let answer: String = String::from_utf8_lossy(&reply.body).chars().take(1_000).collect();
            outcomes.wrong.push(format!("{wrong}: {} {answer} to {}", reply.status, shown(&ask)));
        }
        *outcomes.statuses.entry(reply.status).or_default() += 1;
        if connection == 0 && i.is_multiple_of(50) {
            outcomes.memory.extend(server.memory());
        }
    }
}

/// Threads and open files of the server; `None` where the system does not report them.
fn resources(server: &ServerProcess) -> Option<[usize; 2]> {
    let count = |of: &str| Some(std::fs::read_dir(format!("/proc/{}/{of}", server.child.id())).ok()?.count());
    Some([count("task")?, count("fd")?])
}

fn serving() -> (ServerProcess, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store.db");
    let flags = ["--prefix-cache", "32M", "--disk-cache", "off", "--log", "off", "--store"];
    let server = ServerProcess::start_with(
        &[&flags[..], &[store.to_str().unwrap()]].concat(),
        &[("HF_HUB_OFFLINE", "1"), ("HF_HUB_CACHE", "/nonexistent/hub"), ("LANNER_NO_STORE", "0")],
    );
    (server, folder)
}

/// Asserts that the server is idle and holds no more resources than before.
fn check_rest(server: &mut ServerProcess, before: Option<[usize; 2]>) {
    assert!(server.child.try_wait().unwrap().is_none(), "the server has ended");
    let begun = Instant::now();
    loop {
        let now = resources(server);
        // Threads for blocking work end after ten idle seconds; a chat template
        // keeps up to two.
        let rests = before
            .zip(now)
            .is_none_or(|([threads, files], [now, open])| now <= threads + 2 && open <= files + STORE_FILES);
        let is_late = begun.elapsed() >= PATIENCE;
        // Not asked before: each request keeps an idle thread alive.
        if rests || is_late {
            let health = client::get(server.address, "/health").json();
            assert_eq!(health["status"], "ok");
            if rests && health["running"] == 0 {
                return;
            }
            assert!(!is_late, "{health}; threads and files were {before:?} and are {now:?}");
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// Starts the threads that stay for later requests, among them those that compute masks.
fn warm_up(server: &ServerProcess) {
    let bodies = [
        json!({ "prompt": "The owl", "max_tokens": 2 }),
        json!({ "prompt": "x ".repeat(600), "max_tokens": 2 }),
        json!({ "prompt": "The owl", "max_tokens": 2, "response_format": { "type": "json_object" } }),
    ];
    bodies.iter().for_each(|body| drop(server.complete(body)));
}

fn number(variable: &str) -> Option<usize> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is `{text}`, which is no number")))
}

#[test]
fn fuzzed_requests_are_answered_in_json_and_release_everything() {
    let requests = number("LANNER_FUZZ").unwrap_or(USUAL);
    let seed = number("LANNER_FUZZ_SEED").unwrap_or(0) as u64;
    let (mut server, _folder) = serving();
    warm_up(&server);
    let (before, begun, outcomes) = (resources(&server), Instant::now(), Mutex::new(Outcomes::default()));
    thread::scope(|scope| {
        for connection in 0..CONNECTIONS {
            let (server, outcomes) = (&server, &outcomes);
            let mut random =
                Random(seed.wrapping_mul(CONNECTIONS as u64).wrapping_add(connection as u64) << 32);
            let asks = std::iter::repeat_with(move || ask(&mut random)).take(requests / CONNECTIONS);
            scope.spawn(move || send_all(server, connection, asks, outcomes));
        }
    });
    let Outcomes { statuses, memory, wrong, .. } = outcomes.into_inner().unwrap();
    let per_second = requests as f64 / begun.elapsed().as_secs_f64();
    eprintln!("{requests} requests, {per_second:.0} a second; statuses: {statuses:?}");
    assert!(wrong.is_empty(), "{} wrong answers, {:#?}", wrong.len(), &wrong[..wrong.len().min(20)]);
    assert!(
        statuses[&200] > requests / 20 && statuses[&400] > requests / 20,
        "most of one kind: {statuses:?}"
    );
    check_rest(&mut server, before);
    if let (Some(first), Some(last)) = (memory.get(memory.len() / 5), server.memory()) {
        let most = memory.iter().copied().fold(0.0, f64::max);
        eprintln!("resident: {first:.0} MB after a fifth, {most:.0} at most, {last:.0} at the end");
        assert!(last < first + SLACK, "{first} MB after a fifth of the requests, {last} at the end");
    }
}

/// Every operation of the document has a fuzzed request.
#[test]
fn fuzzed_routes_are_those_of_the_document() {
    let server = crate::support::server::Setup::default().says("x");
    let document = client::get(server.address, "/openapi.json").json();
    let mut lines: Vec<String> = fields::posted().map(|(path, ..)| more_fields::line(path)).into();
    lines.extend(more_fields::OTHERS.map(str::to_owned));
    let is_fuzzed = |method: &str, path: &str| {
        let (start, end) = path
            .split_once('{')
            .map_or((path, ""), |(start, rest)| (start, rest.split_once('}').map_or("", |(_, end)| end)));
        lines.iter().any(|line| {
            let (own_method, own) = line.split_once(' ').unwrap();
            let own = own.split('?').next().unwrap();
            let is_same =
                if path.contains('{') { own.starts_with(start) && own.ends_with(end) } else { own == path };
            own_method == method && is_same
        })
    };
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            assert!(is_fuzzed(&method.to_uppercase(), path), "no request to {method} {path} is fuzzed");
        }
    }
}

/// Every field of the document's request bodies is one of the fuzzed fields.
#[test]
fn fuzzed_fields_are_those_of_the_document() {
    let server = crate::support::server::Setup::default().says("x");
    let document = client::get(server.address, "/openapi.json").json();
    let posted = fields::posted();
    let mut missing = vec![];
    for (path, methods) in document["paths"].as_object().unwrap() {
        let body = |method: &str| &methods[method]["requestBody"]["content"]["application/json"]["schema"];
        let names = [body("post"), body("put")].map(|schema| property_names(&document, schema)).concat();
        let path = path.replace("{id}", "c1");
        let known = posted.iter().find(|(own, ..)| *own == path).map_or(&[][..], |(_, fields, _)| fields);
        let is_known = |name: &String| known.iter().any(|(own, ..)| own == name);
        missing.extend(names.iter().filter(|name| !is_known(name)).map(|name| format!("{path}: {name}")));
    }
    assert!(missing.is_empty(), "fields that no fuzzed request has: {missing:#?}");
}

/// The names of an object's fields, in any of its alternatives.
fn property_names(document: &Value, schema: &Value) -> Vec<String> {
    if let Some(path) = schema["$ref"].as_str() {
        return property_names(document, document.pointer(path.trim_start_matches('#')).unwrap());
    }
    let own = schema["properties"].as_object().into_iter().flat_map(|fields| fields.keys().cloned());
    let parts = ["allOf", "anyOf", "oneOf"].map(|key| schema[key].as_array());
    let parts = parts.into_iter().flatten().flatten();
    own.chain(parts.flat_map(|part| property_names(document, part))).collect()
}

#[test]
fn extreme_values_of_every_field_are_answered() {
    let (mut server, _folder) = serving();
    let (mut shares, outcomes) = (vec![], Mutex::new(Outcomes::default()));
    (0..CONNECTIONS).for_each(|_| shares.push(vec![]));
    for (i, ask) in extremes().into_iter().enumerate() {
        shares[i % CONNECTIONS].push(ask);
    }
    thread::scope(|scope| {
        for (connection, asks) in shares.into_iter().enumerate() {
            let (server, outcomes) = (&server, &outcomes);
            scope.spawn(move || send_all(server, connection, asks.into_iter(), outcomes));
        }
    });
    let Outcomes { statuses, wrong, .. } = outcomes.into_inner().unwrap();
    eprintln!("statuses: {statuses:?}");
    assert!(wrong.is_empty(), "{} wrong answers, {:#?}", wrong.len(), &wrong[..wrong.len().min(20)]);
    check_rest(&mut server, None);
}

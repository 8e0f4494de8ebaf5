//! The disk cache of a killed server.
//!
//! LANNER_KILLS sets the number of kills; LANNER_LOAD takes a prompt of 12,000 tokens and enforces
//! a time to first token that needs an idle machine.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use crate::support::{
    client, long_context,
    process::{ServerProcess, lanner},
    wait::wait_until,
};

const BIRDS: [&str; 8] = ["owl", "falcon", "kite", "harrier", "buzzard", "merlin", "osprey", "kestrel"];

fn start(folder: &TempDir, more: &[&str]) -> ServerProcess {
    let folder = folder.path().to_str().unwrap();
    ServerProcess::start(&[&["--cache-dir", folder], more].concat())
}

/// A chat with a schema of about `words` words and a question.
fn body(words: usize, question: &str, max_tokens: u64) -> Value {
    let word = |i: usize| format!("{}{}", BIRDS[i * 7 % 8], i * i % 101);
    let schema: Vec<String> = (0..words).map(word).collect();
    let messages = json!([
        { "role": "system", "content": schema.join(" ") },
        { "role": "user", "content": question },
    ]);
    json!({ "messages": messages, "temperature": 0, "max_tokens": max_tokens })
}

fn ask(server: &ServerProcess, body: &Value) -> Value {
    let reply = client::post(server.address, "/v1/chat/completions", body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    reply.json()
}

fn text(answer: &Value) -> &Value {
    &answer["choices"][0]["message"]["content"]
}

fn listed(folder: &TempDir) -> Vec<Value> {
    let args = ["cache", "ls", "--json", "--cache-dir", folder.path().to_str().unwrap()];
    let output = lanner(&args, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice::<Vec<Value>>(&output.stdout).unwrap()
}

/// Waits until this many tokens are on the disk.
fn wait_for_tokens(folder: &TempDir, tokens: u64) {
    wait_until("the tokens are on the disk", || {
        listed(folder).first().is_some_and(|model| model["tokens"].as_u64().unwrap() >= tokens)
    });
}

/// Files that a killed server was writing.
fn left_unfinished(folder: &Path) -> usize {
    let models = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    // Digests of weights are beside the models' folders.
    let models = models.filter(|path| path.is_dir());
    let files = models.flat_map(|model| fs::read_dir(model).unwrap().map(|entry| entry.unwrap().path()));
    files.filter(|file| file.extension().is_some_and(|extension| extension == "tmp")).count()
}

#[test]
fn killed_server_resumes_from_the_disk_cache() {
    let exact = std::env::var_os("LANNER_LOAD").is_some();
    let (folder, model) = (tempdir().unwrap(), long_context(16384));
    let model = ["--model", model.path().to_str().unwrap()];
    let words = if exact { 2750 } else { 700 };
    let mut server = start(&folder, &model);
    // The first request of a process includes one-time costs.
    ask(&server, &body(1, "Hello?", 1));
    let timed = |server: &ServerProcess, question: &str| {
        let begun = Instant::now();
        let answer = ask(server, &body(words, question, 1));
        (begun.elapsed().as_secs_f64(), answer)
    };
    let (cold, first) = timed(&server, "Which of them hunts at night?");
    assert_eq!(first["usage"]["lanner"]["cache"]["cached_tokens"], 0);
    let prompt = first["usage"]["prompt_tokens"].as_u64().unwrap();
    wait_for_tokens(&folder, prompt);
    server.child.kill().unwrap();
    server.child.wait().unwrap();

    let server = start(&folder, &model);
    ask(&server, &body(1, "Hello?", 1));
    let (warm, second) = timed(&server, "And by day?");
    let cache = &second["usage"]["lanner"]["cache"];
    assert_eq!(cache["source"], "disk", "{cache}");
    assert!(cache["cached_tokens"].as_u64().unwrap() * 100 > prompt * 99, "{cache} of {prompt}");
    eprintln!("{prompt} tokens: {cold:.3} s cold, {warm:.3} s from the disk, {:.1} %", warm / cold * 100.0);
    // A busy machine may be slow at any moment.
    assert!(!exact || warm < cold * 0.1, "{warm} s, {cold} s cold");
    let alone = start(&folder, &[&model[..], &["--prefix-cache", "off", "--disk-cache", "off"]].concat());
    assert_eq!(text(&second), text(&ask(&alone, &body(words, "And by day?", 1))));

    // A cleared cache stays empty after a restart.
    let stats = client::get(server.address, "/v1/cache").json();
    assert!(stats["disk"]["files"].as_u64().unwrap() > 0 && stats["disk"]["rejected"] == 0, "{stats}");
    assert_eq!(client::request(server.address, "DELETE /v1/cache", "", b"").status, 200);
    assert_eq!(listed(&folder), Vec::<Value>::new());
}

#[test]
fn cache_commands_work_without_a_server() {
    let folder = tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let run = |args: &[&str]| {
        let output = lanner(&[args, &["--cache-dir", path]].concat(), &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap())
    };
    assert_eq!(listed(&folder), Vec::<Value>::new());
    let server = start(&folder, &[]);
    let prompt = ask(&server, &body(100, "Hm?", 1))["usage"]["prompt_tokens"].as_u64().unwrap();
    wait_for_tokens(&folder, prompt);
    let [table, _] = run(&["cache", "ls"]);
    assert!(
        table.starts_with("model") && table.contains("built-in") && table.contains("just now"),
        "{table}"
    );
    let model = &listed(&folder)[0];
    assert!(
        model["bytes"].as_u64().unwrap() > 10_000 && model["checkpoints"].as_u64().unwrap() > 0,
        "{model}"
    );
    let [_, stderr] = run(&["cache", "clear"]);
    assert!(stderr.contains("freed"), "{stderr}");
    assert_eq!(listed(&folder), Vec::<Value>::new());
    // The server whose file was removed computes it again.
    assert_eq!(text(&ask(&server, &body(100, "Hm?", 1))), text(&ask(&server, &body(100, "Hm?", 1))));
}

#[test]
fn answer_from_compressed_state_reports_lossy() {
    let folder = tempdir().unwrap();
    let packed = ["--disk-cache-bits", "8"];
    let lossy = |answer: &Value| answer["usage"]["lanner"].get("lossy").cloned();
    let begun = |server: &ServerProcess, question: &str| ask(server, &body(150, question, 4));
    let server = start(&folder, &packed);
    let first = begun(&server, "Hm?");
    assert_eq!((lossy(&first), lossy(&begun(&server, "Hm?"))), (None, None));
    wait_for_tokens(&folder, first["usage"]["prompt_tokens"].as_u64().unwrap());
    drop(server);
    assert_eq!(listed(&folder)[0]["bits"], 8);

    let server = start(&folder, &packed);
    let compressed = Some(json!(["compressed_cache"]));
    let [disk, ram] = ["Well?", "So?"].map(|question| begun(&server, question));
    let source = |answer: &Value| answer["usage"]["lanner"]["cache"]["source"].clone();
    assert_eq!((source(&disk), lossy(&disk)), (json!("disk"), compressed.clone()));
    assert_eq!((source(&ram), lossy(&ram)), (json!("ram"), compressed.clone()));
    assert_eq!(lossy(&ask(&server, &body(30, "Hm?", 4))), None);
    let mut streamed = body(150, "And so?", 4);
    (streamed["stream"], streamed["stream_options"]) = (json!(true), json!({ "include_usage": true }));
    let reply = client::post(server.address, "/v1/chat/completions", &streamed);
    assert!(reply.body.contains(r#""lossy":["compressed_cache"]"#), "{}", reply.body);
    drop(server);

    // A server without compression does not use compressed files.
    let exact = start(&folder, &[]);
    let fresh = begun(&exact, "Hm?");
    assert_eq!((source(&fresh), lossy(&fresh)), (Value::Null, None));
    assert_eq!(text(&fresh), text(&first));
}

#[test]
fn server_killed_during_disk_writes_restarts_with_the_same_answers() {
    let kills: u64 = std::env::var("LANNER_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(4);
    let folder = tempdir().unwrap();
    let bodies: Vec<Value> = (0..6)
        .map(|i| body(100 + 40 * i, BIRDS[i], 6))
        .chain((0..6).map(|i| body(340, BIRDS[i], 6)))
        .collect();
    let cold = ServerProcess::start(&["--prefix-cache", "off", "--disk-cache", "off"]);
    let expected: Vec<Value> = bodies.iter().map(|body| text(&ask(&cold, body)).clone()).collect();
    drop(cold);
    let (mut from_disk, mut unfinished, mut seed) = (0, 0, 0x9E37_79B9_7F4A_7C15u64);
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    for round in 0..=kills {
        let mut server = start(&folder, &["--disk-cache", if random(4) == 0 { "4M" } else { "1G" }]);
        for _ in 0..2 {
            let i = random(bodies.len() as u64) as usize;
            let answer = ask(&server, &bodies[i]);
            assert_eq!(text(&answer), &expected[i], "round {round}: {}", answer["usage"]);
            from_disk += u64::from(answer["usage"]["lanner"]["cache"]["source"] == "disk");
        }
        let stats = client::get(server.address, "/v1/cache").json();
        assert_eq!((&stats["failures"], &stats["disk"]["rejected"]), (&json!(0), &json!(0)), "{stats}");
        // More requests, one of which is interrupted by the kill.
        let (address, wait) = (server.address, random(400));
        let more: Vec<Value> = (0..6).map(|_| bodies[random(bodies.len() as u64) as usize].clone()).collect();
        let client = thread::spawn(move || {
            for body in more {
                let body = body.to_string();
                // The server is killed during this request.
                let _ = std::panic::catch_unwind(|| {
                    client::post_raw(address, "/v1/chat/completions", body.as_bytes());
                });
            }
        });
        thread::sleep(Duration::from_millis(wait));
        server.child.kill().unwrap();
        server.child.wait().unwrap();
        client.join().unwrap();
        unfinished += left_unfinished(folder.path());
    }
    eprintln!("{from_disk} answers from the disk, {unfinished} files left unfinished");
    assert!(from_disk > 0, "nothing came from the disk");
}

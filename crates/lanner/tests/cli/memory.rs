//! A server's allocator, and a memory limit just above the weights and a step.

use std::thread;

use serde_json::{Value, json};

use crate::support::{
    client::{self, Reply},
    process::{ServerProcess, lanner},
};

const OWLS: &str = "Owls hunt by night, and their feathers make no sound. ";

/// The least limit under which the built-in model starts, as the error message reports it.
fn least() -> usize {
    let output =
        lanner(&["run", "hi", "--device", "cpu", "--prefill-chunk", "64", "--memory-limit", "1M"], &[]);
    assert!(!output.status.success());
    let stderr = String::from_utf8(output.stderr).unwrap();
    let bytes = stderr.split("set it to ").nth(1).and_then(|rest| rest.split(' ').next());
    bytes.unwrap_or_else(|| panic!("{stderr}")).parse().unwrap()
}

fn serving(limit: usize, more: &[&str]) -> ServerProcess {
    let limit = limit.to_string();
    ServerProcess::start(&[&["--prefill-chunk", "64", "--memory-limit", &limit], more].concat())
}

fn complete(server: &ServerProcess, i: usize, max_tokens: Option<usize>) -> Reply {
    let prompt = format!("{i} {}", OWLS.repeat(4 + 5 * (i % 4)));
    let body = json!({ "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true });
    client::post(server.address, "/v1/completions", &body)
}

fn text(reply: &Reply) -> Value {
    reply.json()["choices"][0]["text"].clone()
}

/// Replies to twelve concurrent requests.
fn all(server: &ServerProcess) -> Vec<Reply> {
    thread::scope(|scope| {
        let running: Vec<_> = (0..12).map(|i| scope.spawn(move || complete(server, i, Some(40)))).collect();
        running.into_iter().map(|reply| reply.join().unwrap()).collect()
    })
}

/// The settings of jemalloc ask for its thread: were they not found, none of them would hold.
#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn server_allocates_with_jemalloc_and_our_settings() {
    let server = ServerProcess::start(&[]);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap().flatten();
    let names: Vec<String> =
        tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok()).collect();
    assert!(names.iter().any(|name| name.trim() == "jemalloc_bg_thd"), "{names:?}");
}

#[test]
fn memory_limit_keeps_answers_and_rejects_what_cannot_fit() {
    let free = ServerProcess::start(&["--prefill-chunk", "64"]);
    let expected: Vec<Value> = all(&free).iter().map(text).collect();
    let limit = least() * 5 / 4;
    let server = serving(limit, &[]);
    let model = client::get(server.address, "/v1/models").json()["data"][0].clone();
    assert_eq!(model["memory"]["limit_bytes"], limit, "{model}");
    let most = model["memory"]["most_tokens"].as_u64().unwrap();
    assert!((600..8000).contains(&most), "some requests fit, and some do not: {model}");
    for _ in 0..2 {
        let replies = all(&server);
        assert_eq!(replies.iter().map(text).collect::<Vec<_>>(), expected);
    }
    let refused = complete(&server, 1, Some(8000));
    assert_eq!(
        (refused.status, &refused.json()["error"]["code"]),
        (400, &json!("memory_exceeded")),
        "{}",
        refused.body
    );
    for part in ["MB of memory", "ask for at most", "or raise the limit"] {
        assert!(refused.body.contains(part), "{}", refused.body);
    }
    // Without `max_tokens` the request may use all tokens that fit.
    let body = json!({ "messages": [{ "role": "user", "content": "Name an owl." }], "temperature": 0 });
    let reply = client::post(server.address, "/v1/chat/completions", &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(text(&complete(&server, 3, Some(40))), expected[3]);
}

#[test]
fn when_full_refuse_answers_503_without_memory() {
    let server = serving(least() * 9 / 8, &["--when-full", "refuse"]);
    let replies = all(&server);
    let refused = replies.iter().filter(|reply| reply.status == 503);
    for reply in refused.clone() {
        assert_eq!(reply.json()["error"]["code"], "out_of_memory", "{}", reply.body);
        assert!(reply.head.contains("retry-after: "), "{}", reply.head);
    }
    let answered = replies.iter().filter(|reply| reply.status == 200).count();
    assert!(answered > 0 && refused.count() == 12 - answered && answered < 12, "{answered} of 12");
    assert_eq!(complete(&server, 3, Some(40)).status, 200);
}

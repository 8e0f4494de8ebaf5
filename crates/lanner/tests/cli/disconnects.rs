//! Clients that disconnect, many concurrent requests, and endless templates.

use std::{
    io::Read,
    thread,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::support::{
    client,
    server::{Gate, Setup, TestServer, token},
    wait::wait_until,
};

/// Generates until the client disconnects.
fn endless(delay: Duration) -> TestServer {
    Setup { delay, ..Setup::default() }.script(|_, _| token(65))
}

fn wait_until_idle(server: &TestServer) {
    wait_until("requests of disconnected clients end", || server.health()["running"] == 0);
}

#[test]
fn hundred_clients_that_disconnect_mid_stream_release_everything() {
    let server = endless(Duration::from_millis(2));
    let body = json!({ "messages": [{ "role": "user", "content": "hi" }], "stream": true }).to_string();
    for _ in 0..100 {
        let headers = "Content-Type: application/json\r\n";
        let mut stream = client::open(server.address, "POST /v1/chat/completions", headers, body.as_bytes());
        // The first event comes before the first token.
        let mut some = [0; 1000];
        stream.read_exact(&mut some).unwrap();
    }
    wait_until_idle(&server);
    assert_eq!(server.num_requests(), 100);
    assert_eq!(server.chat(&json!({ "max_tokens": 2 })).json()["choices"][0]["message"]["content"], "AA");
}

#[test]
fn client_disconnect_cancels_a_non_streaming_answer() {
    let server = endless(Duration::from_millis(20));
    let body = json!({ "prompt": "a", "max_tokens": 900 }).to_string();
    let stream = client::open(
        server.address,
        "POST /v1/completions",
        "Content-Type: application/json\r\n",
        body.as_bytes(),
    );
    wait_until("the request arrives", || server.num_requests() == 1);
    drop(stream);
    wait_until_idle(&server);
    let generated = server.host.registry().default_model().unwrap().engine().metrics().generated_tokens.get();
    assert!(generated < 900, "{generated} tokens without a client");
}

#[test]
fn health_answers_during_sixteen_generations() {
    let gate = Gate::default();
    let held = gate.clone();
    let server = Setup { delay: Duration::from_millis(2), ..Setup::default() }.script(move |_, n| {
        // Until /health has answered.
        if n == 100 {
            held.wait();
        }
        token(65)
    });
    let address = server.address;
    let requests: Vec<_> = (0..16)
        .map(|_| {
            let body = json!({ "prompt": "a", "stream": true, "max_tokens": 900 });
            thread::spawn(move || client::post(address, "/v1/completions", &body).is_done())
        })
        .collect();
    wait_until("all run", || server.health()["running"] == 16);
    let mut times: Vec<Duration> = (0..21)
        .map(|_| {
            let start = Instant::now();
            server.health();
            start.elapsed()
        })
        .collect();
    times.sort();
    // A bound on hanging, not on the machine's speed.
    assert!(times[10] < Duration::from_secs(1), "/health took {times:?}");
    eprintln!("/health during 16 streams: median {:?}, slowest {:?}", times[10], times[20]);
    gate.open();
    assert!(requests.into_iter().all(|request| request.join().unwrap()));
    wait_until_idle(&server);
}

#[test]
fn endless_template_fails_without_delaying_other_requests() {
    let template = "{% if messages[0].content == 'loop' %}{% for a in range(99999) %}{% for b in range(99999) %}\
        {% endfor %}{% endfor %}{% endif %}{{ messages[0].content }}";
    let server = Setup { template, ..Setup::default() }.says("x");
    let address = server.address;
    let hostile: Vec<_> = (0..3)
        .map(|_| {
            let body = json!({ "messages": [{ "role": "user", "content": "loop" }] });
            thread::spawn(move || client::post(address, "/v1/chat/completions", &body))
        })
        .collect();
    assert_eq!(server.health()["status"], "ok");
    assert_eq!(server.chat(&json!({})).status, 200);
    for reply in hostile {
        let reply = reply.join().unwrap();
        assert_eq!(reply.status, 400, "{}", reply.body);
        assert!(reply.body.contains("did not finish"), "{}", reply.body);
    }
}

#[test]
fn template_raise_exception_reaches_the_client() {
    let server =
        Setup { template: "{{ raise_exception('roles must alternate') }}", ..Setup::default() }.says("x");
    let reply = server.chat(&json!({}));
    assert_eq!(reply.status, 400);
    assert!(reply.body.contains("roles must alternate"), "{}", reply.body);
}

//! Slow, idle, excess and oversized connections, and clients that do not read.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};

use lanner::config::Timeouts;
use serde_json::{Value, json};

use crate::support::{
    client::{self, Reply},
    server::{Setup, TestServer, token},
    wait::wait_until,
};

const SHORT: Duration = Duration::from_millis(150);
const JSON: &str = "Content-Type: application/json\r\n";

fn server(timeouts: impl FnOnce(&mut Timeouts)) -> TestServer {
    let mut setup = Setup::default();
    timeouts(&mut setup.timeouts);
    setup.says("x")
}

/// A socket whose reads time out, whatever the server does.
fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// One response with a declared length, on a connection that may stay open.
fn read_reply(stream: &TcpStream) -> Reply {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "the connection ended within {head:?}");
    }
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Reply { status, head, body: String::from_utf8(body).unwrap() }
}

fn is_ended(mut stream: &TcpStream) -> bool {
    // A reset counts as an end; a timeout does not.
    match stream.read(&mut [0; 1]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

fn code(reply: &Reply) -> Value {
    reply.json()["error"]["code"].take()
}

#[test]
fn slow_request_head_times_out_with_408() {
    let server = server(|timeouts| timeouts.head = SHORT);
    let mut slow = connect(server.address);
    let started = Instant::now();
    let endless = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ".iter().chain(std::iter::repeat(&b'x'));
    for byte in endless {
        assert!(started.elapsed() < Duration::from_secs(20), "the connection is never closed");
        // Each byte arrives in time.
        if slow.write_all(&[*byte]).is_err() {
            break;
        }
        slow.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        let mut first = [0; 1];
        if slow.read(&mut first).is_ok_and(|read| read == 1) {
            slow.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let reply = read_reply(&slow);
            assert_eq!((reply.status, code(&reply)), (408, json!("request_timeout")));
            break;
        }
    }
    let silent = connect(server.address);
    assert!(is_ended(&silent), "one that says nothing is closed");
}

#[test]
fn stalled_or_slow_body_times_out_with_408() {
    let server = server(|timeouts| timeouts.body = SHORT);
    for trickles in [false, true] {
        let mut slow = connect(server.address);
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n{JSON}\r\n"
        );
        slow.write_all(head.as_bytes()).unwrap();
        slow.write_all(b"{\"prompt\": \"").unwrap();
        let writer = slow.try_clone().unwrap();
        let trickle = thread::spawn(move || {
            let mut writer = &writer;
            let started = Instant::now();
            while trickles && started.elapsed() < Duration::from_secs(20) && writer.write_all(b"x").is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
        });
        let reply = read_reply(&slow);
        assert_eq!((reply.status, code(&reply)), (408, json!("request_timeout")), "{}", reply.body);
        assert!(reply.head.contains("connection: close"), "{}", reply.head);
        let _ = slow.shutdown(std::net::Shutdown::Both);
        trickle.join().unwrap();
    }
    assert_eq!(server.health()["status"], "ok");
}

#[test]
fn connection_serves_many_requests_until_idle_timeout() {
    let server = server(|timeouts| timeouts.idle = Duration::from_secs(3));
    let idle = connect(server.address);
    for _ in 0..3 {
        (&idle).write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let reply = read_reply(&idle);
        assert_eq!(reply.status, 200);
        assert!(!reply.head.contains("connection: close"), "{}", reply.head);
    }
    assert!(is_ended(&idle));
}

/// Sends the whole body before reading, as most clients do, and fails if it cannot.
fn post_whole(server: &TestServer, headers: &str, body: &[u8]) -> Reply {
    let mut stream = connect(server.address);
    let length = body.len();
    let head = format!("POST /v1/completions HTTP/1.1\r\nContent-Length: {length}\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    read_reply(&stream)
}

#[test]
fn early_response_during_upload_is_delivered() {
    let server = Setup { api_key: Some("secret"), ..Setup::default() }.says("x");
    let body = vec![b' '; 3 << 20];
    let key = "Authorization: Bearer secret\r\n";
    for (headers, status) in [
        (JSON.to_owned(), 401),
        (format!("{key}Content-Type: text/plain\r\n"), 415),
        (format!("{key}{JSON}"), 413),
        (format!("{key}{JSON}Host: evil.example\r\n"), 403),
    ] {
        for round in 0..20 {
            let reply = post_whole(&server, &headers, &body);
            assert_eq!(reply.status, status, "round {round}: {}", reply.head);
            assert!(reply.head.contains("connection: close"), "{}", reply.head);
        }
    }
    // With chunked encoding the length is unknown.
    for _ in 0..20 {
        let mut stream = connect(server.address);
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{key}{JSON}Transfer-Encoding: chunked\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        for _ in 0..48 {
            let chunk = [b"10000\r\n", &[b' '; 0x10000][..], b"\r\n"].concat();
            stream.write_all(&chunk).unwrap();
        }
        let reply = read_reply(&stream);
        assert_eq!((reply.status, code(&reply)), (413, json!("request_too_large")));
    }
}

#[test]
fn oversized_content_length_is_refused_unread() {
    let server = Setup::default().says("x");
    let mut stream = connect(server.address);
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999999\r\n{JSON}\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let reply = read_reply(&stream);
    assert_eq!((reply.status, code(&reply)), (413, json!("request_too_large")));
    assert!(reply.head.contains("connection: close"), "{}", reply.head);
}

/// Generates until the client disconnects.
fn endless(setup: Setup) -> TestServer {
    setup.script(|_, _| token(65))
}

fn stream(server: &TestServer) -> TcpStream {
    let body = json!({ "prompt": "a", "stream": true, "max_tokens": 900 }).to_string();
    let mut stream = client::open(server.address, "POST /v1/completions", JSON, body.as_bytes());
    stream.read_exact(&mut [0; 300]).unwrap();
    stream
}

#[test]
fn connection_over_the_cap_is_refused_unless_another_idles() {
    let setup = Setup { max_connections: 3, delay: Duration::from_millis(20), ..Setup::default() };
    let server = endless(setup);
    let mut streams: Vec<_> = (0..2).map(|_| stream(&server)).collect();
    let idle = connect(server.address);
    (&idle).write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    assert_eq!(read_reply(&idle).status, 200);
    // The idle connection is evicted.
    streams.push(stream(&server));
    assert!(is_ended(&idle));
    for _ in 0..20 {
        let reply = client::get(server.address, "/health");
        assert_eq!((reply.status, code(&reply)), (503, json!("too_many_connections")));
        assert!(reply.head.contains("retry-after: 1"), "{}", reply.head);
    }
    drop(streams);
    wait_until("connections of disconnected clients are free again", || {
        client::get(server.address, "/health").status == 200
    });
}

#[test]
fn client_that_does_not_read_loses_only_its_own_answer() {
    let mut setup = Setup::default();
    setup.timeouts.write = SHORT;
    let server = endless(setup);
    // Far more than the system buffers between the two.
    let prompts = ["a"; 4];
    let body = json!({ "prompt": prompts, "stream": true, "max_tokens": 900, "n": 16, "logprobs": 20 });
    let body = body.to_string();
    let unread = client::open(server.address, "POST /v1/completions", JSON, body.as_bytes());
    let ended = |outcome: &str| {
        let metrics = client::get(server.address, "/metrics").body;
        metrics.contains(&format!("lanner_requests_total{{outcome=\"{outcome}\"}} 1\n"))
    };
    wait_until("it has ended", || ended("cancelled") || ended("answered"));
    assert!(ended("cancelled"));
    wait_until("its choices have ended", || server.health()["running"] == 0);
    let reply = server.complete(&json!({ "prompt": "a", "max_tokens": 2 }));
    assert_eq!(reply.json()["choices"][0]["text"], "AA");
    drop(unread);
}

#[test]
fn no_admin_disables_admin_routes() {
    let server = Setup { admin: false, ..Setup::default() }.says("x");
    let body = br#"{"model": "merlin"}"#;
    for line in [
        "POST /v1/models/load",
        "POST /v1/models/unload",
        "POST /v1/models/pull",
        "POST /api/pull",
        "GET /v1/cache",
        "DELETE /v1/cache",
    ] {
        let reply = client::request(server.address, line, JSON, body);
        assert_eq!(reply.status, 403, "{line}: {}", reply.body);
        // Ollama's errors are their messages.
        match line.contains("/api/") {
            true => assert!(reply.body.contains("--no-admin"), "{line}: {}", reply.body),
            false => assert_eq!(code(&reply), json!("admin_disabled"), "{line}: {}", reply.body),
        }
    }
    assert_eq!(client::get(server.address, "/v1/models").status, 200);
    assert_eq!(server.chat(&json!({})).status, 200);
}

#[test]
fn foreign_origin_is_refused() {
    let server = Setup::default().says("x");
    let get =
        |origin: &str| client::request(server.address, "GET /health", &format!("Origin: {origin}\r\n"), b"");
    for origin in ["http://evil.example", "https://localhost.evil.example", "null"] {
        let reply = get(origin);
        assert_eq!((reply.status, code(&reply)), (403, json!("origin_not_allowed")), "{origin}");
    }
    for origin in ["http://localhost:3000", "http://127.0.0.1", "tauri://localhost"] {
        assert_eq!(get(origin).status, 200, "{origin}");
    }
}

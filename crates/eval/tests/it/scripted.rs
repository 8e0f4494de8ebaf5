//! A server that answers each chat completion with a script.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use lanner_eval::{Endpoint, EvalOptions, Machine, Origin, Report, TestName};
use serde_json::{Value, json};

pub(crate) enum Step {
    /// A server-sent event with this JSON.
    Event(Value),
    /// Bytes as they are.
    Raw(&'static str),
    Sleep(u64),
    /// Closes the connection before the end.
    Cut,
    /// Another status than 200, instead of a stream.
    Refuse(u16, &'static str),
}

pub(crate) struct Scripted {
    pub address: SocketAddr,
    /// The bodies of all chat completions.
    pub requests: Arc<Mutex<Vec<Value>>>,
}

impl Scripted {
    /// `script` gets the body of each request.
    pub(crate) fn start(script: impl Fn(&Value) -> Vec<Step> + Send + 'static) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(vec![]));
        let seen = requests.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                // A client that gives up is part of some tests.
                let _ = serve(&stream.unwrap(), &script, &seen);
            }
        });
        Scripted { address, requests }
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint { url: format!("http://{}", self.address), model: None, key: Some("secret".into()) }
    }

    pub(crate) fn eval(&self, options: impl FnOnce(&mut EvalOptions)) -> Result<Report, String> {
        let mut settings = EvalOptions {
            server: self.endpoint(),
            judge: None,
            tests: vec![TestName::Generation],
            repeats: 1,
            long_tokens: 2000,
            run_code: false,
            timeout: Duration::from_secs(20),
        };
        options(&mut settings);
        lanner_eval::run(&settings, origin(), &mut |_| {}).map_err(|error| error.to_string())
    }
}

pub(crate) fn origin() -> Origin {
    let machine = Machine {
        system: "linux x86_64".into(),
        cpu: Some("Test <CPU>".into()),
        cores: 2,
        memory_bytes: None,
        load_before: Some(0.5),
        load_after: None,
    };
    Origin { lanner: "0.1.0".into(), date: "2026-11-24T12:00:00Z".into(), machine }
}

/// The events of an answer in two tokens, with usage.
pub(crate) fn answer(text: &str) -> Vec<Step> {
    let (first, rest) = text.split_at(text.char_indices().nth(1).map_or(text.len(), |(at, _)| at));
    vec![delta("content", first), delta("content", rest), finish("stop"), usage(100, 2), done()]
}

pub(crate) fn delta(field: &str, text: &str) -> Step {
    Step::Event(json!({ "choices": [{ "index": 0, "delta": { field: text } }], "system_fingerprint": "b42" }))
}

pub(crate) fn finish(reason: &str) -> Step {
    Step::Event(json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] }))
}

pub(crate) fn usage(prompt: u64, completion: u64) -> Step {
    Step::Event(
        json!({ "choices": [], "usage": { "prompt_tokens": prompt, "completion_tokens": completion } }),
    )
}

pub(crate) fn done() -> Step {
    Step::Raw("data: [DONE]\n\n")
}

fn serve(
    mut stream: &TcpStream,
    script: &impl Fn(&Value) -> Vec<Step>,
    seen: &Mutex<Vec<Value>>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let (mut length, mut key) = (0, false);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let header = header.trim().to_lowercase();
        key |= header == "authorization: bearer secret";
        match header.strip_prefix("content-length:") {
            Some(value) => length = value.trim().parse().unwrap(),
            None if header.is_empty() => break,
            None => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    if !line.starts_with("POST /v1/chat/completions") {
        let (status, text) = described(&line, key);
        return plain(stream, status, &text);
    }
    let body: Value = serde_json::from_slice(&body).unwrap();
    seen.lock().unwrap().push(body.clone());
    let steps = script(&body);
    if let [Step::Refuse(status, text)] = steps[..] {
        return plain(stream, status, text);
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")?;
    for step in steps {
        match step {
            Step::Event(event) => stream.write_all(format!("data: {event}\n\n").as_bytes())?,
            Step::Raw(text) => stream.write_all(text.as_bytes())?,
            Step::Sleep(milliseconds) => thread::sleep(Duration::from_millis(milliseconds)),
            Step::Cut => return Ok(()),
            Step::Refuse(..) => panic!("a refusal has no other steps"),
        }
        stream.flush()?;
    }
    Ok(())
}

fn described(line: &str, key: bool) -> (u16, String) {
    match line.split(' ').nth(1) {
        _ if !key => (401, r#"{"error":{"message":"no key"}}"#.into()),
        Some("/v1/models") => (200, r#"{"data":[{"id":"owl"},{"id":"hawk"}]}"#.into()),
        Some("/version") => (200, r#"{"version":"9.9"}"#.into()),
        _ => (404, r#"{"error":{"message":"not here"}}"#.into()),
    }
}

fn plain(mut stream: &TcpStream, status: u16, text: &str) -> std::io::Result<()> {
    let length = text.len();
    let head = format!(
        "HTTP/1.1 {status} X\r\nserver: scripted/1\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all((head + text).as_bytes())
}

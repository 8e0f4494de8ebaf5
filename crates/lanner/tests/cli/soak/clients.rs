//! The clients of the soak test; each runs until the test ends.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{CLIENTS, Soak};
use crate::{
    load::{Random, WORDS},
    support::client,
};

const HEADERS: &str = "Content-Type: application/json\r\n";
/// Incomplete requests of idle connections.
const STARTS: [&str; 3] = [
    "",
    "GET /health HTTP/1.1\r\nHost: ",
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
     Content-Length: 100\r\n\r\n{\"prompt",
];
/// Time without data after which a request counts as unanswered.
const SILENCE: Duration = Duration::from_secs(120);
/// Parts into which a range of prompt lengths is divided.
const LENGTHS: u64 = 8;
/// Kinds of requests that want too much.
const EXCESSES: u64 = 3;

/// Random numbers of a client. Kinds of requests and lengths of prompts come from decks of cards:
/// every few minutes have the same mixture, so the load does not make memory vary.
pub(super) struct Draws {
    random: Random,
    decks: BTreeMap<(&'static str, u64), Vec<u64>>,
}

impl Draws {
    pub(super) fn new(seed: u64) -> Draws {
        Draws { random: Random(seed), decks: BTreeMap::new() }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit)
    }

    /// A card of a deck of `cards`, numbered from 0. Each comes once before any comes again.
    fn card(&mut self, deck: &'static str, cards: u64) -> u64 {
        self.draw((deck, cards), cards)
    }

    /// A number below `limit`, evenly spread over the range.
    fn spread(&mut self, limit: u64) -> u64 {
        (self.draw(("spread", limit), LENGTHS) * limit + self.below(limit)) / LENGTHS
    }

    fn draw(&mut self, deck: (&'static str, u64), cards: u64) -> u64 {
        let rest = self.decks.entry(deck).or_default();
        if rest.is_empty() {
            rest.extend(0..cards);
        }
        rest.swap_remove(self.random.below(rest.len() as u64) as usize)
    }
}

/// Sends each kind of request, prompts of each length at the same time, so that everything
/// long-lived exists: threads keep the memory of their largest call.
pub(super) fn each_once(soak: &Soak) {
    known(soak);
    thread::scope(|scope| {
        for i in 0..CLIENTS {
            scope.spawn(move || {
                let mut random = Draws::new(2000 + i);
                (0..LENGTHS).for_each(|_| answered(soak, &mut random));
                (0..EXCESSES).for_each(|_| wants_too_much(soak, &mut random));
                chats(soak, &mut random);
            });
        }
    });
    load(soak, "merlin");
    load(soak, "/no/such/folder");
    known(soak);
}

/// Sends valid and invalid requests in random order.
pub(super) fn mixed(soak: &Soak, mut random: Draws) {
    while soak.runs() {
        match random.card("kinds", 10) {
            0 => known(soak),
            1..4 => answered(soak, &mut random),
            4 => leaves(soak, &mut random),
            5 => reads_slowly(soak, &mut random),
            6 => wants_too_much(soak, &mut random),
            7 => chats(soak, &mut random),
            _ => fails(soak, &mut random),
        }
    }
}

/// Compares a deterministic answer with the first one.
fn known(soak: &Soak) {
    let reply = ask(soak, "/v1/completions", soak.known.0.to_string().as_bytes());
    let same = |body: &str| {
        let body: Value = serde_json::from_str(body).unwrap_or_default();
        body["choices"][0]["text"] == soak.known.1
    };
    match reply {
        Some((200, body)) if same(&body) => soak.count("known", "unchanged"),
        Some((200, _)) => soak.count("known", "wrong: another answer"),
        reply => soak.count("known", status(&reply)),
    }
}

/// Reads the whole answer to a prompt of up to several prefill chunks.
pub(super) fn answered(soak: &Soak, random: &mut Draws) {
    let tokens = 8 + random.below(60);
    let body = body(random, 900, tokens);
    let reply = ask(soak, "/v1/completions", body.to_string().as_bytes());
    match &reply {
        Some((200, body)) if body.contains("out_of_memory") => {
            soak.count("answered", "no memory, reported late")
        }
        Some((200, body)) if !body.contains("[DONE]") => soak.count("answered", "wrong: no end"),
        _ => soak.count("answered", status(&reply)),
    }
}

fn leaves(soak: &Soak, random: &mut Draws) {
    let body = body(random, 300, 300).to_string();
    let mut stream = client::open(soak.server.address, "POST /v1/completions", HEADERS, body.as_bytes());
    let _ = stream.set_read_timeout(Some(Duration::from_millis(20 + random.below(1000))));
    let _ = stream.read_exact(&mut vec![0; random.below(4000) as usize]);
    soak.count("leaves", "left");
}

fn reads_slowly(soak: &Soak, random: &mut Draws) {
    let body = body(random, 50, 100).to_string();
    let mut stream = client::open(soak.server.address, "POST /v1/completions", HEADERS, body.as_bytes());
    let mut some = [0; 2048];
    while let Ok(1..) = stream.read(&mut some) {
        thread::sleep(Duration::from_millis(if soak.runs() { 50 } else { 0 }));
    }
    soak.count("reads slowly", "to the end");
}

/// Requests more memory than the limit leaves.
fn wants_too_much(soak: &Soak, random: &mut Draws) {
    let mut body = match random.card("excess", EXCESSES) {
        0 => body(random, 10, 1 << 20),
        1 => body(random, 3000, 200),
        _ => {
            json!({ "prompt": words(random, 20), "n": 16, "max_tokens": 150, "ignore_eos": true, "seed": 1 })
        }
    };
    body["timeout"] = json!(10);
    let reply = ask(soak, "/v1/completions", body.to_string().as_bytes());
    soak.count("wants too much", status(&reply));
}

fn chats(soak: &Soak, random: &mut Draws) {
    let turns = (0..1 + random.card("turns", 6)).map(
        |i| json!({ "role": if i % 2 == 0 { "user" } else { "assistant" }, "content": words(random, 30) }),
    );
    let messages: Vec<Value> =
        [json!({ "role": "system", "content": WORDS.join(" ") })].into_iter().chain(turns).collect();
    let body =
        json!({ "messages": messages, "max_tokens": 30, "logprobs": true, "top_logprobs": 3, "timeout": 20 });
    let reply = ask(soak, "/v1/chat/completions", body.to_string().as_bytes());
    soak.count("chats", status(&reply));
}

/// Sends one of several invalid requests.
fn fails(soak: &Soak, random: &mut Draws) {
    let path = ["/v1/chat/completions", "/v1/completions"][random.below(2) as usize];
    let text = match random.card("faults", 9) {
        0 => "{\"messages\": [".into(),
        1 => json!({ "messages": [{ "role": "user", "content": "hi" }], "max_tokens": "many" }).to_string(),
        2 => json!({ "prompt": "hi", "messages": [], "n": 99 }).to_string(),
        3 => json!({ "prompt": "x".repeat(2_000_000), "messages": [7] }).to_string(),
        4 => json!({ "prompt": [1_000_000_000], "messages": [{ "role": "user" }], "model": "other" }).to_string(),
        5 => json!({ "prompt": "a", "temperature": -1, "messages": [{}] }).to_string(),
        6 => json!({ "prompt": "a", "speculation": "nobody", "messages": [{ "role": "user", "content": [{}] }] }).to_string(),
        7 => format!("{{\"prompt\": {}", "[".repeat(5000)),
        _ => json!({ "prompt": words(random, 200), "messages": [{ "role": "user", "content": "a" }], "max_tokens": 300,
            "timeout": 0.05 })
        .to_string(),
    };
    let reply = ask(soak, path, text.as_bytes());
    soak.count("fails", status(&reply));
}

/// Loads the served model again, or an invalid model.
pub(super) fn loads(soak: &Soak, mut random: Random) {
    while soak.runs() {
        let model = ["merlin", "merlin", "/no/such/folder", "/", "org/none"][random.below(5) as usize];
        load(soak, model);
        wait(soak, Duration::from_millis(500 + random.below(5000)));
    }
}

fn load(soak: &Soak, model: &str) {
    let start = Instant::now();
    let reply = ask(soak, "/v1/models/load", json!({ "model": model }).to_string().as_bytes());
    let outcome = status(&reply);
    if outcome == "200" {
        soak.loads.lock().unwrap().push((start, Instant::now()));
    }
    soak.count(if model == "merlin" { "loads" } else { "loads what is no model" }, outcome);
}

/// Keeps up to 20 connections open that send nothing or half a request.
pub(super) fn idle(soak: &Soak, mut random: Random) {
    let mut open: Vec<TcpStream> = vec![];
    while soak.runs() {
        if let Ok(mut stream) = TcpStream::connect(soak.server.address) {
            let _ = stream.write_all(STARTS[random.below(3) as usize].as_bytes());
            open.push(stream);
        }
        if open.len() > 20 {
            open.swap_remove(random.below(20) as usize);
        }
        soak.count("idle connections", "opened");
        wait(soak, Duration::from_millis(100 + random.below(500)));
    }
}

/// Sends a request byte by byte.
pub(super) fn slow_sender(soak: &Soak) {
    let body = soak.known.0.to_string();
    let address = soak.server.address;
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{HEADERS}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    while soak.runs() {
        let Ok(mut stream) = TcpStream::connect(address) else { continue };
        let sent = request.as_bytes().iter().all(|byte| {
            wait(soak, Duration::from_millis(5));
            stream.write_all(&[*byte]).is_ok()
        });
        let mut reply = vec![];
        let _ = stream.read_to_end(&mut reply);
        let answered = reply.starts_with(b"HTTP/1.1 200");
        soak.count("sends slowly", if sent && answered { "answered" } else { "given up" });
    }
}

fn body(random: &mut Draws, most_words: u64, max_tokens: u64) -> Value {
    let priority = ["interactive", "normal", "background"][random.below(3) as usize];
    json!({
        "prompt": words(random, most_words), "seed": random.below(1 << 30), "max_tokens": max_tokens,
        "ignore_eos": true, "priority": priority, "stream": true,
    })
}

fn words(random: &mut Draws, most: u64) -> String {
    let words: Vec<&str> = (0..3 + random.spread(most)).map(|_| WORDS[random.below(8) as usize]).collect();
    words.join(" ")
}

/// Status and body; nothing if the connection ended without an answer.
fn ask(soak: &Soak, path: &str, body: &[u8]) -> Option<(u16, String)> {
    let mut stream = client::open(soak.server.address, &format!("POST {path}"), HEADERS, body);
    let _ = stream.set_read_timeout(Some(SILENCE));
    let mut bytes = vec![];
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

fn status(reply: &Option<(u16, String)>) -> String {
    match reply {
        Some((500, body)) => format!("500 {}", body.chars().take(200).collect::<String>()),
        Some((status, _)) => status.to_string(),
        None => "no answer".into(),
    }
}

/// Sleeps for `time`, or until the test ends.
fn wait(soak: &Soak, time: Duration) {
    let until = Instant::now() + time;
    while soak.runs() && Instant::now() < until {
        thread::sleep(until.saturating_duration_since(Instant::now()).min(Duration::from_millis(50)));
    }
}

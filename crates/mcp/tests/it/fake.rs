//! A fake MCP server, over stdio as a process of its own and over HTTP in this process. Its mode
//! says how it misbehaves.

use std::{
    io::{BufRead, BufReader, Read, Write, stdin, stdout},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use serde_json::{Value, json};

/// The variable with the mode of a process.
const MODE: &str = "FAKE_MCP_MODE";
/// The variable with the path of a file that a process writes its id into.
#[allow(dead_code, reason = "not every suite asks for it")]
pub(crate) const ID_FILE: &str = "FAKE_MCP_ID_FILE";
/// The test that is the process.
const TEST: &str = "fake::process_of_the_fake_server";

/// An entry of `mcpServers` that starts the fake server as a process; `test` is the path of
/// [`process_of_the_fake_server`] in this binary.
pub(crate) fn entry_of(test: &str, mode: &str) -> Value {
    let program = std::env::current_exe().unwrap();
    json!({ "command": program, "args": ["--exact", test, "--ignored", "--nocapture"], "env": { MODE: mode } })
}

#[allow(dead_code, reason = "not every suite starts processes")]
pub(crate) fn entry(mode: &str) -> Value {
    entry_of(TEST, mode)
}

#[test]
#[ignore = "the process of a server"]
fn process_of_the_fake_server() {
    let mode = std::env::var(MODE).unwrap_or_default();
    let fake = Fake::new(&mode);
    if let Ok(path) = std::env::var(ID_FILE) {
        std::fs::write(path, std::process::id().to_string()).unwrap();
    }
    // The test runner has written half a line.
    say("");
    eprintln!("the mode is {mode}");
    match &*mode {
        "dies" => std::process::exit(3),
        "deaf" => thread::sleep(Duration::from_secs(3600)),
        "late" => thread::sleep(Duration::from_millis(1500)),
        _ => {}
    }
    for line in stdin().lock().lines() {
        let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
        fake.misbehave(&message);
        fake.answer(&message).iter().for_each(|answer| say(&answer.to_string()));
    }
    if mode == "stays" {
        thread::sleep(Duration::from_secs(3600));
    }
    std::process::exit(0);
}

fn say(line: &str) {
    let mut out = stdout().lock();
    // The client may be gone.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The server that both transports have.
pub(crate) struct Fake {
    mode: String,
    has_grown: AtomicBool,
    pub calls: AtomicUsize,
    /// Methods of all messages.
    pub methods: Mutex<Vec<String>>,
}

impl Fake {
    fn new(mode: &str) -> Fake {
        Fake {
            mode: mode.to_owned(),
            has_grown: AtomicBool::default(),
            calls: AtomicUsize::default(),
            methods: Mutex::default(),
        }
    }

    /// Faults of a process before it answers.
    fn misbehave(&self, message: &Value) {
        let method = message["method"].as_str().unwrap_or_default();
        match (&*self.mode, method) {
            ("silent", _) => thread::sleep(Duration::from_secs(3600)),
            ("garbage", "tools/list") => {
                (0..50).for_each(|_| say("{\"jsonrpc\": \"2.0\", \"id\": 2, \"resu"))
            }
            ("endless", "tools/call") => loop {
                let _ = stdout().write_all(&[b'x'; 1 << 16]);
            },
            ("flood", "tools/call") => loop {
                say(
                    r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"again and again"}}"#,
                );
            },
            ("blank_lines", "tools/call") => loop {
                let _ = stdout().write_all(&[b'\n'; 1 << 12]);
            },
            ("short_lines", "tools/call") => loop {
                let _ = stdout().write_all(&b"x\n".repeat(1 << 11));
            },
            ("crash", "tools/call") => std::process::exit(7),
            ("chatty", "tools/call") => (0..20_000).for_each(|n| eprintln!("line {n} with secret-value")),
            ("grandchild", "tools/call") => {
                // It has to outlive this process: the client ends it with the group.
                #[expect(clippy::zombie_processes)]
                let child = std::process::Command::new("sleep").arg("3600").spawn().unwrap();
                eprintln!("grandchild {}", child.id());
                say(&text_result(message, &child.id().to_string()).to_string());
            }
            _ => {}
        }
    }

    /// The messages that answer one.
    pub(crate) fn answer(&self, message: &Value) -> Vec<Value> {
        let method = message["method"].as_str().unwrap_or_default();
        self.methods.lock().unwrap().push(method.to_owned());
        let result = |result: Value| vec![json!({ "jsonrpc": "2.0", "id": message["id"], "result": result })];
        let error = |code: i64, text: &str| {
            vec![json!({ "jsonrpc": "2.0", "id": message["id"], "error": { "code": code, "message": text } })]
        };
        match method {
            "initialize" | "server/discover" if (method == "initialize") == (self.mode == "stateless") => {
                error(-32601, "no such method")
            }
            "initialize" => {
                let version = match &*self.mode {
                    "future" => "2099-01-01",
                    "leaks" => "a-long-version-with-a-secret-value",
                    _ => "2025-06-18",
                };
                let tools = json!({ "tools": { "listChanged": true } });
                let info = json!({ "name": "fake", "version": "1" });
                result(json!({ "protocolVersion": version, "capabilities": tools, "serverInfo": info }))
            }
            "server/discover" => {
                result(json!({ "supportedVersions": ["2026-07-28"], "capabilities": { "tools": {} } }))
            }
            "tools/list" => result(self.page(&message["params"]["cursor"])),
            "tools/call" => self.call(message),
            _ if message.get("id").is_none() || message.get("method").is_none() => vec![],
            _ => error(-32601, "no such method"),
        }
    }

    fn page(&self, cursor: &Value) -> Value {
        let page: usize = cursor.as_str().map_or(0, |cursor| cursor.parse().unwrap());
        match &*self.mode {
            "hundred_thousand" => {
                let tools: Vec<Value> =
                    (0..100_000).map(|n| json!({ "name": format!("tool_{n}") })).collect();
                json!({ "tools": tools })
            }
            "endless_pages" => json!({ "tools": [], "nextCursor": (page + 1).to_string() }),
            "pages" if page < 2 => {
                json!({ "tools": [{ "name": format!("page_{page}") }], "nextCursor": (page + 1).to_string() })
            }
            "faulty_schema" => {
                let pattern =
                    json!({ "type": "object", "properties": { "a": { "type": "string", "pattern": "(" } } });
                json!({ "tools": [{ "name": "odd", "inputSchema": pattern }, self.tools()[0]] })
            }
            _ => json!({ "tools": self.tools() }),
        }
    }

    fn tools(&self) -> Vec<Value> {
        let schema = |name: &str, kind: &str| json!({ "type": "object", "properties": { name: { "type": kind } }, "required": [name] });
        let mut tools = vec![
            json!({ "name": "echo", "description": "Repeats a text.", "inputSchema": schema("text", "string") }),
            json!({ "name": "fail", "description": "Fails.", "inputSchema": { "type": "object" } }),
            json!({ "name": "slow", "description": "Waits.", "inputSchema": schema("ms", "integer") }),
            json!({ "name": "big", "description": "A long text.", "inputSchema": schema("bytes", "integer") }),
            json!({ "name": "grow", "description": "Adds a tool.", "inputSchema": { "type": "object" } }),
        ];
        if self.has_grown.load(Ordering::Relaxed) {
            tools
                .push(json!({ "name": "grown", "description": "New.", "inputSchema": { "type": "object" } }));
        }
        tools
    }

    fn call(&self, message: &Value) -> Vec<Value> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let arguments = &message["params"]["arguments"];
        let number = |name: &str| arguments[name].as_u64().unwrap_or_default();
        match message["params"]["name"].as_str().unwrap_or_default() {
            "echo" => vec![text_result(message, arguments["text"].as_str().unwrap_or_default())],
            "fail" => {
                let content = json!([{ "type": "text", "text": "it failed, as it should" }]);
                let result = json!({ "content": content, "isError": true });
                vec![json!({ "jsonrpc": "2.0", "id": message["id"], "result": result })]
            }
            "slow" => {
                thread::sleep(Duration::from_millis(number("ms")));
                vec![text_result(message, "at last")]
            }
            "big" => vec![text_result(message, &"x".repeat(number("bytes") as usize))],
            "grow" => {
                self.has_grown.store(true, Ordering::Relaxed);
                let changed = json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" });
                vec![changed, text_result(message, "grown")]
            }
            "leak" => {
                let text = format!("{} secret-value", "y".repeat(493));
                let error = json!({ "code": -32000, "message": text });
                vec![json!({ "jsonrpc": "2.0", "id": message["id"], "error": error })]
            }
            other => {
                let error = json!({ "code": -32602, "message": format!("no tool {other}; the token is secret-value") });
                vec![json!({ "jsonrpc": "2.0", "id": message["id"], "error": error })]
            }
        }
    }
}

fn text_result(message: &Value, text: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": message["id"], "result": { "content": [{ "type": "text", "text": text }] } })
}

/// The fake server over HTTP, for the rest of the test's process.
pub(crate) struct HttpFake {
    pub address: SocketAddr,
    pub fake: Arc<Fake>,
    /// Heads of all requests.
    #[allow(dead_code, reason = "not every suite reads them")]
    pub heads: Arc<Mutex<Vec<String>>>,
}

impl HttpFake {
    pub(crate) fn start(mode: &str) -> HttpFake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (fake, heads) = (Arc::new(Fake::new(mode)), Arc::new(Mutex::new(vec![])));
        let server = HttpFake { address, fake: fake.clone(), heads: heads.clone() };
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (fake, heads) = (fake.clone(), heads.clone());
                thread::spawn(move || serve(&stream.unwrap(), &fake, &heads));
            }
        });
        server
    }

    pub(crate) fn entry(&self) -> Value {
        json!({ "url": format!("http://{}/mcp", self.address), "headers": { "Authorization": "Bearer secret-value" } })
    }
}

fn serve(stream: &TcpStream, fake: &Fake, heads: &Mutex<Vec<String>>) {
    let mut from = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if from.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        let lower = head.to_ascii_lowercase();
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        from.read_exact(&mut body).unwrap();
        heads.lock().unwrap().push(lower.clone());
        let message: Value = serde_json::from_slice(&body).unwrap_or_default();
        let answer = http_answer(fake, &lower, &message, heads);
        if (&*stream).write_all(answer.as_bytes()).is_err() || answer.contains("connection: close") {
            return;
        }
    }
}

/// Head of an answer whose stream ends with its connection.
const STREAM_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";

fn http_answer(fake: &Fake, head: &str, message: &Value, heads: &Mutex<Vec<String>>) -> String {
    let whole = |status: &str, more: &str, body: &str| {
        format!("HTTP/1.1 {status}\r\n{more}content-length: {}\r\n\r\n{body}", body.len())
    };
    let is_first = |part: &str| heads.lock().unwrap().iter().filter(|head| head.contains(part)).count() < 2;
    match &*fake.mode {
        "unauthorized" => return whole("401 Unauthorized", "", ""),
        "redirect" => return whole("307 Temporary Redirect", "location: http://127.0.0.1:9/\r\n", ""),
        "stream_of_blank_lines" | "stream_that_ends" if head.starts_with("get ") => {
            let lines = if fake.mode == "stream_that_ends" { 0 } else { 1 << 20 };
            return format!("{STREAM_HEAD}{}", "\n".repeat(lines));
        }
        "comments" if message["method"] == "tools/call" => {
            return format!("{STREAM_HEAD}{}", ":\n\n".repeat(1 << 20));
        }
        _ if head.starts_with("get ") => return whole("405 Method Not Allowed", "", ""),
        _ if head.starts_with("delete ") => return whole("200 OK", "", ""),
        // The session of the first call is gone.
        "expires"
            if message["method"] == "tools/call" && is_first("session-2") && !head.contains("session-2") =>
        {
            return whole("404 Not Found", "", "");
        }
        _ => {}
    }
    let session = match (&*fake.mode, message["method"].as_str()) {
        ("stateless", _) => String::new(),
        ("expires", Some("initialize")) => {
            let started =
                fake.methods.lock().unwrap().iter().filter(|method| *method == "initialize").count();
            format!("mcp-session-id: session-{}\r\n", started + 1)
        }
        (_, Some("initialize")) => "mcp-session-id: session-1\r\n".into(),
        _ => String::new(),
    };
    let answers = fake.answer(message);
    match (&*fake.mode, answers.as_slice()) {
        (_, []) => whole("202 Accepted", "", ""),
        ("stateless", [answer]) if answer["error"].is_object() => {
            whole("400 Bad Request", "content-type: application/json\r\n", &answer.to_string())
        }
        ("endless", _) if message["method"] == "tools/call" => {
            let data = "x".repeat(9 << 20);
            format!("{STREAM_HEAD}data: {data}")
        }
        (_, [answer]) if fake.mode != "sse" => {
            let headers = format!("content-type: application/json\r\n{session}");
            whole("200 OK", &headers, &answer.to_string())
        }
        (_, answers) => {
            let events: String =
                answers.iter().map(|answer| format!("event: message\ndata: {answer}\n\n")).collect();
            let headers = format!("content-type: text/event-stream\r\n{session}");
            whole("200 OK", &headers, &events)
        }
    }
}

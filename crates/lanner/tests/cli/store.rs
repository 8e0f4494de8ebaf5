//! The store: conversations over HTTP and in the terminal, figures of requests, and logs in JSON.

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use ::store::{RequestRecord, Store};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    client::{self, Reply},
    process::{ServerProcess, lanner},
    server::{Setup, TestServer, token},
    wait::{output_of, status_of, wait_until},
};

const KEYS: &str = "ann:key-of-ann\nbob:key-of-bob\n";

struct Stored {
    server: TestServer,
    store: Store,
    _folder: TempDir,
}

fn stored(setup: Setup) -> Stored {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store.db")).unwrap().store;
    let server = Setup { store: Some(store.clone()), ..setup }.says("Owls hunt at night.");
    Stored { server, store, _folder: folder }
}

impl Stored {
    fn send(&self, key: &str, line: &str, body: &Value) -> Reply {
        let headers = format!("Content-Type: application/json\r\nAuthorization: Bearer {key}\r\n");
        let body = if body.is_null() { String::new() } else { body.to_string() };
        client::request(self.server.address, line, &headers, body.as_bytes())
    }

    /// An answer with status 200.
    fn ask(&self, key: &str, line: &str, body: &Value) -> Value {
        let reply = self.send(key, line, body);
        assert_eq!(reply.status, 200, "{line}: {}", reply.body);
        reply.json()
    }

    /// Figures of all requests so far, the first one first.
    fn records(&self, count: usize) -> Vec<RequestRecord> {
        let begun = std::time::Instant::now();
        loop {
            // A request is recorded after its last byte was sent.
            self.store.flush().unwrap();
            let mut records = self.store.requests(100).unwrap();
            if records.len() >= count {
                records.reverse();
                return records;
            }
            assert!(begun.elapsed().as_secs() < 60, "{records:?}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

fn message(id: &str, parent: Option<&str>, role: &str, text: &str) -> Value {
    json!({ "id": id, "parent": parent, "role": role, "text": text, "created": 1 })
}

#[test]
fn conversation_is_made_extended_found_and_removed() {
    let stored = stored(Setup::default());
    let question = message("m1", None, "user", "Which birds hunt at night?");
    let made = stored.ask("", "PUT /v1/history/c1", &json!({ "leaf": "m1", "messages": { "m1": question } }));
    assert_eq!((&made["title"], &made["messages"]), (&json!("Which birds hunt at night?"), &json!(1)));
    let mut answer = message("m2", Some("m1"), "assistant", "猫头鹰");
    answer["timings"] = json!({ "prompt_ms": 1.5 });
    stored.ask(
        "",
        "PUT /history/c1",
        &json!({ "leaf": "m2", "title": "Owls", "messages": { "m2": answer } }),
    );
    let read = stored.ask("", "GET /v1/history/c1", &Value::Null);
    assert_eq!((&read["leaf"], &read["messages"]["m2"]), (&json!("m2"), &answer));
    assert_eq!(read["messages"]["m1"], question);
    for search in ["owls", "hunt+night", "%E7%8C%AB%E5%A4%B4", "BIRDS%20hunt"] {
        let found = stored.ask("", &format!("GET /v1/history?search={search}"), &Value::Null);
        assert_eq!(found["data"][0]["id"], "c1", "{search}: {found}");
    }
    let found = stored.ask("", "GET /v1/history?search=heron", &Value::Null);
    assert_eq!((&found["data"], &found["next"]), (&json!([]), &Value::Null));
    assert_eq!(stored.ask("", "DELETE /v1/history/c1", &Value::Null)["deleted"], true);
    let gone = stored.send("", "GET /v1/history/c1", &Value::Null);
    assert_eq!((gone.status, &gone.json()["error"]["code"]), (404, &json!("conversation_not_found")));
}

#[test]
fn history_comes_in_pages() {
    let stored = stored(Setup::default());
    for number in 0..5 {
        let body = json!({ "title": format!("t{number}"), "created": number, "updated": number });
        stored.ask("", &format!("PUT /v1/history/c{number}"), &body);
    }
    let (mut ids, mut line) = (vec![], "GET /v1/history?limit=2".to_owned());
    loop {
        let page = stored.ask("", &line, &Value::Null);
        ids.extend(page["data"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        line = format!("GET /v1/history?limit=2&after={next}");
    }
    assert_eq!(ids, ["c4", "c3", "c2", "c1", "c0"]);
}

#[test]
fn wrong_conversations_are_refused_with_the_field() {
    let stored = stored(Setup::default());
    let check = |line: &str, body: Value, param: &str| {
        let reply = stored.send("", line, &body);
        assert_eq!(reply.status, 400, "{line} {body}: {}", reply.body);
        assert_eq!(reply.json()["error"]["param"], param, "{}", reply.body);
    };
    let messages = |one: Value| json!({ "messages": { "m": one } });
    check("PUT /v1/history/a.b", json!({}), "id");
    check("PUT /v1/history/c", json!({ "title": "" }), "title");
    check("PUT /v1/history/c", json!({ "leaf": "gone" }), "leaf");
    check("PUT /v1/history/c", json!({ "updated": "now" }), "updated");
    check("PUT /v1/history/c", messages(message("m", Some("gone"), "user", "x")), "messages.m.parent");
    check("GET /v1/history?limit=0", Value::Null, "limit");
    check("GET /v1/history?limit=101", Value::Null, "limit");
    check("GET /v1/history?after=x", Value::Null, "after");
    check("GET /v1/stats/history?by=week", Value::Null, "by");
    check("GET /v1/stats/history?days=0", Value::Null, "days");
    assert_eq!(stored.ask("", "GET /v1/history", &Value::Null)["data"], json!([]));
}

#[test]
fn keys_see_their_own_conversations() {
    let stored = stored(Setup { api_keys: KEYS, ..Setup::default() });
    let body = |text: &str| json!({ "messages": { "m": message("m", None, "user", text) } });
    stored.ask("key-of-ann", "PUT /v1/history/c", &body("about falcons"));
    stored.ask("key-of-bob", "PUT /v1/history/c", &body("about herons"));
    stored.ask("key-of-bob", "PUT /v1/history/d", &body("about storks"));
    assert_eq!(stored.ask("key-of-ann", "GET /v1/history/c", &Value::Null)["title"], "about falcons");
    let listed = stored.ask("key-of-ann", "GET /v1/history", &Value::Null);
    assert_eq!(listed["data"].as_array().unwrap().len(), 1, "{listed}");
    let found = stored.ask("key-of-ann", "GET /v1/history?search=about", &Value::Null);
    assert_eq!(found["data"].as_array().unwrap().len(), 1, "{found}");
    for line in ["GET /v1/history/d", "DELETE /v1/history/d"] {
        assert_eq!(stored.send("key-of-ann", line, &Value::Null).status, 404, "{line}");
    }
    assert_eq!(stored.send("wrong", "GET /v1/history", &Value::Null).status, 401);
    assert_eq!(stored.ask("key-of-bob", "GET /v1/history/d", &Value::Null)["title"], "about storks");
}

#[test]
fn routes_are_off_without_a_store_and_without_administration() {
    let off = Setup::default().says("x");
    for path in ["/v1/history", "/v1/history/c", "/v1/stats/history"] {
        let reply = client::get(off.address, path);
        assert_eq!((reply.status, &reply.json()["error"]["code"]), (404, &json!("store_disabled")), "{path}");
    }
    let stored = stored(Setup { admin: false, ..Setup::default() });
    let reply = stored.send("", "GET /v1/history", &Value::Null);
    assert_eq!((reply.status, &reply.json()["error"]["code"]), (403, &json!("admin_disabled")));
    assert_eq!(stored.send("", "GET /v1/stats/history", &Value::Null).status, 200);
}

#[test]
fn every_request_is_recorded_without_its_text() {
    let stored = stored(Setup { api_keys: KEYS, ..Setup::default() });
    let secret = "the-secret-word";
    let user = json!([{ "role": "user", "content": secret }]);
    let body = json!({ "messages": user });
    stored.ask("key-of-ann", "POST /v1/chat/completions", &body);
    let streamed = json!({ "messages": user, "stream": true });
    assert!(stored.send("key-of-bob", "POST /v1/chat/completions", &streamed).is_done());
    stored.ask("key-of-ann", "POST /v1/messages", &json!({ "messages": user, "max_tokens": 3 }));
    let refused = json!({ "messages": user, "temperature": -1, "model": secret });
    assert_ne!(stored.send("key-of-ann", "POST /v1/chat/completions", &refused).status, 200);
    assert_eq!(stored.send(secret, "POST /v1/chat/completions", &body).status, 401);
    assert_eq!(stored.send("key-of-ann", &format!("GET /{secret}"), &Value::Null).status, 404);
    assert_eq!(stored.send("key-of-ann", &format!("GET /v1/models/{secret}"), &Value::Null).status, 404);
    // Polled, and the page's own.
    for line in ["GET /health", "GET /metrics", "GET /v1/stats", "GET /v1/history"] {
        assert_eq!(stored.send("key-of-ann", line, &Value::Null).status, 200);
    }
    stored.ask("key-of-ann", "POST /tokenize", &json!({ "content": secret }));
    let records = stored.records(8);
    let shown: Vec<(&str, u16, &str, &str, &str)> = records
        .iter()
        .map(|one| (&*one.route, one.status, &*one.outcome, &*one.key, &*one.finish_reason))
        .collect();
    assert_eq!(
        shown,
        [
            ("POST /v1/chat/completions", 200, "answered", "ann", "stop"),
            ("POST /v1/chat/completions", 200, "answered", "bob", "stop"),
            ("POST /v1/messages", 200, "answered", "ann", "length"),
            ("POST /v1/chat/completions", records[3].status, "invalid", "ann", ""),
            ("POST /v1/chat/completions", 401, "", "", ""),
            ("GET (none)", 404, "", "ann", ""),
            ("GET /v1/models/{*id}", 404, "", "ann", ""),
            ("POST /tokenize", 200, "", "ann", ""),
        ]
    );
    let [whole, streamed] = [&records[0], &records[1]];
    assert_eq!((&*whole.model, whole.completion_tokens), ("owl", 20));
    assert!(whole.prompt_tokens > 20 && whole.prompt_tokens == streamed.prompt_tokens);
    assert!(streamed.time_to_first_token_ms.is_some() && streamed.duration_ms > 0.0);
    assert!(whole.at > 1_700_000_000_000 && whole.id.starts_with("req_"));
    let all = serde_json::to_string(&records).unwrap();
    assert!(!all.contains(secret) && !all.contains("Owls hunt"), "{all}");
    let history = stored.ask("key-of-bob", "GET /v1/stats/history", &Value::Null);
    let owl = history["data"].as_array().unwrap().iter().find(|sum| sum["model"] == "owl").unwrap();
    assert_eq!((&owl["requests"], &owl["failed"]), (&json!(3), &json!(0)), "{history}");
    assert_eq!(owl["tokens"]["generated"], 20 + 20 + 3);
}

#[test]
fn cancelled_stream_is_recorded_with_its_tokens() {
    let setup = Setup { delay: std::time::Duration::from_millis(5), ..Setup::default() };
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store.db")).unwrap().store;
    let server = Setup { store: Some(store.clone()), ..setup }.script(|_, _| token(65));
    let stored = Stored { server, store, _folder: folder };
    let body = json!({ "prompt": "hi", "max_tokens": 900, "stream": true }).to_string();
    let headers = "Content-Type: application/json\r\n";
    let mut stream = client::open(stored.server.address, "POST /v1/completions", headers, body.as_bytes());
    let mut buffer = [0; 2000];
    std::io::Read::read_exact(&mut stream, &mut buffer).unwrap();
    drop(stream);
    let record = stored.records(1).remove(0);
    assert_eq!((&*record.outcome, record.status, record.prompt_tokens), ("cancelled", 200, 2));
    assert!((1..900).contains(&record.completion_tokens), "{record:?}");
}

fn stdout(args: &[&str], store: &Path) -> String {
    let output = lanner(args, &[("LANNER_STORE", store.to_str().unwrap())]);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Sends lines to `lanner chat`; returns what it says on stderr.
fn chat(lines: &str, args: &[&str], store: &Path) -> String {
    let mut child = Command::new(env!("CARGO_BIN_EXE_lanner"))
        .env_clear()
        .args([
            "chat",
            "--device",
            "cpu",
            "--max-tokens",
            "8",
            "--no-think",
            "--store",
            store.to_str().unwrap(),
        ])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = output_of(child).unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    said
}

#[test]
fn chat_is_saved_and_continued() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store.db");
    let list = || -> Value { serde_json::from_str(&stdout(&["history", "list", "--json"], &store)).unwrap() };
    chat("Hello there\n", &["--system", "Be terse."], &store);
    let first = list();
    assert_eq!((&first[0]["title"], &first[0]["messages"]), (&json!("Hello there"), &json!(2)), "{first}");
    assert_eq!(first[0]["model"], "merlin");
    let said = chat("Second question\n/clear\nAnother one\n", &["--continue"], &store);
    assert!(said.contains("(continuing \"Hello there\" after 2 messages)"), "{said}");
    let both = list();
    assert_eq!((&both[0]["title"], &both[0]["messages"]), (&json!("Another one"), &json!(2)), "{both}");
    assert_eq!((&both[1]["id"], &both[1]["messages"]), (&first[0]["id"], &json!(4)), "{both}");
    let id = first[0]["id"].as_str().unwrap();
    let shown = stdout(&["history", "show", &id[..6]], &store);
    assert!(
        shown.starts_with("# Hello there\n\n## System prompt\n\nBe terse.\n\n## You\n\nHello there\n"),
        "{shown}"
    );
    assert!(shown.contains("## You\n\nSecond question\n\n## Model\n"), "{shown}");
    // Nothing of this one.
    chat("A secret\n", &["--no-history"], &store);
    assert_eq!(list(), both);
    let output = lanner(&["chat", "--continue", "nothing"], &[("LANNER_STORE", store.to_str().unwrap())]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("there is no conversation `nothing`"), "{said}");
}

#[test]
fn history_lists_exports_imports_renames_and_removes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let output = lanner(&["history", "list"], &[("LANNER_STORE", path.to_str().unwrap())]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("there are no conversations in "), "{said}");
    assert!(!path.exists());

    let file = folder.path().join("export.json");
    let conversation = |id: &str, text: &str| {
        json!({ "id": id, "title": text, "created": 1, "updated": 1, "leaf": "m",
                "messages": { "m": message("m", None, "user", text) }, "settings": {} })
    };
    let export = json!({ "format": "lanner-conversations", "version": 1,
        "conversations": [conversation("c1", "About owls"), conversation("c2", "About 天气")] });
    fs::write(&file, export.to_string()).unwrap();
    stdout(&["history", "import", file.to_str().unwrap()], &path);
    let table = stdout(&["history", "list", "owls"], &path);
    assert!(table.contains("c1") && table.contains("About owls") && !table.contains("c2"), "{table}");
    assert_eq!(stdout(&["history", "list", "天气", "-n", "1"], &path).lines().count(), 2);
    stdout(&["history", "rename", "c2", "Weather"], &path);
    let exported: Value = serde_json::from_str(&stdout(&["history", "export"], &path)).unwrap();
    assert_eq!(exported["conversations"].as_array().unwrap().len(), 2);
    let markdown = stdout(&["history", "export", "c2", "--format", "markdown"], &path);
    assert_eq!(markdown, "# Weather\n\n## You\n\nAbout 天气\n");
    stdout(&["history", "rm", "c1"], &path);
    assert_eq!(stdout(&["history", "list"], &path).lines().count(), 2);
    let output = lanner(&["history", "rm", "--all"], &[("LANNER_STORE", path.to_str().unwrap())]);
    assert!(String::from_utf8(output.stderr).unwrap().contains("add --yes"));
    stdout(&["history", "rm", "--all", "--yes"], &path);
    assert_eq!(stdout(&["history", "list", "--json"], &path).trim(), "[]");
}

#[test]
fn server_stores_figures_for_stats_and_logs_in_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let log = folder.path().join("log");
    let mut child = Command::new(env!("CARGO_BIN_EXE_lanner"))
        .env_clear()
        .args(["serve", "--port", "0", "--device", "cpu", "--store", path.to_str().unwrap()])
        .args(["--log", "info", "--log-format", "json"])
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let lines = || -> Vec<Value> {
        let text = fs::read_to_string(&log).unwrap();
        let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
    };
    let mut address = None;
    wait_until("it serves", || {
        address = lines().iter().find_map(|line| {
            let message = line["message"].as_str()?;
            message.split_once("http://")?.1.split_once("/v1")?.0.parse().ok()
        });
        address.is_some()
    });
    let body = json!({ "prompt": "The owl", "max_tokens": 4 });
    let reply = client::request(
        address.unwrap(),
        "POST /v1/completions",
        "Content-Type: application/json\r\nX-Request-Id: my-request\r\n",
        body.to_string().as_bytes(),
    );
    assert_eq!(reply.status, 200, "{}", reply.body);
    // Figures of the last second are stored when it stops.
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    status_of(&mut child);
    let lines = lines();
    let request = lines.iter().find(|line| line["request"]["id"] == "my-request").expect("a request");
    assert_eq!(
        (&request["level"], &request["request"]["route"]),
        (&json!("INFO"), &json!("POST /v1/completions"))
    );
    assert_eq!(
        (&request["request"]["status"], &request["request"]["completion_tokens"]),
        (&json!(200), &json!(4))
    );
    assert!(request["message"].as_str().unwrap().starts_with("POST /v1/completions 200 answered, "));
    assert!(lines.iter().all(|line| line["time"].is_string() && line["message"].is_string()), "{lines:?}");

    let days: Value = serde_json::from_str(&stdout(&["stats", "--json"], &path)).unwrap();
    assert_eq!((&days[0]["model"], &days[0]["requests"]), (&json!("merlin"), &json!(1)), "{days}");
    assert_eq!(days[0]["tokens"]["generated"], 4);
    let table = stdout(&["stats", "--days", "2"], &path);
    assert!(table.starts_with("day ") && table.contains("merlin"), "{table}");
    let requests = stdout(&["stats", "--requests", "5"], &path);
    assert!(requests.contains("my-request") && requests.contains("POST /v1/completions"), "{requests}");
}

#[test]
fn store_that_cannot_be_opened_ends_the_server_only_if_it_was_named() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("lanner/store.db");
    fs::create_dir_all(text.parent().unwrap()).unwrap();
    fs::write(&text, "this is no store at all").unwrap();
    let output = lanner(&["serve", "--port", "0", "--store", text.to_str().unwrap()], &[]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("is no store of Lanner"), "{said}");
    let home = folder.path().to_str().unwrap();
    let server = ServerProcess::start_with(&[], &[("XDG_DATA_HOME", home), ("LANNER_NO_STORE", "false")]);
    assert_eq!(client::get(server.address, "/v1/history").status, 404);
    assert_eq!(fs::read_to_string(&text).unwrap(), "this is no store at all");
    server.stop();
}

//! `ps`, `stop`, `show` and `paths`: what runs, what is there, and where.

use std::{
    io::{Read, Write},
    net::TcpListener,
    thread::{self, JoinHandle},
};

use serde_json::{Value, json};

use crate::support::{client, process::lanner, server::Setup, terminal::Terminal};

fn stdout(args: &[&str], env: &[(&str, &str)]) -> String {
    let output = lanner(args, env);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn stderr(args: &[&str], env: &[(&str, &str)]) -> String {
    let output = lanner(args, env);
    assert!(!output.status.success() && output.stdout.is_empty(), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn ps_lists_the_models_of_a_running_server() {
    let server = Setup { api_key: Some("secret"), ..Setup::default() }.says("x");
    let port = server.address.port().to_string();
    let env = [("LANNER_PORT", &*port), ("LANNER_API_KEY", "secret")];
    let table = stdout(&["ps"], &env);
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["model", "state", "context", "weights"]);
    assert_eq!(lines[1][..3], ["owl", "loaded", "1000"]);
    let flags = ["ps", "--json", "--host", "localhost", "--port", &port, "--api-key", "secret"];
    let models: Value = serde_json::from_str(&stdout(&flags, &[])).unwrap();
    assert_eq!((models.as_array().map(Vec::len), &models[0]["id"]), (Some(1), &json!("owl")));
    let refused = stderr(&["ps", "--port", &port], &[]);
    assert!(refused.contains(&format!("the server at http://127.0.0.1:{port} answers 401")), "{refused}");
    assert!(refused.contains("requires an API key"), "{refused}");
}

#[test]
fn top_prints_a_reading_where_there_is_no_terminal() {
    let server = Setup { api_key: Some("secret"), ..Setup::default() }.says("x");
    let port = server.address.port().to_string();
    let body = json!({ "prompt": "a", "max_tokens": 2 }).to_string();
    let headers = "Authorization: Bearer secret\r\nContent-Type: application/json\r\n";
    let reply = client::request(server.address, "POST /v1/completions", headers, body.as_bytes());
    assert_eq!(reply.status, 200, "{}", reply.body);
    let text = stdout(&["top", "--port", &port], &[("LANNER_API_KEY", "secret")]);
    for part in [&*format!(" at http://127.0.0.1:{port}, up "), "ended: 1 answered\n", "owl    loaded  1000"]
    {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
    assert!(stderr(&["top", "--port", &port], &[]).contains("answers 401"));
    assert!(stderr(&["top", "--interval", "0"], &[]).contains("--interval"));
}

#[test]
fn top_redraws_a_terminal_until_ctrl_c() {
    let server = Setup::default().says("x");
    let command = format!("exec {} top --port {}", env!("CARGO_BIN_EXE_lanner"), server.address.port());
    let Some(mut terminal) = Terminal::open(&command) else {
        return eprintln!("skipped: there is no `script` to open a terminal");
    };
    terminal.wait_for("ended: none");
    server.complete(&json!({ "prompt": "a", "max_tokens": 1 }));
    terminal.wait_for("ended: 1 answered");
    terminal.keys("\x03");
    terminal.wait_for("\x1b[?1049l");
}

#[test]
fn commands_without_a_server_say_that_none_runs() {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    for args in [&["ps"] as &[&str], &["stop", "owl"], &["top"]] {
        let error = stderr(&[args, &["--port", &unused]].concat(), &[]);
        assert!(error.contains("no Lanner server answers at http://127.0.0.1:"), "{error}");
        assert!(error.contains("hint: start one with lanner serve"), "{error}");
    }
}

/// Answers one request with a body of JSON; the thread returns the request.
fn answering(body: &'static str) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let thread = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        let mut request = vec![];
        while !request.ends_with(b"}") {
            let mut buffer = [0; 1024];
            let length = stream.read(&mut buffer).unwrap();
            assert!(length > 0, "the request ended within {:?}", String::from_utf8_lossy(&request));
            request.extend(&buffer[..length]);
        }
        let length = body.len();
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
            .unwrap();
        String::from_utf8(request).unwrap()
    });
    (port, thread)
}

#[test]
fn stop_asks_the_server_to_unload_the_model() {
    let (port, request) = answering(r#"{"id": "owl", "object": "model", "state": "on_disk"}"#);
    stdout(&["stop", "owl", "--port", &port, "--api-key", "k"], &[]);
    let request = request.join().unwrap();
    assert!(request.starts_with("POST /v1/models/unload HTTP/1.1\r\n"), "{request}");
    assert!(request.to_ascii_lowercase().contains("authorization: bearer k\r\n"), "{request}");
    assert!(request.ends_with(r#"{"model":"owl"}"#), "{request}");
}

#[test]
fn show_describes_a_model_without_loading_it() {
    let table = stdout(&["show", "merlin"], &[]);
    assert!(table.lines().any(|line| line.starts_with("name ") && line.ends_with("merlin")), "{table}");
    assert!(table.contains("built in"), "{table}");
    let model: Value = serde_json::from_str(&stdout(&["show", "merlin", "--json"], &[])).unwrap();
    assert_eq!(
        (&model["name"], &model["path"], &model["chat_template"]),
        (&json!("merlin"), &Value::Null, &json!(true))
    );
    assert!(
        model["context_length"].as_u64() > Some(100) && model["size_bytes"].as_u64() > Some(1000),
        "{model}"
    );
    let error = stderr(&["show", "nothing"], &[("HOME", "/nowhere")]);
    assert!(error.contains("there is no model `nothing`"), "{error}");
}

#[test]
fn paths_shows_where_data_lies() {
    let env = [("HOME", "/home/owl"), ("HF_HUB_CACHE", "/models"), ("XDG_CACHE_HOME", "/cache")];
    let paths: Value = serde_json::from_str(&stdout(&["paths", "--json"], &env)).unwrap();
    assert_eq!(
        paths,
        json!({
            "config": "/home/owl/.config/lanner/config.toml",
            "models": "/models",
            "prefixes": "/cache/lanner/state",
            "kernels": "/cache/lanner/kernels",
            "store": "/home/owl/.local/share/lanner/store.db",
            "mcp": "/home/owl/.config/lanner/mcp.json",
            "history": "/home/owl/.local/state/lanner/chat-history",
            "agents": "/home/owl/.local/state/lanner/agents",
            "service": "/home/owl/.local/state/lanner/service",
            "uses": "/home/owl/.local/state/lanner/uses",
        })
    );
    let env = [("HOME", "/home/owl"), ("LANNER_STORE", "/data/s.db"), ("LANNER_CACHE_DIR", "/data/p")];
    let paths: Value = serde_json::from_str(&stdout(&["paths", "--json"], &env)).unwrap();
    assert_eq!([&paths["store"], &paths["prefixes"]], ["/data/s.db", "/data/p"]);
    let table = stdout(&["paths"], &[]);
    assert_eq!(table.lines().count(), 10, "{table}");
}

#[test]
fn list_is_the_same_as_models() {
    let home = tempfile::tempdir().unwrap();
    let env = [("HOME", home.path().to_str().unwrap())];
    assert_eq!(stdout(&["list"], &env), stdout(&["models"], &env));
}

#[test]
fn short_help_is_shorter_and_in_order_of_use() {
    let [short, long] = ["-h", "--help"].map(|flag| stdout(&["serve", flag], &[]));
    assert!(short.contains("--port") && !short.contains("--header-timeout"), "{short}");
    assert!(long.contains("--header-timeout") && short.lines().count() * 2 < long.lines().count());
    let all = stdout(&["-h"], &[]);
    let at =
        |command: &str| all.find(&format!("\n  {command} ")).unwrap_or_else(|| panic!("{command}: {all}"));
    let order =
        ["run", "chat", "serve", "start", "stop", "pull", "models", "show", "ps", "rm", "bench"].map(at);
    assert!(order.is_sorted(), "{all}");
}

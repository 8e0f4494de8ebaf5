//! `run`, `chat` and `serve` with a real model: a small recorded checkpoint of the engine's tests.

use std::{
    io::{BufRead, BufReader, Read, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    checkpoint, client,
    process::lanner,
    server::{TEMPLATE, tokenizer_json},
    wait::{output_of, status_of, wait_until},
};

const DEVICE: [&str; 4] = ["--device", "cpu", "--dtype", "float32"];

/// A checkpoint's folder, and its golden by transformers.
fn model() -> (TempDir, Value) {
    let folder = checkpoint::folder("qwen3_5-hub");
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer_json()).unwrap();
    std::fs::write(folder.path().join("chat_template.jinja"), TEMPLATE).unwrap();
    let golden = std::fs::read_to_string(checkpoint::recorded().join("qwen3_5-hub/golden.json")).unwrap();
    (folder, serde_json::from_str(&golden).unwrap())
}

/// stdout of a command that must succeed.
fn stdout(folder: &TempDir, command: &str, args: &[&str]) -> String {
    let model = ["--model", folder.path().to_str().unwrap()];
    let output = lanner(&[&[command], args, &model, &DEVICE].concat(), &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn ids(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

fn join(ids: &[u64]) -> String {
    ids.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
}

#[test]
fn run_with_ids_prints_the_reference_ids() {
    let (folder, golden) = model();
    // Token ids need no tokenizer.
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    for case in golden["cases"].as_array().unwrap() {
        // Either of two almost equally likely tokens is right.
        let margins = case["greedy_margin"].as_array().unwrap().iter();
        let decided = margins.take_while(|margin| margin.as_f64().unwrap() > 1e-3).count();
        let prompt = join(&ids(&case["prompt_ids"]));
        let count = decided.to_string();
        // The reference computes in float32 throughout.
        let args = [
            &["--ids", &prompt, "--max-tokens", &count, "--temperature", "0", "--ignore-eos"] as &[&str],
            &["--precision", "float32"],
        ]
        .concat();
        let expected = join(&ids(&case["greedy_ids"])[..decided]);
        assert_eq!(stdout(&folder, "run", &args), expected + "\n");
    }
}

#[test]
fn dump_logits_writes_every_position() {
    let (folder, golden) = model();
    let case = &golden["cases"][0];
    let prompt = ids(&case["prompt_ids"]);
    let file = folder.path().join("logits.safetensors");
    let sampling = ["--max-tokens", "3", "--temperature", "0", "--ignore-eos", "--precision", "float32"];
    let dump = [&["--dump-logits", file.to_str().unwrap()] as &[&str], &sampling].concat();
    let new = stdout(&folder, "run", &[&["--ids", &join(&prompt)] as &[&str], &dump].concat());

    let bytes = std::fs::read(&file).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: &str| -> Vec<[u8; 4]> { tensors.tensor(name).unwrap().data().as_chunks().0.to_vec() };
    let dumped: Vec<u64> = words("ids").into_iter().map(|id| u32::from_le_bytes(id).into()).collect();
    assert_eq!(join(&dumped), format!("{} {}", join(&prompt), new.trim_end()));
    let logits: Vec<f32> = words("logits").into_iter().map(f32::from_le_bytes).collect();
    let vocab = logits.len() / (prompt.len() + 2);
    assert_eq!(tensors.tensor("logits").unwrap().shape(), [prompt.len() + 2, vocab]);
    for (position, expected) in ids(&case["logit_positions"]).iter().zip(case["logits"].as_array().unwrap()) {
        let row = &logits[*position as usize * vocab..][..vocab];
        let worst = row
            .iter()
            .zip(expected.as_array().unwrap())
            .map(|(a, b)| (f64::from(*a) - b.as_f64().unwrap()).abs());
        assert!(worst.fold(0.0, f64::max) < 3e-4, "position {position}");
    }
}

#[test]
fn run_prints_text_or_one_json_object() {
    let (folder, _) = model();
    let sampling = ["--max-tokens", "12", "--temperature", "0", "--ignore-eos"];
    let text = stdout(&folder, "run", &[&["hi"], &sampling as &[&str]].concat());
    let answer: Value =
        serde_json::from_str(&stdout(&folder, "run", &[&["hi", "--json"], &sampling as &[&str]].concat()))
            .unwrap();
    assert_eq!(text, format!("{}\n", answer["text"].as_str().unwrap()));
    assert_eq!(ids(&answer["ids"]).len(), 12);
    assert_eq!(answer["finish_reason"], "length");
    assert_eq!(answer["usage"]["prompt_tokens"], ids(&answer["prompt_ids"]).len());
    assert!(answer["timings"]["total_s"].as_f64().unwrap() > 0.0);

    let raw = stdout(&folder, "run", &[&["hi", "--raw", "--json"], &sampling as &[&str]].concat());
    let raw: Value = serde_json::from_str(&raw).unwrap();
    assert_eq!(raw["prompt_ids"], json!([104, 105]));
}

#[test]
fn run_takes_the_model_as_first_word_and_text_from_a_pipe() {
    let (folder, _) = model();
    let path = folder.path().to_str().unwrap();
    let ask = |words: &[&str], piped: Option<&str>| {
        let options = ["--raw", "--json", "--max-tokens", "2", "--temperature", "0", "--ignore-eos"];
        let mut run = Command::new(env!("CARGO_BIN_EXE_lanner"))
            .env_clear()
            .args([&["run"], words, &options, &DEVICE].concat())
            .stdin(if piped.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        if let (Some(text), Some(mut stdin)) = (piped, run.stdin.take()) {
            stdin.write_all(text.as_bytes()).unwrap();
        }
        let output = output_of(run).unwrap();
        assert!(output.status.success(), "{words:?}");
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        // The tokens of the tests' tokenizer are bytes.
        String::from_utf8(ids(&answer["prompt_ids"]).iter().map(|id| *id as u8).collect()).unwrap()
    };
    assert_eq!(ask(&[path, "hi"], None), "hi");
    assert_eq!(ask(&[path, "hi", "there"], None), "hi there");
    assert_eq!(ask(&["-m", path, "hi", "there"], None), "hi there");
    assert_eq!(ask(&["hi", "--model", path], None), "hi");
    assert_eq!(ask(&[path, "what is this?"], Some("some text\n")), "some text\n\nwhat is this?");
    assert_eq!(ask(&[path, "hi"], Some("")), "hi");
    assert_eq!(ask(&[path], Some("all of it")), "all of it");
    assert_eq!(ask(&[path, "-"], Some("all of it\n")), "all of it\n");
}

#[test]
fn chat_reads_one_turn_per_piped_line() {
    let (folder, _) = model();
    let saved = folder.path().join("conversation.json");
    let lines = format!("/system Be brief.\n\nfirst\\\nline\nsecond\n/save {}\n", saved.display());
    let mut chat = spawn(&folder, &["chat", "--max-tokens", "4", "--temperature", "0"], Stdio::piped());
    chat.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = output_of(chat).unwrap();
    assert!(output.status.success());
    let saved: Value = serde_json::from_str(&std::fs::read_to_string(saved).unwrap()).unwrap();
    let messages = saved["messages"].as_array().unwrap();
    let roles: Vec<&str> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
    assert_eq!(messages[1]["content"], "first\nline");
    let answers = [&messages[2], &messages[4]].map(|message| message["content"].as_str().unwrap());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{}\n{}\n", answers[0], answers[1]));
}

#[test]
fn serve_prints_its_address_and_exits_on_ctrl_c() {
    let (folder, _) = model();
    let mut server = spawn(&folder, &["serve", "--port", "0", "--name", "owl"], Stdio::null());
    let lines = BufReader::new(server.stderr.take().unwrap()).lines();
    let ready = lines.map(Result::unwrap).find(|line| line.contains("serving")).unwrap();
    let address = ready.split("http://").nth(1).unwrap().split("/v1").next().unwrap().parse().unwrap();
    assert!(ready.starts_with("lanner: serving owl on http://127.0.0.1:"), "{ready}");

    let request = json!({ "model": "owl", "prompt": "hi", "max_tokens": 20, "temperature": 0 });
    let whole = client::post(address, "/v1/completions", &request).json();
    let mut streamed = request;
    streamed["stream"] = true.into();
    let events = client::post(address, "/v1/completions", &streamed).events();
    let joined: String = events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(joined, whole["choices"][0]["text"].as_str().unwrap());

    interrupt(&server);
    assert_eq!(status_of(&mut server).code(), Some(0));
}

#[test]
fn second_ctrl_c_ends_a_generating_server() {
    let (folder, _) = model();
    for _ in 0..3 {
        let mut server = spawn(&folder, &["serve", "--port", "0"], Stdio::null());
        let mut lines = BufReader::new(server.stderr.take().unwrap()).lines().map(Result::unwrap);
        let ready = lines.find(|line| line.contains("serving")).unwrap();
        let address = ready.split("http://").nth(1).unwrap().split("/v1").next().unwrap().parse().unwrap();
        let body = json!({ "prompt": "hi", "stream": true, "ignore_eos": true, "max_tokens": 1_000_000 })
            .to_string();
        let headers = "Content-Type: application/json\r\n";
        let mut stream = client::open(address, "POST /v1/completions", headers, body.as_bytes());
        stream.read_exact(&mut [0; 1000]).unwrap();
        interrupt(&server);
        assert!(lines.next().unwrap().contains("Ctrl-C again"));
        interrupt(&server);
        assert_eq!(status_of(&mut server).code(), Some(0));
    }
}

#[test]
fn stream_cut_by_second_ctrl_c_ends_with_an_error_event() {
    let (folder, _) = model();
    let mut server = spawn(&folder, &["serve", "--port", "0"], Stdio::null());
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines().map(Result::unwrap);
    let ready = lines.find(|line| line.contains("serving")).unwrap();
    let address = ready.split("http://").nth(1).unwrap().split("/v1").next().unwrap().parse().unwrap();
    let messages = json!([{ "role": "user", "content": "hi" }]);
    let open = |path: &str, mut body: serde_json::Value, stream: bool| {
        (body["stream"], body["ignore_eos"]) = (stream.into(), true.into());
        let headers = "Content-Type: application/json\r\n";
        client::open(address, &format!("POST {path}"), headers, body.to_string().as_bytes())
    };
    // Messages have no `ignore_eos`.
    let info = client::get(address, "/tokenizer_info").json();
    let ends = info["eos_token_ids"].as_array().unwrap().iter();
    let never: serde_json::Map<String, Value> = ends.map(|id| (id.to_string(), json!(-10_000))).collect();
    let mut streams = [
        open("/v1/completions", json!({ "prompt": "hi", "max_tokens": 1_000_000 }), true),
        open("/v1/chat/completions", json!({ "messages": messages }), true),
        open("/v1/responses", json!({ "input": "hi" }), true),
        open(
            "/v1/messages",
            json!({ "messages": messages, "max_tokens": 1_000_000, "logit_bias": never }),
            true,
        ),
    ];
    let mut whole = open("/v1/completions", json!({ "prompt": "hi", "max_tokens": 1_000_000 }), false);
    streams.iter_mut().for_each(|stream| stream.read_exact(&mut [0; 1000]).unwrap());
    wait_until("all run", || client::get(address, "/health").json()["running"] == 5);
    interrupt(&server);
    assert!(lines.next().unwrap().contains("Ctrl-C again"));
    interrupt(&server);
    // Reads to the end, so that the server does not wait for this client.
    let text = |client: &mut std::net::TcpStream| {
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        text
    };
    let readers = streams.map(|mut stream| std::thread::spawn(move || text(&mut stream)));
    let streamed = readers.map(|reader| reader.join().unwrap());
    let answered = text(&mut whole);
    let errors = streamed.each_ref().map(|streamed| {
        assert!(streamed.ends_with("0\r\n\r\n"), "the response has ended as it should");
        let last = streamed.lines().rfind(|line| line.starts_with("data: ")).unwrap();
        serde_json::from_str::<serde_json::Value>(&last["data: ".len()..]).unwrap()
    });
    let [completion, chat, response, message] = &errors;
    assert_eq!(completion["error"]["code"], "shutting_down", "{completion}");
    assert_eq!(chat["error"]["code"], "shutting_down", "{chat}");
    assert_eq!(response["type"], "response.failed", "{response}");
    assert_eq!(response["response"]["error"]["code"], "shutting_down", "{response}");
    assert_eq!((&message["type"], &message["error"]["type"]), (&json!("error"), &json!("overloaded_error")));
    assert!(answered.starts_with("HTTP/1.1 503") && answered.contains("shutting_down"), "{answered}");
    assert_eq!(status_of(&mut server).code(), Some(0));
}

/// What happens if a load hangs nonetheless is tested beside `serve`.
#[test]
fn load_of_a_pipe_is_refused_and_does_not_delay_exit() {
    let (folder, _) = model();
    let mut server = spawn(&folder, &["serve", "--port", "0"], Stdio::null());
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines().map(Result::unwrap);
    let ready = lines.find(|line| line.contains("serving")).unwrap();
    let address = ready.split("http://").nth(1).unwrap().split("/v1").next().unwrap().parse().unwrap();
    // Opening a pipe for reading blocks until a writer opens it.
    let hangs = tempfile::tempdir().unwrap();
    let pipe = hangs.path().join("config.json");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let body = json!({ "model": hangs.path() }).to_string();
    let refused = client::post_raw(address, "/v1/models/load", body.as_bytes());
    assert_eq!(refused.status, 400, "{}", refused.body);
    assert!(refused.body.contains("not a regular file"), "{}", refused.body);
    interrupt(&server);
    assert_eq!(status_of(&mut server).code(), Some(0));
    let rest: Vec<String> = lines.collect();
    assert!(!rest.iter().any(|line| line.contains("has not ended")), "{rest:?}");
}

#[test]
fn template_that_takes_too_much_of_the_memory_limit_fails() {
    let (folder, _) = model();
    // 180 MB of values, and a prompt of a few bytes.
    let template = "{% set ns = namespace(all='') %}{% for i in range(600) %}\
        {% set ns.all = ns.all + 'x' * 1000 %}{% endfor %}{{ messages[0].content }}";
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    let run = |limit: &str| {
        let folder = folder.path().to_str().unwrap();
        let args = ["run", "--model", folder, "--max-tokens", "1", "--memory-limit", limit, "hi"];
        lanner(&[&args[..], &DEVICE].concat(), &[])
    };
    let refused = run("512M");
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && error.contains("too costly for this conversation"), "{error}");
    let answered = run("4G");
    assert!(answered.status.success(), "{}", String::from_utf8_lossy(&answered.stderr));
}

#[test]
fn listening_beyond_loopback_without_api_key_logs_a_warning() {
    let (folder, _) = model();
    let warning = |args: &[&str]| {
        let args = [&["serve", "--port", "0"], args].concat();
        let mut server = spawn(&folder, &args, Stdio::null());
        let lines = BufReader::new(server.stderr.take().unwrap()).lines().map(Result::unwrap);
        let lines: Vec<String> = lines.take_while(|line| !line.contains("serving")).collect();
        interrupt(&server);
        status_of(&mut server);
        // The checkpoint names a tower that it lacks.
        lines.into_iter().find(|line| line.contains("warning") && !line.contains("takes no images"))
    };
    let text = warning(&["--host", "0.0.0.0"]).expect("a warning");
    assert!(text.contains("--api-key") && text.contains("load and pull"), "{text}");
    let text = warning(&["--host", "0.0.0.0", "--no-admin"]).expect("a warning");
    assert!(!text.contains("load and pull"), "{text}");
    assert_eq!(warning(&["--host", "0.0.0.0", "--api-key", "secret"]), None);
    assert_eq!(warning(&[]), None);
}

#[test]
fn keys_file_that_others_can_read_logs_a_warning() {
    use std::os::unix::fs::PermissionsExt;
    let (folder, _) = model();
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let start = |keys: &str, mode| {
        std::fs::write(path, keys).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        let mut server = spawn(&folder, &["serve", "--port", "0", "--api-keys-file", path], Stdio::null());
        let lines = BufReader::new(server.stderr.take().unwrap()).lines().map(Result::unwrap);
        let mut seen = vec![];
        for line in lines {
            seen.push(line);
            if seen.last().is_some_and(|line| line.contains("serving")) {
                interrupt(&server);
            }
        }
        status_of(&mut server);
        seen.join("\n")
    };
    let warning = format!("other users can read the API keys in {path}; run `chmod 600 {path}`");
    assert!(start("ann:secret", 0o644).contains(&warning));
    assert!(!start("ann:secret", 0o600).contains("other users"));
    let error = start("ann:secret\nann:hidden", 0o600);
    assert!(
        error.contains(&format!("line 2 of {path}: the name ann is taken by an earlier line")),
        "{error}"
    );
    assert!(!error.contains("hidden"), "{error}");
}

fn interrupt(server: &Child) {
    let killed = Command::new("kill").args(["-INT", &server.id().to_string()]).status().unwrap();
    assert!(killed.success());
}

fn spawn(folder: &TempDir, args: &[&str], stdin: Stdio) -> Child {
    let model: PathBuf = folder.path().into();
    Command::new(env!("CARGO_BIN_EXE_lanner"))
        .env_clear()
        .args(args)
        .args(DEVICE)
        .arg("--model")
        .arg(model)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

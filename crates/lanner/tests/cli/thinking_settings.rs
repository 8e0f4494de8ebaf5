//! Settings of thinking: flags, the config file for all models and for one, and the commands that
//! answer in the terminal.

use std::{io::Write, process::Stdio};

use lanner::{cli::ThinkingArgs, config::ThinkingConfig};
use serde_json::{Value, json};

use crate::support::{
    process::{ServerProcess, lanner},
    server::{Setup, TestServer, models, no_hub, token},
    wait::output_of,
};

const SENTENCE: &str = "I have thought enough. I now give the final answer.";

/// A config file's text as the settings of a server with the built-in model.
fn serve(text: &str, flags: ThinkingArgs) -> TestServer {
    #[derive(Default, serde::Deserialize)]
    #[serde(default)]
    struct File {
        thinking: ThinkingArgs,
        models: std::collections::BTreeMap<String, ThinkingArgs>,
    }
    let File { thinking, models: of_models } = toml::from_str(text).unwrap();
    let thinking = ThinkingConfig { flags, models: of_models, file: thinking };
    let setup =
        Setup { models: lanner::config::ModelConfig { thinking, ..models(no_hub()) }, ..Setup::default() };
    setup.script(|_, _| token(crate::support::server::IM_END))
}

/// The decision, its rule and the budget of a request.
fn decided(server: &TestServer, body: &Value) -> Value {
    let reply = server.chat(body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let usage = &reply.json()["usage"]["lanner"]["thinking"];
    json!([usage["enabled"], usage["rule"], usage["budget"]])
}

#[test]
fn flags_override_settings_of_the_model_which_override_those_of_all() {
    let flags = |thinking: &str, max_thinking_tokens: Option<usize>| ThinkingArgs {
        thinking: clap::ValueEnum::from_str(thinking, false).ok(),
        max_thinking_tokens,
        thinking_escape: None,
    };
    let none = || flags("", None);
    let all = "[thinking]\nthinking = 'off'\nmax-thinking-tokens = 100\n";
    let own = "[models.merlin]\nthinking = 'on'\nmax-thinking-tokens = 200\n";
    let other = "[models.'ORG/OTHER']\nthinking = 'on'\nmax-thinking-tokens = 300\n";
    let both = format!("{all}{own}");
    for (text, flags, expected) in [
        ("", none(), json!([true, "template", 32_768])),
        (all, none(), json!([false, "default", null])),
        (own, none(), json!([true, "default", 200])),
        (&*both, none(), json!([true, "default", 200])),
        (&*both, flags("template", None), json!([true, "template", 200])),
        (&*both, flags("off", Some(50)), json!([false, "default", null])),
        (&*both, flags("", Some(50)), json!([true, "default", 50])),
        (&*format!("{all}{other}"), none(), json!([false, "default", null])),
    ] {
        assert_eq!(decided(&serve(text, flags), &json!({})), expected, "{text}");
    }
    let server = serve(all, none());
    for (body, expected) in [
        (json!({ "enable_thinking": true }), json!([true, "request", 100])),
        (json!({ "reasoning_effort": "low" }), json!([true, "request", 2048])),
        (json!({ "enable_thinking": "auto" }), json!([true, "otherwise", 100])),
        (json!({ "enable_thinking": true, "max_thinking_tokens": 7 }), json!([true, "request", 7])),
        (json!({ "messages": [{ "role": "user", "content": "Hi /think" }] }), json!([true, "keyword", 100])),
    ] {
        assert_eq!(decided(&server, &body), expected, "{body}");
    }
}

/// A config file with these settings of merlin.
fn config(settings: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    std::fs::write(&path, format!("[models.merlin]\n{settings}\n")).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

#[test]
fn run_closes_thinking_as_the_server_does() {
    let (_folder, file) = config("max-thinking-tokens = 6\nthinking-escape = 'So be it.'");
    let question = ["run", "What is 7 + 5?", "--device", "cpu", "--temperature", "0", "--json", "--think"];
    let server = Setup::default().merlin();
    for (args, budget, sentence) in [
        (&["--max-thinking-tokens", "6"] as &[&str], 6, SENTENCE),
        (&["--max-thinking-tokens", "6", "--thinking-escape", "off"], 6, ""),
        (&["--config", &file], 6, "So be it."),
        (&["--config", &file, "--max-thinking-tokens", "9"], 9, "So be it."),
    ] {
        let output = lanner(&[&question, args].concat(), &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let reasoning = answer["reasoning"].as_str().unwrap();
        assert!(reasoning.ends_with(sentence), "{args:?}: {answer}");
        assert!(!answer["text"].as_str().unwrap().is_empty(), "{args:?}: {answer}");
        let escape = if sentence.is_empty() { "off" } else { sentence };
        let body = json!({ "messages": [{ "role": "user", "content": "What is 7 + 5?" }], "temperature": 0,
                           "enable_thinking": true, "max_thinking_tokens": budget, "thinking_escape": escape });
        let message = &server.chat(&body).json()["choices"][0]["message"];
        assert_eq!(
            (&message["reasoning_content"], &message["content"]),
            (&answer["reasoning"], &answer["text"])
        );
    }
}

#[test]
fn max_tokens_of_run_counts_the_answer_alone() {
    let args = ["run", "What is 7 + 5?", "--device", "cpu", "--temperature", "0", "--json", "--think"];
    let output =
        lanner(&[&args as &[&str], &["--max-thinking-tokens", "6", "--max-tokens", "2"]].concat(), &[]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let count = |name: &str| answer["usage"][name].as_u64().unwrap();
    assert_eq!(count("completion_tokens") - count("reasoning_tokens"), 2, "{answer}");
    assert!(count("reasoning_tokens") > 6 && answer["finish_reason"] == "length", "{answer}");
}

#[test]
fn chat_closes_thinking_in_each_turn() {
    let mut chat = std::process::Command::new(env!("CARGO_BIN_EXE_lanner"))
        .args(["chat", "--device", "cpu", "--temperature", "0", "--think", "--no-color"])
        // The user's own history is none of the tests.
        .args(["--max-thinking-tokens", "6", "--max-tokens", "20", "--no-history"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    chat.stdin.take().unwrap().write_all(b"What is 7 + 5?\nAnd 8 + 3?\n").unwrap();
    let output = output_of(chat).unwrap();
    let [answers, thoughts] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success() && answers.lines().count() == 2, "{answers}");
    assert_eq!(thoughts.matches(SENTENCE).count(), 2, "{thoughts}");
}

#[test]
fn settings_of_a_model_that_is_not_there_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    std::fs::write(&path, "[models.merlln]\nthinking = 'on'\n").unwrap();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_lanner"))
        .args(["serve", "--port", "0", "--device", "cpu", "--config", path.to_str().unwrap()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().unwrap()));
    let before: Vec<String> =
        lines.map(Result::unwrap).take_while(|line| !line.contains("serving")).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    let warning = before.iter().find(|line| line.contains("[models.merlln]")).expect("a warning");
    assert!(warning.contains("has no effect: there is no model `merlln`"), "{warning}");
}

#[test]
fn served_model_has_the_settings_of_its_section() {
    let (_folder, file) = config("thinking = 'off'");
    let server = ServerProcess::start_with(&[], &[("LANNER_CONFIG", &file)]);
    let body = json!({ "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 1 });
    let reply = crate::support::client::post(server.address, "/v1/chat/completions", &body);
    let thinking = &reply.json()["usage"]["lanner"]["thinking"];
    assert_eq!((&thinking["enabled"], &thinking["rule"]), (&json!(false), &json!("default")));
}

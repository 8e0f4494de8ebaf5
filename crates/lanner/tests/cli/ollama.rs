//! Ollama's API: `/api/chat`, `/api/generate`, embeddings, models and pulls.

use std::{thread, time::Duration};

use serde_json::{Value, json};
use tempfile::tempdir;

use crate::support::{
    client::{self, Reply},
    fake_hub::{FakeHub, REPO},
    server::{CONTEXT, Setup, TestServer, models, tokens},
};

const THINKS: &str = "<think>\nhm\n</think>\n\nHello";
const CALLS: &str = "I look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>\n\
    <tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call>";
const ENDS: [&str; 6] = [
    "done_reason",
    "total_duration",
    "prompt_eval_count",
    "prompt_eval_duration",
    "eval_count",
    "eval_duration",
];

fn chat(server: &TestServer, body: &Value) -> Reply {
    let mut body = body.clone();
    if body.get("messages").is_none() {
        body["messages"] = json!([{ "role": "user", "content": "hi" }]);
    }
    client::post(server.address, "/api/chat", &body)
}

fn generate(server: &TestServer, body: &Value) -> Reply {
    client::post(server.address, "/api/generate", body)
}

fn lines(reply: &Reply) -> Vec<Value> {
    assert!(reply.head.contains("application/x-ndjson"), "{}", reply.head);
    reply.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The sentence of an error.
fn error(reply: &Reply, status: u16) -> String {
    assert_eq!(reply.status, status, "{}", reply.body);
    reply.json()["error"].as_str().unwrap().to_owned()
}

fn weather() -> Value {
    let city = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    json!([{ "type": "function", "function": { "name": "get_weather", "parameters": city } }])
}

#[test]
fn chat_streams_lines_by_default_that_join_to_the_whole_answer() {
    let server = Setup::default().says(THINKS);
    let streamed = lines(&chat(&server, &json!({ "model": "owl:latest" })));
    let (last, parts) = streamed.split_last().unwrap();
    let joined =
        |field: &str| -> String { parts.iter().filter_map(|line| line["message"][field].as_str()).collect() };
    assert_eq!((joined("thinking"), joined("content")), ("hm".to_owned(), "Hello".to_owned()));
    assert!(parts.iter().all(|line| line["done"] == false && line.get("done_reason").is_none()));
    assert_eq!((&last["done"], &last["done_reason"]), (&json!(true), &json!("stop")));
    assert_eq!(last["message"], json!({ "role": "assistant", "content": "" }));

    let whole = chat(&server, &json!({ "stream": false })).json();
    let message = json!({ "role": "assistant", "content": "Hello", "thinking": "hm" });
    assert_eq!((&whole["message"], &whole["model"]), (&message, &json!("owl")));
    for name in ENDS {
        assert!(whole.get(name).is_some() && last.get(name).is_some(), "{name}: {whole}");
    }
    assert_eq!(whole["eval_count"], tokens(THINKS).len() + 1);
    assert_eq!(whole["prompt_eval_count"], server.last_request().prompt.len());
    assert!(whole["total_duration"].as_u64().unwrap() >= whole["eval_duration"].as_u64().unwrap());
    assert!(whole["created_at"].as_str().unwrap().ends_with('Z'), "{whole}");
}

#[test]
fn options_reach_the_engine() {
    let server = Setup::default().says("Hello");
    let options = json!({ "temperature": 0.25, "top_k": 7, "top_p": 0.5, "min_p": 0.125, "seed": 3, "num_predict": 2,
                          "repeat_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25,
                          "num_ctx": 4096, "num_thread": 8 });
    let answer = chat(&server, &json!({ "stream": false, "options": options })).json();
    assert_eq!((&answer["done_reason"], &answer["message"]["content"]), (&json!("length"), &json!("He")));
    let request = server.last_request();
    let sampling = &request.sampling;
    assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p), (0.25, 7, 0.5));
    assert_eq!((sampling.min_p, sampling.repetition_penalty, sampling.seed), (0.125, 1.5, 3));
    assert_eq!((sampling.presence_penalty, sampling.frequency_penalty, request.max_tokens), (0.5, 0.25, 2));

    let answer =
        chat(&server, &json!({ "stream": false, "options": { "num_predict": -1, "stop": "l" } })).json();
    assert_eq!(answer["message"]["content"], "He");
    assert!(server.last_request().max_tokens > 500);
}

#[test]
fn field_that_cannot_be_honoured_is_an_error_that_names_it() {
    let server = Setup::default().says("x");
    for (body, name) in [
        (json!({ "options": { "mirostat": 1 } }), "options.mirostat"),
        (json!({ "options": { "num_predikt": 1 } }), "num_predikt"),
        (json!({ "options": { "temperature": 101 } }), "temperature"),
        (json!({ "options": 7 }), "options"),
        (json!({ "think": "deeply" }), "think"),
        (json!({ "think": 7 }), "think"),
        (json!({ "keep_alive": "soon" }), "keep_alive"),
        (json!({ "format": "yaml" }), "format"),
        (json!({ "top_logprobs": 2 }), "top_logprobs"),
        (json!({ "tools": [{ "type": "function" }] }), "tools[0].function"),
        (
            json!({ "messages": [{ "role": "user", "content": "x", "images": ["eA=="] }] }),
            "messages[0].images[0]",
        ),
    ] {
        let message = error(&chat(&server, &body), 400);
        assert!(message.contains(name), "{body}: {message}");
    }
    for (body, name) in [
        (json!({ "prompt": "x", "template": "{{ .Prompt }}" }), "template"),
        (json!({ "prompt": "x", "context": [1, 2] }), "context"),
        (json!({ "prompt": "x", "images": ["eA=="] }), "images[0]"),
        (json!({ "prompt": "x", "raw": true, "system": "s" }), "system"),
        (json!({ "prompt": "x", "raw": true, "think": true }), "think"),
        (json!({ "prompt": "x", "suffix": "y" }), "suffix"),
        (json!({ "prompt": "x", "steps": 9 }), "steps"),
    ] {
        let message = error(&generate(&server, &body), 400);
        assert!(message.contains(name), "{body}: {message}");
    }
    assert_eq!(server.num_requests(), 0);
    assert!(error(&chat(&server, &json!({ "model": "llama9" })), 404).contains("llama9"));
    let long = json!({ "messages": [{ "role": "user", "content": "x".repeat(CONTEXT) }] });
    assert!(error(&chat(&server, &long), 400).contains("maximum context length is 1000 tokens"));
}

#[test]
fn tool_calls_have_objects_as_arguments() {
    let server = Setup::default().says(CALLS);
    let call = |index: usize, arguments: Value| json!({ "index": index, "name": "get_weather", "arguments": arguments });
    for stream in [false, true] {
        let reply = chat(&server, &json!({ "tools": weather(), "stream": stream }));
        let answers = if stream { lines(&reply) } else { vec![reply.json()] };
        let calls = answers.iter().filter_map(|line| line["message"]["tool_calls"].as_array()).flatten();
        let calls: Vec<&Value> = calls.map(|call| &call["function"]).collect();
        assert_eq!(calls, [&call(0, json!({ "city": "Oslo" })), &call(1, json!({}))], "{stream}");
        assert_eq!(answers.last().unwrap()["done_reason"], "stop");
        let content: String =
            answers.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect();
        assert_eq!(content, "I look.");
    }
}

#[test]
fn history_reaches_the_template_with_calls_and_results() {
    let template = "{%- for m in messages %}{{ m.role }}:{{ m.thinking }}|{{ m.content }}|{{ m.tool_calls | tojson if m.tool_calls }}|\
        {{ m.name }}|{{ m.tool_call_id }}\n{% endfor %}{#- <tool_call> <think> -#}";
    let server = Setup { template, ..Setup::default() }.says("x");
    let call = json!({ "function": { "name": "f", "arguments": { "a": 1 } } });
    let messages = json!([
        { "role": "user", "content": "q" },
        { "role": "assistant", "content": "", "thinking": "t", "tool_calls": [call] },
        { "role": "tool", "tool_name": "f", "content": "7" },
    ]);
    assert_eq!(chat(&server, &json!({ "messages": messages, "stream": false })).status, 200);
    let prompt = server.last_prompt();
    assert!(prompt.contains("assistant:t||") && prompt.contains(r#""arguments": {"a": 1}"#), "{prompt}");
    assert!(prompt.contains("tool:|7||f|call00001") && prompt.contains(r#""id": "call00001""#), "{prompt}");
}

#[test]
fn think_selects_what_the_template_does() {
    let server = Setup::default().says("x");
    chat(&server, &json!({ "think": false, "stream": false }));
    assert!(server.last_prompt().ends_with("<think>\n\n</think>\n\n"), "{}", server.last_prompt());
    chat(&server, &json!({ "think": "high", "stream": false }));
    assert!(server.last_prompt().ends_with("assistant\n"), "{}", server.last_prompt());
}

#[test]
fn generate_renders_one_turn_unless_raw() {
    let server = Setup::default().says(THINKS);
    let answer = generate(&server, &json!({ "prompt": "hi", "system": "Be brief.", "stream": false })).json();
    assert_eq!((&answer["response"], &answer["thinking"]), (&json!("Hello"), &json!("hm")));
    assert!(answer.get("message").is_none() && answer.get("context").is_none(), "{answer}");
    assert_eq!(
        server.last_prompt(),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    );
    let streamed = lines(&generate(&server, &json!({ "prompt": "hi" })));
    let joined: String = streamed.iter().map(|line| line["response"].as_str().unwrap()).collect();
    assert_eq!((&*joined, &streamed.last().unwrap()["done"]), ("Hello", &json!(true)));

    let body = json!({ "prompt": "hi", "raw": true, "stream": false, "logprobs": true, "top_logprobs": 0 });
    let answer = generate(&server, &body).json();
    assert_eq!((server.last_prompt(), &answer["response"]), ("hi".to_owned(), &json!(THINKS)));
    assert!(server.last_request().max_tokens > 500, "completions have another default");
}

#[test]
fn request_without_a_prompt_finds_the_model_loaded() {
    let server = Setup::default().says("x");
    let answer = generate(&server, &json!({ "model": "owl", "keep_alive": "5m" })).json();
    assert_eq!((&answer["done_reason"], &answer["response"]), (&json!("load"), &json!("")));
    let answer = chat(&server, &json!({ "model": "owl", "messages": [] })).json();
    assert_eq!((&answer["done_reason"], &answer["message"]["content"]), (&json!("load"), &json!("")));
    assert!(error(&generate(&server, &json!({ "model": "owl", "keep_alive": 0 })), 400).contains("pinned"));
    assert!(error(&generate(&server, &json!({ "model": "other" })), 404).contains("other"));
    assert_eq!(server.num_requests(), 0);
}

#[test]
fn format_constrains_the_answer() {
    let server = Setup::default().merlin();
    let schema = json!({ "type": "object", "properties": { "n": { "enum": [1, 2] } }, "required": ["n"],
                         "additionalProperties": false });
    for format in [json!("json"), schema] {
        let body = json!({ "stream": false, "think": false, "format": format,
                           "options": { "temperature": 2, "seed": 1, "num_predict": 200 } });
        let answer = chat(&server, &body).json();
        let content = answer["message"]["content"].as_str().unwrap();
        if answer["done_reason"] == "stop" {
            let value: Value = serde_json::from_str(content).unwrap();
            assert!(format == "json" || value["n"] == 1 || value["n"] == 2, "{content}");
        } else {
            assert_eq!((&answer["done_reason"], &format), (&json!("length"), &json!("json")), "{answer}");
            assert!(content.trim_start().starts_with('{'), "{content}");
        }
    }
}

#[test]
fn embeddings_have_length_one_and_agree() {
    let server = Setup::default().merlin();
    let post = |path: &str, body: Value| client::post(server.address, path, &body);
    let many = post("/api/embed", json!({ "model": "merlin", "input": ["The owl", "A hare"] })).json();
    let one = post("/api/embeddings", json!({ "model": "merlin", "prompt": "A hare" })).json();
    let numbers = |value: &Value| -> Vec<f64> {
        value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
    };
    let second = numbers(&many["embeddings"][1]);
    assert_eq!(second, numbers(&one["embedding"]));
    let length: f64 = second.iter().map(|x| x * x).sum();
    assert!((length - 1.0).abs() < 1e-5, "{length}");
    assert!(many["prompt_eval_count"].as_u64().unwrap() > 2);
    let few = post("/api/embed", json!({ "input": "A hare", "dimensions": 3, "truncate": true })).json();
    assert_eq!(numbers(&few["embeddings"][0]).len(), 3);
    for body in [json!({ "input": "x", "dimensions": 99_999 }), json!({ "input": 7 }), json!({ "input": "" })]
    {
        error(&post("/api/embed", body), 400);
    }
    assert_eq!(post("/api/embed", json!({ "input": [] })).json()["embeddings"], json!([]));
}

#[test]
fn served_model_is_described_as_ollama_does() {
    let server = Setup::default().merlin();
    let tags = client::get(server.address, "/api/tags").json();
    let model = &tags["models"][0];
    assert_eq!((&model["name"], &model["model"]), (&json!("merlin"), &json!("merlin")));
    assert_eq!(model["digest"].as_str().unwrap().len(), 64);
    assert!(model["size"].as_u64().unwrap() > 1_000_000);
    let ps = client::get(server.address, "/api/ps").json();
    assert_eq!((&ps["models"][0]["name"], &ps["models"][0]["digest"]), (&model["name"], &model["digest"]));
    assert!(ps["models"][0]["context_length"].as_u64().unwrap() > 1000);

    let show = client::post(server.address, "/api/show", &json!({ "model": "merlin:latest" })).json();
    let info = &show["model_info"];
    let family = info["general.architecture"].as_str().unwrap();
    assert_eq!(info[format!("{family}.context_length")], ps["models"][0]["context_length"]);
    let capabilities = show["capabilities"].as_array().unwrap();
    for name in ["completion", "tools", "thinking", "embedding"] {
        assert!(capabilities.contains(&json!(name)), "{name}: {capabilities:?}");
    }
    assert!(show["template"].as_str().unwrap().contains("messages"));
    assert!(error(&client::post(server.address, "/api/show", &json!({ "name": "x" })), 404).contains('x'));

    let version = client::get(server.address, "/api/version").json();
    let parts: Vec<u32> =
        version["version"].as_str().unwrap().split('.').map(|part| part.parse().unwrap()).collect();
    assert!(parts >= vec![0, 6, 4], "editors refuse an older one: {version}");
    for (line, hint) in [
        ("DELETE /api/delete", "lanner rm"),
        ("POST /api/create", "lanner quantize"),
        ("POST /api/copy", "--name"),
        ("POST /api/push", "hub"),
    ] {
        let reply = client::request(server.address, line, "Content-Type: application/json\r\n", b"{}");
        assert!(error(&reply, 400).contains(hint), "{line}: {}", reply.body);
    }
}

#[test]
fn pull_reports_progress_in_lines() {
    let (cache, hub) = (tempdir().unwrap(), FakeHub::tiny());
    let server = Setup { models: models(hub.config(cache.path())), ..Setup::default() }.says("x");
    let reply =
        client::post(server.address, "/api/pull", &json!({ "model": format!("hf.co/{REPO}:latest") }));
    let progress = lines(&reply);
    assert!(progress.contains(&json!({ "status": "pulling manifest" })), "{progress:?}");
    assert_eq!(progress.last().unwrap(), &json!({ "status": "success" }));
    let weights = progress
        .iter()
        .find(|line| line["digest"] == "model.safetensors" && line["completed"] == line["total"]);
    assert!(weights.is_some_and(|line| line["total"].as_u64().unwrap() > 0), "{progress:?}");
    let whole = client::post(server.address, "/api/pull", &json!({ "name": REPO, "stream": false }));
    assert_eq!(whole.json(), json!({ "status": "success" }));

    let failed = client::post(server.address, "/api/pull", &json!({ "model": "org/nothing" }));
    assert!(lines(&failed).last().unwrap()["error"].as_str().unwrap().contains("org/nothing"));
    assert!(error(&client::post(server.address, "/api/pull", &json!({ "model": "x" })), 400).contains('x'));
    let locked = Setup { admin: false, ..Setup::default() }.says("x");
    error(&client::post(locked.address, "/api/pull", &json!({ "model": REPO })), 403);
}

#[test]
fn long_wait_sends_what_clients_of_each_protocol_skip() {
    let server = Setup { delay: Duration::from_secs(6), ..Setup::default() }.says("x");
    let body = json!({ "options": { "num_predict": 1 } });
    thread::scope(|scope| {
        let openai = scope.spawn(|| server.chat(&json!({ "stream": true, "max_tokens": 1 })));
        let ollama = scope.spawn(|| chat(&server, &body));
        let openai = openai.join().unwrap();
        assert!(openai.body.contains("\n:\n\n") || openai.body.contains(": \n\n"), "{}", openai.body);
        assert!(openai.is_done() && openai.events().len() >= 3);
        let lines = lines(&ollama.join().unwrap());
        assert_eq!(lines[0]["message"], json!({ "role": "assistant", "content": "" }));
        assert_eq!((&lines[0]["done"], &lines.last().unwrap()["done"]), (&json!(false), &json!(true)));
    });
}

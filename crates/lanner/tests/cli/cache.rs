//! Reuse of prefixes, and its report in `usage`.

use lanner::cli::VolatilePrefix;
use serde_json::{Value, json};

use crate::support::{
    client,
    server::{Setup, TestServer, tokenizer},
};

fn messages(system: &str, turns: &[&str]) -> Value {
    let mut messages = vec![json!({ "role": "system", "content": system })];
    let roles = ["user", "assistant"].iter().cycle();
    messages.extend(roles.zip(turns).map(|(role, content)| json!({ "role": role, "content": content })));
    messages.into()
}

/// The prompt's text up to each cache breakpoint.
fn parts(server: &TestServer, body: &Value) -> Vec<String> {
    assert_eq!(server.chat(body).status, 200);
    let request = server.last_request();
    let part = |at: &usize| tokenizer().decode(&request.prompt[..*at], false).unwrap();
    request.cache_breakpoints.iter().map(part).collect()
}

#[test]
fn cache_breakpoints_follow_the_system_prompt_and_the_history() {
    let server = Setup::default().says("x");
    let head = "<|im_start|>system\nBe brief.<|im_end|>\n";
    let body = json!({ "messages": messages("Be brief.", &["hi"]) });
    let history = format!("{head}<|im_start|>user\nhi<|im_end|>\n");
    assert_eq!(parts(&server, &body), [head.to_owned(), history.clone()]);
    // For every start of an answer, and once more from the token cache.
    let mut quiet = body.clone();
    quiet["enable_thinking"] = json!(false);
    for body in [&quiet, &body, &quiet] {
        assert_eq!(parts(&server, body)[1], history);
    }
    let later = json!({ "messages": messages("Be brief.", &["hi", "Hello", "hum"]) });
    let more = format!("{history}<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nhum<|im_end|>\n");
    assert_eq!(parts(&server, &later), [head.to_owned(), more]);
    // Without a system prompt there is only the history, and a continued message starts no answer.
    let alone = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    assert_eq!(parts(&server, &alone), ["<|im_start|>user\nhi<|im_end|>\n"]);
    let open = json!({ "messages": messages("Be brief.", &["hi", "Hel"]), "continue_final_message": true,
                       "add_generation_prompt": false });
    assert_eq!(parts(&server, &open), [head]);
}

#[test]
fn cache_breakpoints_follow_a_template_with_its_own_generation_prompt() {
    let template = "{%- for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}\
        {%- if add_generation_prompt %}{% if messages | length > 1 %}[again]{% endif %}[bot]{% endif %}";
    let server = Setup { template, ..Setup::default() }.says("x");
    let body = json!({ "messages": messages("Be brief.", &["hi"]) });
    assert_eq!(
        parts(&server, &body),
        ["[system] Be brief.\n[user]", "[system] Be brief.\n[user] hi\n[again]"]
    );
    // A template that refuses a conversation of one message.
    let template = "{%- if messages | length < 3 %}{{ raise_exception('too few') }}{% endif %}\
        {%- for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[bot]{% endif %}";
    let server = Setup { template, ..Setup::default() }.says("x");
    let body = json!({ "messages": messages("Be brief.", &["hi", "ho"]) });
    assert_eq!(parts(&server, &body), ["[system] Be brief.\n[user] hi\n[assistant] ho\n"]);
}

fn cache(server: &TestServer) -> Value {
    client::get(server.address, "/v1/cache").json()
}

#[test]
fn next_turn_reuses_the_prefix_and_a_miss_is_explained() {
    let server = Setup::default().merlin();
    let system =
        "You know birds of prey, by their cries and by their feathers, and answer in one line. ".repeat(12);
    let ask = |system: &str, turns: &[&str]| {
        let body = json!({ "messages": messages(system, turns), "max_tokens": 8, "temperature": 0 });
        let reply = server.chat(&body);
        assert_eq!(reply.status, 200);
        reply.json()
    };
    let first = ask(&system, &["Name an owl."]);
    assert_eq!(
        first["usage"]["lanner"]["cache"],
        json!({ "source": null, "cached_tokens": 0, "miss": null })
    );
    let answer = first["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned();
    let prompt = first["usage"]["prompt_tokens"].as_u64().unwrap();
    let second = ask(&system, &["Name an owl.", &answer, "And a falcon."]);
    let cached = second["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached + 8 > prompt, "{}", second["usage"]);
    assert_eq!(second["usage"]["lanner"]["cache"]["source"], "ram");
    assert_eq!(second["usage"]["lanner"]["cache"]["cached_tokens"], cached);
    // A client that changes a word near the start.
    let third = ask(&system.replacen("feathers", "colours", 1), &["Name an owl."]);
    let miss = &third["usage"]["lanner"]["cache"]["miss"];
    assert_eq!(miss["reason"], "differs", "{miss}");
    assert!(miss["text"].as_str().unwrap().contains("colours"), "{miss}");
    assert!(miss["position"].as_u64().unwrap() < 60, "{miss}");
    let stats = cache(&server);
    assert!(
        stats["bytes"].as_u64().unwrap() > 0 && stats["bytes"].as_u64() <= stats["budget_bytes"].as_u64(),
        "{stats}"
    );
    assert_eq!((&stats["requests"], &stats["hits"]), (&json!(3), &json!(1)), "{stats}");
    let deleted = client::request(server.address, "DELETE /v1/cache", "", b"").json();
    assert_eq!(deleted["bytes"], stats["bytes"]);
    assert_eq!((&cache(&server)["bytes"], &cache(&server)["tokens"]), (&json!(0), &json!(0)));
    let again = ask(&system, &["Name an owl."]);
    assert_eq!(again["choices"], first["choices"]);
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

/// The first lines of Claude Code's system prompt, and of agents that add the time.
fn volatile(request: usize) -> String {
    format!(
        "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa69{request};\n\
         Current time: 10:3{request}\n{}",
        "You know birds of prey, by their cries and by their feathers, and answer in one line. ".repeat(8)
    )
}

#[test]
fn volatile_line_is_reported_and_left_in_place() {
    let server = Setup::default().merlin();
    let ask = |system: &str| {
        let messages = messages(system, &["Name an owl."]);
        let reply = server.chat(&json!({ "messages": messages, "max_tokens": 1, "temperature": 0 })).json();
        reply["usage"]["lanner"]["cache"]["miss"].clone()
    };
    ask(&volatile(1));
    let miss = ask(&volatile(2));
    assert_eq!((&miss["reason"], &miss["spoiler"]), (&json!("differs"), &json!("billing")), "{miss}");
    let clock = |minute: usize| volatile(minute).lines().skip(1).collect::<Vec<_>>().join("\n");
    ask(&clock(1));
    assert_eq!(ask(&clock(2))["spoiler"], "time");
    let miss = ask(&clock(2).replacen("feathers", "colours", 1));
    assert_eq!((&miss["reason"], &miss["spoiler"]), (&json!("differs"), &Value::Null), "{miss}");

    let server = Setup::default().says("x");
    let system = volatile(1);
    assert_eq!(server.chat(&json!({ "messages": messages(&system, &["hi"]) })).status, 200);
    assert!(server.last_prompt().contains(&system), "a prompt is what the client sent");
}

#[test]
fn volatile_line_keeps_the_prefix_when_prompts_are_normalized() {
    let mut setup = Setup::default();
    setup.models.volatile_prefix = VolatilePrefix::Normalize;
    let server = setup.merlin();
    let ask = |request: usize| {
        let messages = messages(&volatile(request), &["Name an owl."]);
        server.chat(&json!({ "messages": messages, "max_tokens": 1, "temperature": 0 })).json()["usage"]
            .clone()
    };
    ask(1);
    let usage = ask(2);
    let [prompt, cached] = ["/prompt_tokens", "/prompt_tokens_details/cached_tokens"]
        .map(|place| usage.pointer(place).and_then(Value::as_u64).unwrap());
    assert!(cached + 40 > prompt && cached * 10 > prompt * 8, "{usage}");

    let mut setup = Setup::default();
    setup.models.volatile_prefix = VolatilePrefix::Normalize;
    let server = setup.says("x");
    assert_eq!(server.chat(&json!({ "messages": messages(&volatile(1), &["hi"]) })).status, 200);
    let prompt = server.last_prompt();
    assert!(prompt.starts_with("<|im_start|>system\nYou know"), "{prompt}");
    assert!(prompt.contains("<|im_start|>user\nhi\n\nCurrent time: 10:31<|im_end|>"), "{prompt}");
}

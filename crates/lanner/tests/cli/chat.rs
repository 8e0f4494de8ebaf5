//! `POST /v1/chat/completions`, field by field.

use serde_json::{Value, json};

use crate::support::server::{CONTEXT, Setup, TestServer, token, tokens};

const THINKS: &str = "<think>\nhm, é\n</think>\n\nÜber 🦅!";

#[test]
fn chat_completion_has_openai_shape() {
    let server = Setup::default().says("Hello");
    let reply = server.chat(&json!({}));
    assert_eq!(reply.status, 200);
    let mut answer = reply.json();
    assert!(answer["id"].take().as_str().unwrap().starts_with("chatcmpl-"));
    assert!(answer["created"].take().as_u64().unwrap() > 1_700_000_000);
    let prompt_tokens = server.last_request().prompt.len();
    let timings = answer.as_object_mut().unwrap().remove("timings").unwrap();
    assert_eq!(
        (&timings["cache_n"], &timings["prompt_n"], &timings["predicted_n"]),
        (&json!(0), &json!(prompt_tokens), &json!(6))
    );
    assert!(timings["prompt_ms"].as_f64().unwrap() >= 0.0 && timings["predicted_per_second"].is_number());
    assert_eq!(
        answer,
        json!({
            "id": null,
            "object": "chat.completion",
            "created": null,
            "model": "owl",
            "choices": [{
                "index": 0,
                "message": { "role": "assistant", "content": "Hello", "refusal": null },
                "logprobs": null,
                "finish_reason": "stop",
            }],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": 6,
                "total_tokens": prompt_tokens + 6,
                "prompt_tokens_details": { "cached_tokens": 0 },
                "completion_tokens_details": { "reasoning_tokens": 0 },
                "lanner": { "cache": { "source": null, "cached_tokens": 0, "miss": null },
                    "speculation": { "drafted": 0, "accepted": 0, "by_drafter": {} },
                    "thinking": { "enabled": true, "rule": "template", "budget": 32768, "answer_tokens": 6,
                        "cut": null } },
            },
        })
    );
    assert_eq!(server.last_prompt(), "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
}

#[test]
fn chat_stream_starts_with_role_and_ends_with_finish_reason_usage_and_done() {
    let server = Setup::default().says("Hi");
    let reply = server.chat(&json!({ "stream": true, "stream_options": { "include_usage": true } }));
    assert_eq!(reply.status, 200);
    assert!(reply.head.to_lowercase().contains("content-type: text/event-stream"), "{}", reply.head);
    assert!(reply.is_done());
    let events = reply.events();
    let choices: Vec<&Value> = events.iter().map(|event| &event["choices"][0]).collect();
    assert_eq!(choices[0]["delta"], json!({ "role": "assistant", "content": "" }));
    assert_eq!(choices[1]["delta"], json!({ "content": "H" }));
    assert_eq!(choices[2]["delta"], json!({ "content": "i" }));
    assert_eq!((&choices[3]["delta"], &choices[3]["finish_reason"]), (&json!({}), &json!("stop")));
    assert!(events[..4].iter().all(|event| event["usage"].is_null() && event.get("usage").is_some()));
    assert!(events[..3].iter().all(|event| event["choices"][0]["finish_reason"].is_null()));
    assert_eq!(events[4]["choices"], json!([]));
    assert_eq!(events[4]["usage"]["completion_tokens"], 3);
    assert!(
        events
            .iter()
            .all(|event| event["object"] == "chat.completion.chunk" && event["id"] == events[0]["id"])
    );

    let reply = server.chat(&json!({ "stream": true }));
    assert!(reply.events().iter().all(|event| event.get("usage").is_none()));
}

/// The joined deltas of a stream.
fn joined(server: &TestServer, request: &Value) -> Value {
    let mut request = request.clone();
    request["stream"] = true.into();
    request["stream_options"] = json!({ "include_usage": true });
    let events = server.chat(&request).events();
    let choices = request["n"].as_u64().unwrap_or(1) as usize;
    let mut whole = vec![(String::new(), String::new(), Vec::new(), Value::Null); choices];
    for choice in events.iter().flat_map(|event| event["choices"].as_array().unwrap()) {
        let (content, reasoning, logprobs, reason) = &mut whole[choice["index"].as_u64().unwrap() as usize];
        content.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        reasoning.push_str(choice["delta"]["reasoning_content"].as_str().unwrap_or_default());
        logprobs.extend(choice["logprobs"]["content"].as_array().cloned().unwrap_or_default());
        if !choice["finish_reason"].is_null() {
            *reason = choice["finish_reason"].clone();
        }
    }
    json!({ "choices": whole, "usage": events.last().unwrap()["usage"] })
}

#[test]
fn chat_stream_equals_the_non_streaming_answer() {
    let requests = [
        json!({}),
        json!({ "stop": ["er"] }),
        json!({ "stop": ["zz", "\u{1F985}!"] }),
        json!({ "max_tokens": 13 }),
        json!({ "logprobs": true, "top_logprobs": 2 }),
        json!({ "n": 3, "logprobs": true }),
        json!({ "ignore_eos": true, "max_tokens": 60 }),
    ];
    for text in ["", "plain", THINKS, "<think>never closed", "one\ntwo"] {
        let server = Setup::default().says(text);
        for request in &requests {
            let whole = server.chat(request).json();
            let choices = whole["choices"].as_array().unwrap().iter().map(|choice| {
                let message = &choice["message"];
                let logprobs = choice["logprobs"]["content"].as_array().cloned().unwrap_or_default();
                json!([
                    message["content"],
                    message["reasoning_content"].as_str().unwrap_or_default(),
                    logprobs,
                    choice["finish_reason"]
                ])
            });
            let whole = json!({ "choices": choices.collect::<Vec<_>>(), "usage": whole["usage"] });
            assert_eq!(joined(&server, request), whole, "{text:?} {request}");
        }
    }
}

#[test]
fn reasoning_is_separate_from_content_and_counted() {
    let server = Setup::default().says(THINKS);
    let answer = server.chat(&json!({})).json();
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["content"], "Über 🦅!");
    assert_eq!(message["reasoning_content"], "hm, é");
    assert_eq!(message["reasoning"], message["reasoning_content"]);
    let events = server.chat(&json!({ "stream": true })).events();
    let deltas = events.iter().map(|event| &event["choices"][0]["delta"]);
    assert!(deltas.clone().any(|delta| delta["reasoning"].is_string()));
    assert!(deltas.clone().all(|delta| delta["reasoning"] == delta["reasoning_content"]));
    let reasoning = tokens("<think>\nhm, é\n</think>").len();
    assert_eq!(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], reasoning);
    assert_eq!(answer["usage"]["completion_tokens"], tokens(THINKS).len() + 1);
}

#[test]
fn characters_split_across_tokens_arrive_whole() {
    let server = Setup::default().says("a🦅é");
    let events = server.chat(&json!({ "stream": true })).events();
    let pieces: Vec<&str> =
        events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(pieces, ["", "a", "🦅", "é"]);
}

#[test]
fn stop_string_across_token_boundaries_ends_the_answer() {
    let server = Setup::default().says("one two three");
    for (stop, content, completion_tokens) in [
        (json!("two"), "one ", 7),
        (json!(["thr", "wo"]), "one t", 7),
        (json!(["nothing"]), "one two three", 14),
        (json!("three"), "one two ", 13),
        (json!(null), "one two three", 14),
    ] {
        let answer = server.chat(&json!({ "stop": stop })).json();
        assert_eq!(answer["choices"][0]["message"]["content"], content);
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        assert_eq!(answer["usage"]["completion_tokens"], completion_tokens, "{stop}");
    }
}

#[test]
fn max_tokens_reached_gives_finish_reason_length() {
    let server = Setup::default().says("one two three");
    for request in [
        json!({ "max_tokens": 3 }),
        json!({ "max_completion_tokens": 3 }),
        json!({ "max_tokens": 9, "max_completion_tokens": 3 }),
    ] {
        let answer = server.chat(&request).json();
        assert_eq!(answer["choices"][0]["message"]["content"], "one");
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        assert_eq!(answer["usage"]["completion_tokens"], 3);
    }
    server.chat(&json!({}));
    let request = server.last_request();
    assert_eq!(request.max_tokens, CONTEXT - request.prompt.len());
}

#[test]
fn sampling_fields_all_reach_the_engine() {
    let server = Setup::default().says("x");
    server.chat(&json!({
        "temperature": 0.25, "top_p": 0.5, "top_k": 7, "min_p": 0.125, "repetition_penalty": 1.5,
        "presence_penalty": -0.5, "frequency_penalty": 2, "logit_bias": { "65": -100, "66": 1.5 }, "seed": -1,
        "ignore_eos": true, "max_tokens": 5, "logprobs": true, "top_logprobs": 20,
    }));
    let request = server.last_request();
    let s = &request.sampling;
    assert_eq!((s.temperature, s.top_p, s.top_k, s.min_p), (0.25, 0.5, 7, 0.125));
    assert_eq!((s.repetition_penalty, s.presence_penalty, s.frequency_penalty), (1.5, -0.5, 2.0));
    assert_eq!((s.logit_bias[&65], s.logit_bias[&66], s.seed), (-100.0, 1.5, u64::MAX));
    assert_eq!((request.ignore_eos, request.max_tokens, request.logprobs), (true, 5, Some(20)));

    server.chat(&json!({ "temperature": null, "top_k": -1 }));
    let first = server.last_request();
    assert_eq!((first.sampling.temperature, first.sampling.top_k), (0.7, 0), "the model's own defaults");
    server.chat(&json!({}));
    assert_ne!(first.sampling.seed, server.last_request().sampling.seed, "seeds are random by default");
}

#[test]
fn n_choices_use_consecutive_seeds_and_share_the_prompt() {
    let server = Setup::default().script(|request, n| {
        let ids = tokens(&format!("seed {}", request.sampling.seed));
        token(ids.get(n).copied().unwrap_or(crate::support::server::IM_END))
    });
    let answer = server.chat(&json!({ "n": 3, "seed": 40 })).json();
    for (index, choice) in answer["choices"].as_array().unwrap().iter().enumerate() {
        assert_eq!(choice["index"], index);
        assert_eq!(choice["message"]["content"], format!("seed {}", 40 + index));
    }
    assert_eq!(answer["usage"]["prompt_tokens"], server.last_request().prompt.len());
    assert_eq!(answer["usage"]["completion_tokens"], 3 * 8);
}

#[test]
fn logprobs_hold_tokens_bytes_and_top_alternatives() {
    let server = Setup::default().says("<think>a</think>é");
    let answer = server.chat(&json!({ "logprobs": true, "top_logprobs": 2 })).json();
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(logprobs["refusal"], Value::Null);
    let content = logprobs["content"].as_array().unwrap();
    assert_eq!(content.len(), 2, "reasoning is not content: {content:?}");
    assert_eq!((&content[0]["bytes"], &content[1]["bytes"]), (&json!([0xC3]), &json!([0xA9])));
    assert_eq!(content[0]["logprob"], -0.5);
    let top = content[0]["top_logprobs"].as_array().unwrap();
    assert_eq!(top.len(), 2);
    assert_eq!(top[1], json!({ "token": "\u{FFFD}", "logprob": -1.5, "bytes": [0xC4] }));

    let answer = server.chat(&json!({ "logprobs": true })).json();
    assert_eq!(answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"], json!([]));
}

#[test]
fn chat_template_receives_thinking_tools_and_content_parts() {
    let server = Setup::default().says("x");
    for request in [
        json!({ "enable_thinking": false }),
        json!({ "reasoning_effort": "none" }),
        json!({ "chat_template_kwargs": { "enable_thinking": false } }),
        json!({ "reasoning_effort": "none", "chat_template_kwargs": { "enable_thinking": true }, "enable_thinking": false }),
    ] {
        server.chat(&request);
        assert!(server.last_prompt().ends_with("<think>\n\n</think>\n\n"), "{request}");
    }
    for request in
        [json!({ "enable_thinking": true, "reasoning_effort": "none" }), json!({ "reasoning_effort": "low" })]
    {
        server.chat(&request);
        assert!(server.last_prompt().ends_with("assistant\n"), "{request}");
    }

    let tool = json!({ "type": "function", "function": { "name": "f" } });
    server.chat(&json!({ "tools": [tool], "tool_choice": "auto" }));
    assert!(server.last_prompt().contains("tools=[{"));
    server.chat(&json!({ "tools": [tool], "tool_choice": "none" }));
    assert!(!server.last_prompt().contains("tools="));

    let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
    server
        .chat(&json!({ "messages": [{ "role": "user", "content": parts }], "add_generation_prompt": false }));
    assert_eq!(server.last_prompt(), "<|im_start|>user\na\nb<|im_end|>\n");

    let messages = json!([{ "role": "assistant", "content": "Once upon" }]);
    server.chat(&json!({ "messages": messages, "continue_final_message": true }));
    assert_eq!(server.last_prompt(), "<|im_start|>assistant\nOnce upon");
}

#[test]
fn harmless_chat_fields_are_accepted() {
    let server = Setup::default().says("x");
    let reply = server.chat(&json!({
        "model": "owl", "user": "me", "metadata": { "a": "b" }, "store": true, "service_tier": "auto",
        "parallel_tool_calls": true, "safety_identifier": "s", "prompt_cache_key": "k",
        "prompt_cache_retention": "24h", "prediction": { "type": "content", "content": "x" },
        "response_format": { "type": "text" }, "modalities": ["text"], "verbosity": "medium", "audio": null,
        "some_field_of_tomorrow": [1, { "a": 2 }], "n": null, "stop": null, "stream_options": null, "logit_bias": null,
    }));
    assert_eq!(reply.status, 200, "{}", reply.body);
}

//! `POST /v1/completions`, field by field.

use lanner::config::ModelConfig;
use serde_json::{Value, json};

use crate::support::{
    checkpoint,
    server::{IM_END, Setup, token, tokenizer_json, tokens},
};

#[test]
fn completion_has_openai_shape() {
    let server = Setup::default().says("Hello");
    let mut answer = server.complete(&json!({ "prompt": "ab" })).json();
    assert!(answer["id"].take().as_str().unwrap().starts_with("cmpl-"));
    answer["created"].take();
    assert_eq!(answer.as_object_mut().unwrap().remove("timings").unwrap()["predicted_n"], 6);
    assert_eq!(
        answer,
        json!({
            "id": null,
            "object": "text_completion",
            "created": null,
            "model": "owl",
            "choices": [{ "index": 0, "text": "Hello", "logprobs": null, "finish_reason": "stop" }],
            "usage": {
                "prompt_tokens": 2,
                "completion_tokens": 6,
                "total_tokens": 8,
                "prompt_tokens_details": { "cached_tokens": 0 },
                "completion_tokens_details": { "reasoning_tokens": 0 },
                "lanner": { "cache": { "source": null, "cached_tokens": 0, "miss": null },
                    "speculation": { "drafted": 0, "accepted": 0, "by_drafter": {} } },
            },
        })
    );
    assert_eq!(server.last_request().prompt, [97, 98]);
    assert_eq!(server.last_request().max_tokens, 16);
}

#[test]
fn prompt_is_text_ids_or_a_list_of_either() {
    let server = Setup::default().says("x");
    for (prompt, prompts) in
        [(json!("ab"), 1), (json!(["ab", "c"]), 2), (json!([97, 98]), 1), (json!([[97], [98, 99], [100]]), 3)]
    {
        let answer = server.complete(&json!({ "prompt": prompt, "n": 2 })).json();
        let choices = answer["choices"].as_array().unwrap();
        assert_eq!(choices.len(), 2 * prompts);
        assert!(
            choices
                .iter()
                .enumerate()
                .all(|(index, choice)| choice["index"] == index && choice["text"] == "x")
        );
    }
    server.complete(&json!({ "prompt": "<|im_start|>" }));
    assert_eq!(server.last_request().prompt, [256]);
}

#[test]
fn echo_with_logprobs_covers_prompt_and_completion() {
    let server = Setup::default().says("yz");
    let answer = server.complete(&json!({ "prompt": "é!", "echo": true, "logprobs": 1 })).json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "é!yz");
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["\u{FFFD}", "\u{FFFD}", "!", "y", "z"]));
    assert_eq!(logprobs["token_logprobs"], json!([null, -0.5, -0.5, -0.5, -0.5]));
    // The second byte of a character has the offset of the next character.
    assert_eq!(logprobs["text_offset"], json!([0, 1, 1, 2, 3]));
    assert_eq!(logprobs["top_logprobs"][0], Value::Null);
    assert_eq!(logprobs["top_logprobs"][3], json!({ "y": -0.5 }));

    let answer = server.complete(&json!({ "prompt": [97, 256], "echo": true })).json();
    assert_eq!(answer["choices"][0]["text"], "a<|im_start|>yz");
    assert_eq!(answer["choices"][0]["logprobs"], Value::Null);
}

#[test]
fn text_offset_is_the_position_of_the_token_in_the_text() {
    // A control token in the answer has no text.
    let server = Setup::default().script(|_, at| token([97, 256, 98][at.min(2)]));
    let answer = server.complete(&json!({ "prompt": "p", "logprobs": 0, "max_tokens": 3 })).json();
    let choice = &answer["choices"][0];
    assert_eq!((&choice["text"], &choice["logprobs"]["text_offset"]), (&json!("ab"), &json!([0, 1, 1])));

    // A control token in the prompt has the client's text.
    let server = Setup::default().says("y");
    for prompt in [json!("a<|im_start|>b"), json!([97, 256, 98])] {
        let body = json!({ "prompt": prompt, "echo": true, "logprobs": 0 });
        let choice = server.complete(&body).json()["choices"][0].take();
        assert_eq!(choice["text"], "a<|im_start|>by");
        assert_eq!(choice["logprobs"]["text_offset"], json!([0, 1, 13, 14]));
    }

    // Invalid bytes count as one character each, as in the text.
    let choice = server.complete(&json!({ "prompt": [0x80, 0xff, 97], "echo": true, "logprobs": 0 })).json()
        ["choices"][0]
        .take();
    assert_eq!(choice["text"], "\u{FFFD}\u{FFFD}ay");
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 1, 2, 3]));
}

#[test]
fn echo_with_zero_max_tokens_scores_the_prompt() {
    let server = Setup::default().says("yz");
    let answer =
        server.complete(&json!({ "prompt": "abc", "echo": true, "logprobs": 2, "max_tokens": 0 })).json();
    let choice = &answer["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("abc"), &json!("length")));
    assert_eq!(choice["logprobs"]["tokens"], json!(["a", "b", "c"]));
    assert_eq!(choice["logprobs"]["top_logprobs"][1], json!({ "b": -0.5, "c": -1.5 }));
    assert_eq!(answer["usage"]["completion_tokens"], 0);
}

#[test]
fn return_token_ids_returns_token_ids() {
    let server = Setup::default().says("yz");
    let request = json!({ "prompt": "ab", "return_token_ids": true, "stop": "z" });
    let choice = server.complete(&request).json()["choices"][0].take();
    assert_eq!(choice["text"], "y");
    assert_eq!(choice["prompt_token_ids"], json!(tokens("ab")));
    assert_eq!(choice["token_ids"], json!(tokens("yz")));
}

#[test]
fn completion_stream_equals_the_non_streaming_answer() {
    for text in ["", "plain", "<think>x</think>é🦅"] {
        let server = Setup::default().says(text);
        for request in [
            json!({ "prompt": "ab" }),
            json!({ "prompt": ["ab", "c"], "n": 2, "echo": true, "logprobs": 3, "return_token_ids": true }),
            json!({ "prompt": "ab", "stop": ["ai", "x<"], "logprobs": 0 }),
            json!({ "prompt": "ab", "max_tokens": 0, "echo": true, "logprobs": 1 }),
        ] {
            let whole = server.complete(&request).json();
            let mut streamed = request.clone();
            streamed["stream"] = true.into();
            streamed["stream_options"] = json!({ "include_usage": true });
            let reply = server.complete(&streamed);
            assert!(reply.is_done());
            let events = reply.events();
            for choice in whole["choices"].as_array().unwrap() {
                let mut pieces = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
                let joined = pieces.by_ref().filter(|piece| piece["index"] == choice["index"]).fold(
                    json!({ "index": choice["index"], "text": "", "logprobs": null, "finish_reason": null }),
                    join,
                );
                assert_eq!(&joined, choice, "{text:?} {request}");
            }
            assert_eq!(events.last().unwrap()["usage"], whole["usage"]);
        }
    }
}

/// Joins values as a client would: appends strings and lists, merges objects by key, replaces null.
fn join(whole: Value, piece: &Value) -> Value {
    match (whole, piece) {
        (whole, Value::Null) => whole,
        (Value::String(text), Value::String(more)) => (text + more).into(),
        (Value::Array(items), Value::Array(more)) => [items, more.clone()].concat().into(),
        (Value::Object(mut object), Value::Object(more)) => {
            for (key, value) in more {
                let joined = join(object.remove(key).unwrap_or_default(), value);
                object.insert(key.clone(), joined);
            }
            object.into()
        }
        (_, piece) => piece.clone(),
    }
}

#[test]
fn choices_of_all_prompts_have_distinct_seeds() {
    let server = Setup::default().script(|request, n| {
        let ids = tokens(&format!("seed {}", request.sampling.seed));
        token(ids.get(n).copied().unwrap_or(IM_END))
    });
    let seeds = |body: &Value| -> Vec<String> {
        let answer = server.complete(body).json();
        let choices = answer["choices"].as_array().unwrap().iter();
        choices.map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
    };
    let body = json!({ "prompt": ["a", "a", "b"], "n": 2, "seed": 40, "max_tokens": 40 });
    assert_eq!(seeds(&body), (40..46).map(|seed| format!("seed {seed}")).collect::<Vec<_>>());
    let last = json!({ "prompt": "a", "n": 2, "seed": -1, "max_tokens": 40 });
    assert_eq!(seeds(&last), [format!("seed {}", u64::MAX), "seed 0".into()]);
}

/// The rule of mlx-lm.
#[test]
fn tokenizer_eos_applies_to_a_model_without_one() {
    let folder = checkpoint::folder("qwen3_5-hub");
    let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
    let path = folder.path().join("config.json");
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    config["eos_token_id"] = Value::Null;
    config["text_config"]["eos_token_id"] = Value::Null;
    write("config.json", config.to_string());
    write("tokenizer.json", tokenizer_json());
    write("tokenizer_config.json", json!({ "eos_token": { "content": "</think>" } }).to_string());
    let usual = Setup::default();
    let model = Some(folder.path().to_str().unwrap().to_owned());
    let server = Setup { models: ModelConfig { model, ..usual.models }, ..Setup::default() }.merlin();
    let end = |token: u32| {
        let bias = json!({ token.to_string(): 10_000 });
        let answer = server.complete(&json!({ "prompt": "a", "max_tokens": 3, "logit_bias": bias })).json();
        (answer["choices"][0]["finish_reason"].clone(), answer["usage"]["completion_tokens"].clone())
    };
    assert_eq!(end(259), (json!("stop"), json!(1)));
    assert_eq!(end(258), (json!("length"), json!(3)));
}

#[test]
fn suffix_stands_after_the_answer_in_a_model_that_fills_in() {
    let folder = checkpoint::folder("qwen3_5-hub");
    let control =
        [("<|im_start|>", "<|fim_prefix|>"), ("<think>", "<|fim_suffix|>"), ("</think>", "<|fim_middle|>")];
    let tokenizer = control.iter().fold(tokenizer_json(), |json, (from, to)| json.replace(from, to));
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer).unwrap();
    let usual = Setup::default();
    let model = Some(folder.path().to_str().unwrap().to_owned());
    let server = Setup { models: ModelConfig { model, ..usual.models }, ..Setup::default() }.merlin();
    let body = json!({ "prompt": "ab", "suffix": "c", "max_tokens": 2, "return_token_ids": true });
    let reply = server.complete(&body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(reply.json()["choices"][0]["prompt_token_ids"], json!([256, 97, 98, 258, 99, 259]));
}

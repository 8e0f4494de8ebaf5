//! Thinking that ends: budgets, loops, the answer after them, and who decides.

use engine::Request;
use serde_json::{Value, json};

use crate::support::{
    client::Reply,
    server::{IM_END, Setup, TestServer, token, tokens},
};

/// A thought that does not repeat itself.
const THOUGHT: &str = "First 17, then 29 and 31; so 37 fits, for 41 is odd and 43 too. 47 does not, nor 53.";

/// Writes the texts one after the other, a byte a token, and ends its turn; forced tokens come
/// between.
fn writes(texts: &[&str]) -> TestServer {
    let script: Vec<u32> = texts.iter().flat_map(|text| tokens(text)).collect();
    Setup::default().script(move |_: &Request, n| token(script.get(n).copied().unwrap_or(IM_END)))
}

/// Content, reasoning, finish reason and usage of an answer.
#[derive(Debug, PartialEq)]
struct Answer {
    content: String,
    reasoning: String,
    reason: Value,
    details: Value,
    usage: Value,
}

fn whole(reply: &Reply) -> Answer {
    assert_eq!(reply.status, 200, "{}", reply.body);
    let answer = reply.json();
    let choice = &answer["choices"][0];
    let text = |name: &str| choice["message"][name].as_str().unwrap_or_default().to_owned();
    Answer {
        content: text("content"),
        reasoning: text("reasoning_content"),
        reason: choice["finish_reason"].clone(),
        details: choice["finish_details"].clone(),
        usage: answer["usage"].clone(),
    }
}

fn streamed(reply: &Reply) -> Answer {
    let mut answer = Answer {
        content: String::new(),
        reasoning: String::new(),
        reason: Value::Null,
        details: Value::Null,
        usage: Value::Null,
    };
    for data in reply.body.lines().filter_map(|line| line.strip_prefix("data: {")) {
        let chunk: Value = serde_json::from_str(&format!("{{{data}")).unwrap();
        let choice = &chunk["choices"][0];
        answer.content += choice["delta"]["content"].as_str().unwrap_or_default();
        answer.reasoning += choice["delta"]["reasoning_content"].as_str().unwrap_or_default();
        for (to, from) in [
            (&mut answer.reason, &choice["finish_reason"]),
            (&mut answer.details, &choice["finish_details"]),
            (&mut answer.usage, &chunk["usage"]),
        ] {
            if !from.is_null() {
                *to = from.clone();
            }
        }
    }
    answer
}

/// The answer to a request, which is the same as a stream.
fn ask(server: &TestServer, body: &Value) -> Answer {
    let answer = whole(&server.chat(body));
    let mut body = body.clone();
    body["stream"] = json!(true);
    body["stream_options"] = json!({ "include_usage": true });
    assert_eq!(streamed(&server.chat(&body)), answer, "{body}");
    answer
}

#[test]
fn budget_closes_thinking_and_the_answer_arrives() {
    for budget in [1, 2, 7, 40, THOUGHT.len() - 1] {
        let server = writes(&["<think>", &THOUGHT[..budget], "Yes."]);
        let answer = ask(&server, &json!({ "max_thinking_tokens": budget }));
        let expected =
            format!("{}\n\nI have thought enough. I now give the final answer.", &THOUGHT[..budget]);
        assert_eq!((answer.reasoning.as_str(), answer.content.as_str()), (&*expected, "Yes."));
        assert_eq!(answer.reason, "stop");
        let thinking = &answer.usage["lanner"]["thinking"];
        assert_eq!((&thinking["cut"], &thinking["budget"]), (&json!("budget"), &json!(budget)));
        // The markers count as thinking, the end of the turn as answer.
        assert_eq!(thinking["answer_tokens"], 5);
        let reasoning = answer.usage["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
        assert_eq!(reasoning as usize, 1 + expected.len() + 2);
        assert_eq!(answer.usage["completion_tokens"], reasoning + 5);
    }
}

#[test]
fn thinking_within_its_budget_is_the_models_own() {
    let server = writes(&["<think>", THOUGHT, "</think>\n\nYes."]);
    let answer = ask(&server, &json!({ "max_thinking_tokens": THOUGHT.len() + 1 }));
    assert_eq!((answer.reasoning.as_str(), answer.content.as_str()), (THOUGHT, "Yes."));
    assert_eq!(answer.usage["lanner"]["thinking"]["cut"], Value::Null);
}

#[test]
fn budget_has_the_spellings_of_other_servers() {
    let server = writes(&["<think>", THOUGHT, "</think>Yes."]);
    for (body, expected) in [
        (json!({}), 32_768),
        (json!({ "max_thinking_tokens": 70 }), 70),
        (json!({ "thinking_budget": 71 }), 71),
        (json!({ "thinking_token_budget": 72 }), 72),
        (json!({ "thinking": { "type": "enabled", "budget_tokens": 73 } }), 73),
        (json!({ "reasoning_effort": "low" }), 2048),
        (json!({ "reasoning_effort": "medium" }), 8192),
        (json!({ "reasoning_effort": "high" }), 32_768),
        (json!({ "reasoning_effort": "low", "thinking_budget": 5000 }), 5000),
    ] {
        let answer = whole(&server.chat(&body));
        assert_eq!(answer.usage["lanner"]["thinking"]["budget"], expected, "{body}");
    }
    for (body, param) in [
        (json!({ "thinking_budget": 1, "max_thinking_tokens": 2 }), "thinking_budget"),
        (json!({ "thinking": { "type": "owl" } }), "thinking.type"),
        (json!({ "enable_thinking": "owl" }), "enable_thinking"),
        (json!({ "thinking_escape": "" }), "thinking_escape"),
        (json!({ "repetition": "owl" }), "repetition"),
    ] {
        let reply = server.chat(&body);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)), "{}", reply.body);
    }
}

#[test]
fn loop_in_thinking_is_closed_and_the_answer_arrives() {
    for period in [1, 3, 16, 40] {
        let block = &THOUGHT[..period];
        let text = block.repeat(100);
        // The detector needs four blocks, and 96 tokens; one more may be computed already.
        let seen = (4 * period).max(96) + 1;
        let server = writes(&["<think>", &text[..seen], "Yes."]);
        let answer = ask(&server, &json!({}));
        assert_eq!((answer.content.as_str(), &answer.reason), ("Yes.", &json!("stop")), "period {period}");
        assert_eq!(answer.usage["lanner"]["thinking"]["cut"], "repetition");
    }
}

#[test]
fn transition_follows_the_request() {
    let schema = json!({ "type": "json_object" });
    let user = |text: &str| json!([{ "role": "user", "content": text }]);
    let tool =
        json!([{ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } }]);
    for (body, expected) in [
        (json!({ "response_format": schema }), "The answer is the JSON and nothing else."),
        (json!({ "guided_regex": ".*" }), "exactly the required format."),
        (json!({ "tools": tool }), "I now call a tool if one is needed"),
        (
            json!({ "messages": user("Translate this to French.") }),
            "The answer is the translation into French.",
        ),
        (
            json!({ "messages": user("Bitte nicht: wie ist das mit der Uhr und so?") }),
            "Ich habe genug nachgedacht.",
        ),
        (json!({ "thinking_escape": "So be it." }), "So be it."),
        (json!({ "thinking_escape": "off" }), "First"),
    ] {
        let mut body = body;
        body["max_thinking_tokens"] = json!(5);
        let server = writes(&["<think>", &THOUGHT[..5], "{}"]);
        let answer = ask(&server, &body);
        assert!(answer.reasoning.contains(expected), "{body}: {answer:?}");
        assert!(answer.reasoning.len() < 6 || body["thinking_escape"] != "off", "{answer:?}");
        assert_eq!(answer.content, "{}");
    }
}

#[test]
fn document_of_thinking_has_every_sentence() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/thinking.md");
    let document = std::fs::read_to_string(path).unwrap();
    for sentence in ::chat::thinking::sentences() {
        assert!(document.contains(sentence), "docs/thinking.md lacks: {sentence}");
    }
}

#[test]
fn max_tokens_counts_the_answer_and_max_completion_tokens_both() {
    let server = writes(&["<think>", THOUGHT, "</think>\n\nYes, it does."]);
    let answer = ask(&server, &json!({ "max_tokens": 4 }));
    assert_eq!((answer.content.as_str(), &answer.reason), ("Ye", &json!("length")), "the line feeds count");
    assert_eq!(answer.usage["lanner"]["thinking"]["answer_tokens"], 4);
    assert_eq!(answer.reasoning, THOUGHT);
    // A quarter is left for the answer, and the sentence takes some of it.
    let answer = ask(&server, &json!({ "max_completion_tokens": 80, "thinking_escape": "off" }));
    assert_eq!((&answer.reason, &answer.usage["completion_tokens"]), (&json!("length"), &json!(80)));
    assert_eq!(answer.usage["lanner"]["thinking"]["cut"], "budget");
    assert!(answer.reasoning.len() == 58 && !answer.content.is_empty(), "{answer:?}");
}

#[test]
fn turn_that_ends_within_thinking_goes_on_with_an_answer() {
    let server = Setup::default().merlin();
    // Whatever merlin thinks of it, the answer is in the content.
    for text in ["Hi!", "What is 12 + 30?", "Tell me a story."] {
        let body = json!({ "messages": [{ "role": "user", "content": text }], "enable_thinking": true,
                           "temperature": 0, "max_tokens": 40, "max_thinking_tokens": 60 });
        let answer = whole(&server.chat(&body));
        assert!(!answer.content.trim().is_empty(), "{text}: {answer:?}");
    }
}

#[test]
fn repeated_answer_ends_only_where_asked() {
    let text = "so it is; ".repeat(30);
    let server =
        Setup::default().script(move |_: &Request, n| token(tokens(&text).get(n).copied().unwrap_or(IM_END)));
    for body in [json!({}), json!({ "repetition": "ignore" })] {
        let answer = ask(&server, &body);
        assert_eq!((answer.content.len(), &answer.reason), (300, &json!("stop")));
        assert_eq!(answer.details, Value::Null);
    }
    let answer = ask(&server, &json!({ "repetition": "stop" }));
    assert_eq!((answer.content.len(), &answer.reason), (96, &json!("length")));
    assert_eq!(answer.details, json!({ "type": "repetition" }));
}

#[test]
fn request_keyword_and_rules_decide_in_this_order() {
    let server = writes(&["Yes."]);
    let long = json!({ "role": "system", "content": "word ".repeat(650) });
    let user = |text: &str| json!({ "role": "user", "content": text });
    let kwargs = |value: bool| json!({ "thinking": value });
    for (messages, more, enabled, rule) in [
        (json!([user("Hi")]), json!({}), true, "template"),
        (json!([user("Hi /no_think")]), json!({}), false, "keyword"),
        (json!([user("Hi /think")]), json!({ "enable_thinking": "auto" }), true, "keyword"),
        (json!([user("Hi /think")]), json!({ "enable_thinking": false }), false, "request"),
        (json!([user("Hi")]), json!({ "thinking": { "type": "disabled" } }), false, "request"),
        (json!([user("Hi")]), json!({ "reasoning_effort": "none" }), false, "request"),
        (json!([user("Hi")]), json!({ "reasoning_effort": "high" }), true, "request"),
        (json!([user("Hi")]), json!({ "chat_template_kwargs": kwargs(false) }), false, "request"),
        (json!([user("Who is it?")]), json!({ "enable_thinking": "auto" }), false, "short_question"),
        (json!([user("Say it.")]), json!({ "thinking": { "type": "auto" } }), true, "otherwise"),
    ] {
        let mut body = more;
        body["messages"] = messages;
        let answer = whole(&server.chat(&body));
        let thinking = &answer.usage["lanner"]["thinking"];
        assert_eq!((&thinking["enabled"], &thinking["rule"]), (&json!(enabled), &json!(rule)), "{body}");
        assert_eq!(server.last_prompt().ends_with("</think>\n\n"), !enabled, "{body}");
    }
    let merlin = Setup::default().merlin();
    let body = json!({ "messages": [long, user("Which word is it?")], "enable_thinking": "auto", "max_tokens": 1,
                       "max_thinking_tokens": 1 });
    assert_eq!(whole(&merlin.chat(&body)).usage["lanner"]["thinking"]["rule"], "needle");
    let plain = Setup { template: "{{ messages[0].content }}", ..Setup::default() }.says("x");
    let answer = whole(&plain.chat(&json!({ "enable_thinking": "auto" })));
    assert_eq!(answer.usage["lanner"]["thinking"], Value::Null, "it has no thinking");
}

#[test]
fn merlin_answers_short_questions_in_the_content_after_thinking() {
    let server = Setup::default().merlin();
    for (question, expected) in
        [("What is 7 + 5?", "12"), ("What is 23 + 14?", "37"), ("What is 9 times 6?", "54")]
    {
        let body = json!({ "messages": [{ "role": "user", "content": question }], "reasoning_effort": "high",
                           "temperature": 0, "max_tokens": 60 });
        let answer = whole(&server.chat(&body));
        assert!(answer.content.contains(expected), "{question}: {answer:?}");
        assert!(!answer.reasoning.is_empty() && answer.reason == "stop", "{question}: {answer:?}");
    }
}

#[test]
fn merlin_finds_needles_after_thinking() {
    let server = Setup::default().merlin();
    let filler = "The river was calm that day, and the boats lay still in the harbor. ";
    for depth in [10, 50, 90] {
        let mut text = filler.repeat(80);
        let at = filler.len() * 80 * depth / 100;
        let at = text[..at].rfind(". ").unwrap() + 2;
        text.insert_str(at, "The vault code is 7421. ");
        let body = json!({
            "messages": [{ "role": "user", "content": format!("{text}\n\nWhat is the vault code?") }],
            "enable_thinking": true, "temperature": 0, "max_tokens": 60,
        });
        let answer = whole(&server.chat(&body));
        assert!(answer.content.contains("7421"), "depth {depth}: {answer:?}");
    }
}

#[test]
fn forced_loop_of_merlin_escapes_into_valid_json() {
    let server = Setup::default().merlin();
    let tokenized = crate::support::client::post(server.address, "/tokenize", &json!({ "content": "again" }));
    let id = tokenized.json()["tokens"][0].to_string();
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer", "minimum": 0, "maximum": 99 } },
                         "required": ["n"], "additionalProperties": false });
    let mut answers = vec![];
    for speculation in ["off", "auto", "ngram:4"] {
        let speculation = match speculation.split_once(':') {
            Some((drafter, depth)) => json!({ "drafter": drafter, "depth": depth.parse::<u64>().unwrap() }),
            None => json!(speculation),
        };
        for n in [1, 3] {
            let body = json!({ "enable_thinking": true, "temperature": 0, "logit_bias": { (&*id): 1000 }, "n": n,
                               "speculation": speculation, "logprobs": true, "max_tokens": 60,
                               "response_format": { "type": "json_schema", "json_schema": { "schema": schema } } });
            let reply = server.chat(&body);
            let answer = whole(&reply);
            let value: Value = serde_json::from_str(&answer.content).unwrap();
            assert!(value["n"].is_u64(), "{answer:?}");
            assert_eq!(answer.usage["lanner"]["thinking"]["cut"], "repetition", "{answer:?}");
            assert!(answer.reasoning.ends_with("The answer is the JSON and nothing else."), "{answer:?}");
            let json = reply.json();
            let choices = json["choices"].as_array().unwrap();
            answers
                .extend(choices.iter().map(|choice| (choice["message"].clone(), choice["logprobs"].clone())));
        }
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "batch and drafts change nothing");
}

#[test]
fn thinking_of_gpt_oss_is_closed_into_the_channel_of_answers_or_calls() {
    let template = "{#- <|channel|> -#}{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>\
                    {% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}";
    let tool = json!({ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } });
    let call = " to=functions.f <|constrain|>json<|message|>{}<|call|>";
    let sentences =
        ["I now give the final answer.", "I now call a tool if one is needed, and answer otherwise."];
    let channels = ["final<|message|>", "commentary"];
    for (body, kind, rest, content) in [
        (json!({}), 0, "Yes.", "Yes."),
        (json!({ "tools": [tool] }), 1, "<|message|>No tool.", "No tool."),
        (json!({ "tools": [tool] }), 1, call, ""),
    ] {
        // The script has the forced text too: some of it is in the text after it.
        let expected = format!("{}\n\nI have thought enough. {}", &THOUGHT[..9], sentences[kind]);
        let closing = format!("<|end|><|start|>assistant<|channel|>{}", channels[kind]);
        let script = tokens(&["<|channel|>analysis<|message|>", &expected, &closing, rest].concat());
        let setup = Setup { template, ..Setup::default() };
        let server = setup.script(move |_: &Request, n| token(script.get(n).copied().unwrap_or(IM_END)));
        let mut body = body;
        body["max_thinking_tokens"] = json!(9);
        let answer = ask(&server, &body);
        assert_eq!((answer.reasoning.as_str(), answer.content.as_str()), (&*expected, content), "{body}");
        assert_eq!(answer.usage["lanner"]["thinking"]["cut"], "budget");
        assert_eq!(answer.reason, if content.is_empty() { "tool_calls" } else { "stop" }, "{body}");
    }
}

#[test]
fn turn_after_a_cut_reuses_the_state_of_the_sentence() {
    let tool = json!({ "type": "function", "function": {
        "name": "get_weather", "parameters": { "type": "object", "properties": { "city": { "type": "string" } },
                                               "required": ["city"] } } });
    let body = json!({ "messages": [{ "role": "user", "content": "What is the weather in Paris?" }],
                       "tools": [tool], "tool_choice": "required", "enable_thinking": true, "temperature": 0,
                       "max_thinking_tokens": 5, "max_tokens": 60 });
    let warm = Setup::default().merlin();
    let first = warm.chat(&body).json();
    let message = &first["choices"][0]["message"];
    assert_eq!(first["usage"]["lanner"]["thinking"]["cut"], "budget", "{first}");
    let call = &message["tool_calls"][0];
    let result = json!({ "role": "tool", "tool_call_id": call["id"], "content": "{\"sky\": \"clear\"}" });
    let mut next = body.clone();
    next["messages"].as_array_mut().unwrap().extend([message.clone(), result]);
    next["tool_choice"] = json!("auto");
    let [warm, cold] = [warm, Setup::default().merlin()].map(|server| server.chat(&next).json());
    assert_eq!(warm["choices"][0]["message"]["content"], cold["choices"][0]["message"]["content"]);
    let count = |answer: &Value, path: &str| answer.pointer(path).and_then(Value::as_u64).unwrap();
    let cached = |answer: &Value| count(answer, "/usage/prompt_tokens_details/cached_tokens");
    let reasoning = count(&first, "/usage/completion_tokens_details/reasoning_tokens");
    let least = count(&first, "/usage/prompt_tokens") + reasoning;
    assert!(cached(&warm) >= least && cached(&cold) == 0, "{} of {least}: {warm}", cached(&warm));
}

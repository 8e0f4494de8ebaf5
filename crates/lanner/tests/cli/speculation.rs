//! Speculation, from the field of a request to its usage.

use engine::Speculate;
use serde_json::{Value, json};

use crate::support::{
    client::Reply,
    process::ServerProcess,
    server::{Setup, TestServer},
};

#[test]
fn speculation_field_selects_the_drafter() {
    let server = Setup::default().says("x");
    let fixed = |depth| Speculate::Fixed { drafter: "ngram".into(), depth };
    for (asked, expected) in [
        (Value::Null, None),
        (json!("off"), Some(Speculate::Off)),
        (json!("auto"), Some(Speculate::Auto)),
        (json!("ngram:5"), Some(fixed(Some(5)))),
        (json!({ "drafter": "ngram" }), Some(fixed(None))),
        (json!({ "drafter": "ngram", "depth": 0 }), Some(fixed(Some(0)))),
        (json!({ "drafter": "ngram", "depth": 2, "lossy": false }), Some(fixed(Some(2)))),
        (json!({ "drafter": "self", "lossy": true }), Some(Speculate::Lossy)),
        (json!("self:lossy"), Some(Speculate::Lossy)),
    ] {
        assert_eq!(server.chat(&json!({ "speculation": asked })).status, 200);
        assert_eq!(server.last_request().speculation, expected);
        assert_eq!(server.complete(&json!({ "prompt": "a", "speculation": asked })).status, 200);
        assert_eq!(server.last_request().speculation, expected);
    }
}

#[test]
fn speculation_usage_is_reported_and_the_answer_is_unchanged() {
    let server = ServerProcess::start(&["--speculate", "ngram:6"]);
    let list = "one two three four five six seven eight nine ten ";
    let ask = |speculation: Value| {
        let body = json!({ "prompt": list.repeat(4), "max_tokens": 60, "temperature": 0, "ignore_eos": true,
                           "speculation": speculation });
        let reply = server.complete(&body).json();
        (reply["choices"][0]["text"].clone(), reply["usage"]["lanner"]["speculation"].clone())
    };
    let (plain, nothing) = ask(json!("off"));
    assert_eq!(nothing, json!({ "drafted": 0, "accepted": 0, "by_drafter": {} }));
    for speculation in [Value::Null, json!("auto"), json!({ "drafter": "ngram", "depth": 3 })] {
        let of = |report: &Value, what: &str| report[what].as_u64().unwrap();
        let (mut text, mut report) = ask(speculation.clone());
        // On a busy machine, measurements may find for a while that drafts do not pay.
        for _ in 0..50 {
            if speculation != json!("auto") || of(&report, "accepted") > 10 {
                break;
            }
            (text, report) = ask(speculation.clone());
            assert_eq!(text, plain);
        }
        assert_eq!(text, plain);
        let (drafted, accepted) = (of(&report, "drafted"), of(&report, "accepted"));
        assert!(drafted >= accepted && accepted > 10, "{report}");
        let by_drafter = report["by_drafter"].as_object().unwrap();
        let sum = |of: &str| by_drafter.values().map(|by| by[of].as_u64().unwrap()).sum::<u64>();
        assert_eq!((sum("drafted"), sum("accepted")), (drafted, accepted), "{report}");
        if speculation != json!("auto") {
            assert_eq!(by_drafter.keys().collect::<Vec<_>>(), ["ngram"], "{report}");
        }
    }
}

#[test]
fn unavailable_drafter_is_refused_with_one_sentence() {
    let server = Setup::default().merlin();
    for (asked, expected) in [
        (
            json!("draft_model"),
            "there is no drafter `draft_model` for this model; there are ngram, mtp, self",
        ),
        (json!({ "drafter": "draft_model", "depth": 3 }), "there is no drafter `draft_model` for this model"),
        (json!({ "drafter": "psychic" }), "there is no drafter `psychic` for this model"),
        (json!("psychic:2"), "there is no drafter `psychic` for this model"),
        (json!({ "drafter": "scripted" }), "there is no drafter `scripted`"),
        (json!({ "drafter": "" }), "there is no drafter ``"),
        (json!({ "drafter": "ngram", "depth": 33 }), "a draft of 33 tokens is too long; it has at most 32"),
        (json!("ngram:33"), "`ngram:33`: a draft has 0 to 32 tokens"),
        (json!({ "drafter": "ngram", "depth": -1 }), "`auto`, `off` or an object with `drafter`"),
        (json!({ "depth": 3 }), "`auto`, `off` or an object with `drafter`"),
        (json!("auto:3"), "`auto:3` is not auto, off"),
        (json!({ "drafter": "ngram", "lossy": true }), "only the drafter self has a lossy form, not `ngram`"),
        (json!("mtp:lossy"), "`mtp:lossy`: only self has a lossy form"),
        (json!({ "drafter": "self", "depth": 2, "lossy": true }), "so it takes no depth"),
        (json!({ "drafter": "self", "lossy": "very" }), "`auto`, `off` or an object with `drafter`"),
        (json!({ "lossy": true }), "`auto`, `off` or an object with `drafter`"),
    ] {
        for stream in [false, true] {
            let body = json!({ "prompt": "a", "max_tokens": 2, "speculation": asked, "stream": stream });
            for reply in [server.chat(&body), server.complete(&body)] {
                assert_eq!(reply.status, 400, "{asked}: {}", reply.body);
                let error = &reply.json()["error"];
                let message = error["message"].as_str().unwrap();
                assert!(message.contains(expected), "{asked}: {message}");
                assert!(!message.contains('\n') && !message.contains(". "), "one sentence: {message}");
                let named = (error["param"].as_str(), error["type"].as_str());
                assert_eq!(named, (Some("speculation"), Some("invalid_request_error")), "{asked}");
            }
        }
    }
}

/// Whether the header and the usage of an answer report skipped layers.
fn says_so(reply: &Reply, usage: &Value) -> [bool; 2] {
    assert_eq!(reply.status, 200, "{}", reply.body);
    let reported = &usage["lanner"]["lossy"];
    assert!(reported.is_null() || *reported == json!(["skipped_layers"]), "{reported}");
    [reply.head.to_lowercase().contains("\r\nlanner-lossy: skipped_layers"), !reported.is_null()]
}

fn merlin_alone() -> TestServer {
    Setup::default().merlin()
}

#[test]
fn only_lossy_answers_report_lossy() {
    let server = merlin_alone();
    let lossy = json!({ "drafter": "self", "lossy": true });
    let text = |reply: &Reply| reply.json()["choices"].to_string();
    let body = |speculation: &Value, more: Value| {
        let mut body = json!({ "prompt": "The old house by the river", "max_tokens": 40, "temperature": 0,
                               "ignore_eos": true, "speculation": speculation });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let exact = server.complete(&body(&json!("off"), json!({})));
    assert_eq!(says_so(&exact, &exact.json()["usage"]), [false, false]);
    let drafted = server.complete(&body(&json!("self:2"), json!({})));
    assert_eq!((says_so(&drafted, &drafted.json()["usage"]), text(&drafted)), ([false, false], text(&exact)));
    let whole = server.complete(&body(&lossy, json!({})));
    assert_eq!(says_so(&whole, &whole.json()["usage"]), [true, true]);
    assert_ne!(text(&whole), text(&exact), "it is another answer");
    assert_eq!(whole.json()["usage"]["lanner"]["speculation"]["drafted"], 0);
    assert_eq!(
        text(&server.complete(&body(&json!("off"), json!({})))),
        text(&exact),
        "the next answer is exact"
    );

    let streamed = server.complete(&body(&lossy, json!({ "stream": true })));
    assert_eq!(says_so(&streamed, &Value::Null), [true, false]);
    let joined: String = streamed
        .events()
        .iter()
        .map(|event| event["choices"][0]["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(whole.json()["choices"][0]["text"], joined);
    let options = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let streamed = server.complete(&body(&lossy, options));
    assert_eq!(says_so(&streamed, &streamed.events().last().unwrap()["usage"]), [true, true]);
    let chat = server.chat(&body(&lossy, json!({ "max_tokens": 3 })));
    assert_eq!(says_so(&chat, &chat.json()["usage"]), [true, true]);
}

#[test]
fn lossy_choices_equal_separate_lossy_requests() {
    let server = merlin_alone();
    let lossy = json!({ "drafter": "self", "lossy": true });
    let ask = |more: Value| {
        let mut body = json!({ "prompt": "The old house", "max_tokens": 20, "temperature": 1.0, "seed": 5,
                               "logprobs": 2, "ignore_eos": true, "speculation": lossy });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.complete(&body)
    };
    let three = ask(json!({ "n": 3 }));
    assert_eq!(says_so(&three, &three.json()["usage"]), [true, true]);
    for (choice, seed) in (5..8).enumerate() {
        let mut alone = ask(json!({ "seed": seed })).json()["choices"][0].take();
        alone["index"] = choice.into();
        assert_eq!(three.json()["choices"][choice], alone);
    }
    let exact = ask(json!({ "speculation": "off" })).json();
    let lossy = three.json();
    let [exact, lossy] = [exact, lossy].map(|of| of["choices"][0]["logprobs"]["token_logprobs"].clone());
    assert_eq!(exact[0], lossy[0], "the prompt is read by the whole model");
    assert_ne!(exact, lossy, "log-probabilities are those of what was computed");
}

#[test]
fn lossy_answer_is_not_replayed_for_an_exact_request() {
    let server = merlin_alone();
    let ask = |key: &str, speculation: Value| {
        server.complete(&json!({ "prompt": "The old house", "max_tokens": 8, "temperature": 0,
                                 "idempotency_key": key, "speculation": speculation }))
    };
    let lossy = json!({ "drafter": "self", "lossy": true });
    let first = ask("a", lossy.clone());
    let again = ask("a", lossy.clone());
    assert!(again.head.to_lowercase().contains("idempotent-replayed: true"), "{}", again.head);
    assert_eq!(again.json(), first.json());
    assert_eq!(says_so(&again, &again.json()["usage"]), [true, true]);
    for other in [Value::Null, json!("off"), json!("self:2")] {
        let reply = ask("a", other.clone());
        assert_eq!(
            (reply.status, &reply.json()["error"]["code"]),
            (400, &json!("idempotency_key_reused")),
            "{other}"
        );
    }
    // The drafter does not matter as long as drafts are verified.
    let first = ask("b", json!("off"));
    assert_eq!(ask("b", json!("self:2")).json(), first.json());
    assert_eq!(ask("b", lossy).status, 400);
}

#[test]
fn lossy_server_default_is_overridden_by_the_request() {
    let server = ServerProcess::start(&["--speculate", "self:lossy"]);
    let ask = |more: Value| {
        let mut body =
            json!({ "prompt": "The old house", "max_tokens": 8, "temperature": 0, "idempotency_key": "k" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        crate::support::client::post(server.address, "/v1/completions", &body)
    };
    let lossy = ask(json!({}));
    assert_eq!(says_so(&lossy, &lossy.json()["usage"]), [true, true]);
    assert_eq!(ask(json!({ "speculation": "auto" })).status, 400, "the key is that of a lossy request");
    let exact = ask(json!({ "speculation": "auto", "idempotency_key": "other" }));
    assert_eq!(says_so(&exact, &exact.json()["usage"]), [false, false]);
}

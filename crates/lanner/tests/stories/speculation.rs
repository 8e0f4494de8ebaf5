//! Speculation, from the request that asks for it to the usage that tells of it.

use engine::Speculate;
use serde_json::{Value, json};

use super::{server::Setup, serving::Serving};

#[test]
fn a_request_says_who_drafts() {
    let server = Setup::default().says("x");
    let fixed = |depth| Speculate::Fixed { drafter: "ngram".into(), depth };
    for (asked, expected) in [
        (Value::Null, None),
        (json!("off"), Some(Speculate::Off)),
        (json!("auto"), Some(Speculate::Auto)),
        (json!("ngram:5"), Some(fixed(Some(5)))),
        (json!({ "drafter": "ngram" }), Some(fixed(None))),
        (json!({ "drafter": "ngram", "depth": 0 }), Some(fixed(Some(0)))),
    ] {
        assert_eq!(server.chat(&json!({ "speculation": asked })).status, 200);
        assert_eq!(server.last_request().speculation, expected);
        assert_eq!(server.complete(&json!({ "prompt": "a", "speculation": asked })).status, 200);
        assert_eq!(server.last_request().speculation, expected);
    }
}

#[test]
fn an_answer_says_what_was_drafted_and_is_no_other() {
    let server = Serving::start(&["--speculate", "ngram:6"]);
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
        let (text, report) = ask(speculation.clone());
        assert_eq!(text, plain);
        let (drafted, accepted) = (report["drafted"].as_u64().unwrap(), report["accepted"].as_u64().unwrap());
        assert!(drafted >= accepted && accepted > 10, "{report}");
        let by_drafter = report["by_drafter"].as_object().unwrap();
        let sum = |of: &str| by_drafter.values().map(|by| by[of].as_u64().unwrap()).sum::<u64>();
        assert_eq!((sum("drafted"), sum("accepted")), (drafted, accepted), "{report}");
        if speculation != json!("auto") {
            assert_eq!(by_drafter.keys().collect::<Vec<_>>(), ["ngram"], "{report}");
        }
    }
}

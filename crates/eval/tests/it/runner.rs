//! The requests that are sent, the times that are measured, and what becomes of failures.

use std::time::Duration;

use lanner_eval::{Endpoint, Status, TestName};
use serde_json::Value;

use crate::scripted::{Scripted, Step, answer, delta, done, finish, usage};

#[test]
fn server_is_described_and_its_first_model_used() {
    let server = Scripted::start(|_| answer("A story."));
    let report = server.eval(|_| {}).unwrap();
    assert_eq!((report.server.model.as_str(), report.server.version.as_deref()), ("owl", Some("9.9")));
    assert_eq!(report.server.server_header.as_deref(), Some("scripted/1"));
    assert_eq!(report.server.system_fingerprint.as_deref(), Some("b42"));
    let requests = server.requests.lock().unwrap();
    let request = &requests[0];
    assert_eq!(request["model"], "owl");
    assert_eq!((&request["temperature"], &request["max_tokens"]), (&0.into(), &512.into()));
    assert_eq!(
        (&request["stream"], &request["stream_options"]["include_usage"]),
        (&true.into(), &true.into())
    );
    assert_eq!(request.get("chat_template_kwargs"), None, "the server's default");
}

#[test]
fn known_delays_give_ttft_and_decode_rate() {
    // Reasoning after 200 ms, 10 more tokens until 600 ms, and an end that comes later.
    let server = Scripted::start(|_| {
        let (thought, text) = (delta("reasoning_content", "hm"), delta("content", "a b c"));
        let (pause, wait, late) = (Step::Sleep(200), Step::Sleep(400), Step::Sleep(300));
        vec![
            delta("role", "assistant"),
            pause,
            thought,
            wait,
            text,
            late,
            finish("stop"),
            usage(7, 11),
            done(),
        ]
    });
    let report = server.eval(|options| options.repeats = 3).unwrap();
    let case = &report.cases[0];
    let (mut with_known_ttft, mut without_end) = (0, 0);
    for timing in case.timings() {
        let (ttft, total, decode) = (timing.ttft_s, timing.total_s, timing.decode_tok_s.unwrap());
        // On a busy machine tokens arrive late, never early: the last one after 600 ms or more.
        assert!(ttft >= 0.2 && ttft <= total && total >= 0.9, "{timing:?}");
        assert!(decode <= 10.0 / (0.6 - ttft).max(0.0) && decode >= 10.0 / (total - ttft), "{timing:?}");
        with_known_ttft += usize::from(ttft <= total - 0.69);
        without_end += usize::from(decode >= 10.0 / (total - 0.49));
    }
    // That holds unless the machine was busy at the wrong moment of each of three requests.
    assert!(with_known_ttft > 0 && without_end > 0, "{:?}", case.timings().collect::<Vec<_>>());
    assert_eq!(case.runs.len(), 3);
    assert!(case.timings().all(|timing| timing.usage && timing.prompt_tokens == Some(7)));
}

#[test]
fn missing_usage_counts_events() {
    let server = Scripted::start(|_| {
        let wait = || Step::Sleep(20);
        let (a, b, c) = (delta("content", "a"), delta("content", "b"), delta("content", "c"));
        vec![a, wait(), b, wait(), c, finish("length"), done()]
    });
    let report = server.eval(|_| {}).unwrap();
    let timing = report.cases[0].timings().next().unwrap();
    assert_eq!((timing.completion_tokens, timing.usage, timing.prompt_tokens), (3, false, None));
    // Tokens may arrive late, but the third one not before 40 ms.
    let fastest = 2.0 / (0.04 - timing.ttft_s).max(0.0);
    assert!(timing.decode_tok_s.is_some_and(|speed| speed <= fastest), "{timing:?}");
}

/// The error of a run whose second of two requests is answered with `script`.
fn error_of(script: fn() -> Vec<Step>) -> String {
    let server = Scripted::start(move |body| match body["tools"].is_array() {
        true if body["messages"][1]["content"].as_str().is_some_and(|text| text.contains("ticket")) => {
            script()
        }
        _ => answer("Fine."),
    });
    let report = server
        .eval(|options| {
            options.tests = vec![TestName::Tools];
            options.timeout = Duration::from_secs(3);
        })
        .unwrap();
    assert_eq!(report.cases[0].errors().count(), 0, "the first request is answered");
    assert!(report.cases[1].timings().next().is_none());
    report.cases[1].errors().next().unwrap().to_owned()
}

#[test]
fn failed_requests_are_recorded_with_their_reason() {
    let check = |script: fn() -> Vec<Step>, expected: &str| assert_eq!(error_of(script), expected);
    check(
        || vec![Step::Refuse(400, r#"{"error":{"message":"the prompt is too long"}}"#)],
        "the server answers 400: the prompt is too long",
    );
    check(|| vec![Step::Refuse(503, "busy")], "the server answers 503: busy");
    check(
        || vec![Step::Refuse(200, r#"{"choices":[]}"#)],
        "the server does not stream: its content type is application/json",
    );
    check(
        || vec![delta("content", "half"), Step::Cut],
        "the stream ended after 1 events, without a finish_reason",
    );
    check(|| vec![finish("stop"), done()], "the answer has no token (finish_reason stop)");
    check(
        || vec![delta("content", "a"), Step::Raw("data: {\"error\":{\"message\":\"out of memory\"}}\n\n")],
        "the stream reports an error: out of memory",
    );
    check(|| vec![Step::Raw("data: <html>\n\n")], "the stream has an event that is no JSON: <html>");
    check(|| vec![delta("content", "a"), Step::Sleep(6000), finish("stop")], "no end within 3 s");
    check(|| vec![Step::Sleep(6000), finish("stop")], "no end within 3 s");
}

#[test]
fn run_without_any_answer_is_an_error() {
    let server = Scripted::start(|_| vec![Step::Refuse(500, r#"{"error":"broken"}"#)]);
    let error = server.eval(|options| options.repeats = 2).unwrap_err();
    assert!(
        error.ends_with("answered none of 2 requests; the first failed with: the server answers 500: broken"),
        "{error}"
    );
    let nowhere = Endpoint { url: "http://127.0.0.1:1".into(), model: Some("owl".into()), key: None };
    let error = server.eval(|options| options.server = nowhere).unwrap_err();
    assert!(error.starts_with("no server answers at http://127.0.0.1:1/v1/models: "), "{error}");
    let error = server.eval(|options| options.server.key = None).unwrap_err();
    assert!(error.contains("lists no model") && error.contains("no key"), "{error}");
}

#[test]
fn tool_schema_is_shared_by_cold_and_warm_and_by_no_other_round() {
    let server = Scripted::start(|_| answer("Fine."));
    server.eval(|options| (options.tests, options.repeats) = (vec![TestName::Tools], 2)).unwrap();
    let requests = server.requests.lock().unwrap();
    assert_eq!(requests.len(), 4);
    let begins = |request: &Value| (request["tools"].clone(), request["messages"][0].clone());
    assert_eq!(begins(&requests[0]), begins(&requests[1]));
    assert_ne!(begins(&requests[0]).0[0], begins(&requests[2]).0[0]);
    assert_ne!(begins(&requests[0]).1, begins(&requests[2]).1);
    assert_ne!(requests[0]["messages"][1], requests[1]["messages"][1]);
}

#[test]
fn session_sends_the_models_own_answers() {
    let server = Scripted::start(|body| match body["messages"].as_array().map_or(0, Vec::len) {
        10 => answer("Harbour Lights"),
        length => answer(&format!("Answer to {length} messages.")),
    });
    let report = server.eval(|options| options.tests = vec![TestName::Session]).unwrap();
    let names: Vec<&str> = report.cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names, ["turn 1", "turn 2", "turn 3", "turn 4", "turn 5"]);
    assert_eq!(report.cases[0].passes(), None);
    assert_eq!(report.cases[4].passes(), Some([1, 0, 0]));
    let requests = server.requests.lock().unwrap();
    assert_eq!(requests[4]["messages"][2]["content"], "Answer to 2 messages.");
    assert_eq!(requests[4]["messages"][8]["content"], "Answer to 8 messages.");
}

#[test]
fn needle_counts_in_the_content_only() {
    let code = |body: &Value| {
        let text = body["messages"][0]["content"].as_str().unwrap().to_owned();
        let (_, rest) = text.split_once(" code is ").unwrap();
        rest[..4].to_owned()
    };
    let found = Scripted::start(move |body| answer(&format!("It is {}.", code(body))));
    let report = found.eval(|options| options.tests = vec![TestName::Needle]).unwrap();
    assert_eq!(report.cases.len(), 6);
    assert!(report.cases.iter().all(|case| case.passes() == Some([1, 0, 0])));
    assert_eq!(report.cases[5].name, "2000 tokens, at 90 %");

    let hidden = Scripted::start(move |body| {
        vec![delta("reasoning_content", &code(body)), finish("length"), usage(5, 1), done()]
    });
    let report = hidden.eval(|options| options.tests = vec![TestName::Needle]).unwrap();
    let run = &report.cases[0].runs[0];
    let verdict = run.verdict.as_ref().unwrap();
    assert_eq!(verdict.status, Status::Failed);
    let expected = "the content is empty after 4 characters of reasoning (finish_reason length)";
    assert_eq!(verdict.missing, [expected]);
    assert!(run.timing.is_some(), "reasoning has a time to first token");
}

#[test]
fn questions_ask_for_thinking_on_and_off() {
    let server = Scripted::start(|body| {
        let is_on = body["chat_template_kwargs"]["enable_thinking"] == true;
        answer(if is_on { "<think>maybe Rome</think>Paris" } else { "Jupiter or 42" })
    });
    let report = server.eval(|options| options.tests = vec![TestName::Questions]).unwrap();
    let passed = |name: &str| {
        let case = report.cases.iter().find(|case| case.name == name).unwrap();
        case.passes().unwrap()[0]
    };
    assert_eq!((passed("capital, thinking on"), passed("capital, thinking off")), (1, 0));
    assert_eq!((passed("planet, thinking on"), passed("sum, thinking off")), (0, 1));
    let run = &report.cases.iter().find(|case| case.name == "capital, thinking on").unwrap().runs[0];
    assert_eq!((run.answer.as_str(), run.reasoning_chars), ("Paris", 10));
}

#[test]
fn judge_gives_points_or_says_why_not() {
    let server = Scripted::start(|_| answer("Der Zug."));
    let judge = Scripted::start(|body| {
        let prompt = body["messages"][0]["content"].as_str().unwrap();
        assert!(prompt.contains("Der Zug."));
        answer(if prompt.contains("river") { "ten" } else { "{\"score\": 3, \"reason\": \"Short.\"}" })
    });
    let tests = lanner_eval::select(&["translation".into(), "instructions".into()]).unwrap();
    let report = server
        .eval(|options| {
            options.tests = tests;
            options.judge = Some(judge.endpoint());
        })
        .unwrap();
    let run = &report.cases[0].runs[0];
    assert_eq!(run.judge.as_ref().map(|judge| (judge.score, judge.reason.as_str())), Some((3.0, "Short.")));
    let failed = report.cases[1].runs[0].judge_error.as_deref().unwrap();
    assert_eq!(failed, "the judge's reply has no JSON: ten");
    assert_eq!(report.settings.judge.as_deref(), Some(&*format!("owl at http://{}/v1", judge.address)));
}

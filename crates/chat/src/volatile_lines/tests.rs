use serde_json::{Value, json};

use super::{VolatileLine::*, *};

const HEADER: &str = "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;";

fn check(line: &str, expected: Option<(VolatileLine, &str)>) {
    assert_eq!(find(line).map(|(kind, span)| (kind, &line[span])), expected, "{line}");
}

#[test]
fn find_recognizes_volatile_lines_of_clients() {
    check(HEADER, Some((Billing, HEADER)));
    check(&format!("{HEADER}You are Claude Code; be=brief"), Some((Billing, HEADER)));
    check(
        "x-anthropic-billing-header: cc_version=2.1.100; cch=eb6c6",
        Some((Billing, "x-anthropic-billing-header: cc_version=2.1.100; cch=eb6c6")),
    );
    for whole in [
        "Today's date is 2026-03-01.",
        "Today's date: Sunday, March 1, 2026",
        "- Today’s date: 1st of March 2026",
        "The current date is 2026/03/01.",
        "Current date: 01.03.2026",
        "<current_date>2026-03-01</current_date>",
        "Date: 3/1/2026",
    ] {
        check(whole, Some((Date, whole)));
    }
    for whole in [
        "📅 CURRENT DATE/TIME: 2026-02-16 01:08:19 PST",
        "Current time: 10:32 AM",
        "The current date and time is Sunday, March 1, 2026 at 10:32 AM (UTC+1)",
        "It is now 2026-03-01T10:32:05.123Z.",
        "<current_datetime>2026-03-01T10:32:05+01:00</current_datetime>",
    ] {
        check(whole, Some((Time, whole)));
    }
    for whole in [
        "<system_warning>Token usage: 35000/200000; 165000 remaining</system_warning>",
        "Token usage: 100/1000000; 999900 remaining",
        "<total_tokens>163840 tokens left</total_tokens>",
        "You have 12k tokens remaining.",
    ] {
        check(whole, Some((Countdown, whole)));
    }
    check("Today's date is 2026-03-01. You are an owl.", Some((Date, "Today's date is 2026-03-01.")));
    check("<|system|>Today is March 1, 2026.", Some((Date, "<|system|>Today is March 1, 2026.")));
    check("[INST] Current time: 10:32", Some((Time, " Current time: 10:32")));
}

#[test]
fn find_ignores_similar_lines() {
    for line in [
        "",
        "You are an owl.",
        "Knowledge cutoff: 2025-01",
        "The current time zone is Europe/Berlin.",
        "Use the date format 2026-03-01.",
        "Ask for the time, then answer 10:32.",
        "<budget:token_budget>200000</budget:token_budget>",
        "Use at most 100 tokens.",
        "Stop when fewer than 100 tokens remaining are left for the answer.",
        "Release 2026.03 is current",
        "Date: 2026",
        "3. Times are written 10:32.",
    ] {
        check(line, None);
    }
}

#[test]
fn volatile_line_at_offset_names_its_kind() {
    let check = |text: &str, marker: &str, expected| {
        let at = text.find(marker).unwrap();
        assert_eq!(VolatileLine::at(text, at), expected, "{marker} in {text}");
    };
    let prompt = format!(
        "<|im_start|>system\n{HEADER}\nToday's date is 2026-03-01. Be brief.\n\nCurrent time: 10:32\n"
    );
    check(&prompt, "fa690", Some(Billing));
    check(&prompt, "01.", Some(Date));
    check(&prompt, "32\n", Some(Time));
    for plain in ["<|im", "system", "Be brief", "\n\nCurrent"] {
        check(&prompt, plain, None);
    }
    assert_eq!(VolatileLine::at("", 0), None);
}

fn message(role: &str, content: impl Into<Value>) -> Value {
    json!({ "role": role, "content": content.into() })
}

fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

#[test]
fn normalize_removes_or_moves_volatile_lines() {
    let check = |messages: Value, expected: Value| {
        let normal = normalize(messages.as_array().unwrap());
        assert_eq!(Value::from(normal.clone()), expected);
        assert_eq!(normalize(&normal), normal, "normalize is idempotent");
    };
    let user = || message("user", "hi");
    let system = format!("{HEADER}\nToday's date is 2026-03-01.\nCurrent time: 10:32\nYou are an owl.");
    check(
        json!([message("system", system), user(), message("assistant", "Hoo"), user()]),
        json!([
            message("system", "Today's date is 2026-03-01.\nYou are an owl."),
            user(),
            message("assistant", "Hoo"),
            message("user", "hi\n\nCurrent time: 10:32")
        ]),
    );
    // A part or a message that has only a volatile line.
    check(
        json!([message("system", json!([text(HEADER), text("You are an owl.")])), user()]),
        json!([message("system", json!([text("You are an owl.")])), user()]),
    );
    check(
        json!([message("system", HEADER), message("developer", "You are an owl."), user()]),
        json!([message("developer", "You are an owl."), user()]),
    );
    check(
        json!([message("system", "Token usage: 1/9; 8 remaining"), message("user", json!([text("hi")]))]),
        json!([message("user", json!([text("hi"), text("Token usage: 1/9; 8 remaining")]))]),
    );
    check(
        json!([message("system", format!("{HEADER}You are an owl.")), user()]),
        json!([message("system", "You are an owl."), user()]),
    );
}

#[test]
fn normalize_keeps_other_text() {
    let deep = format!("{}{HEADER}\n", "A rule.\n".repeat(MAX_LINES));
    for messages in [
        json!([message("user", format!("Explain {HEADER}")), message("system", HEADER)]),
        json!([message("system", deep), message("user", "hi")]),
        json!([
            message("system", "Today's date is 2026-03-01.\r\nBe brief.\r\n"),
            message("user", "Current time: 10:32")
        ]),
        json!([message("system", ""), message("user", Value::Null)]),
        json!([{ "role": "system" }, message("user", "hi")]),
        json!([message("system", "Current time: 10:32")]),
        json!([message("system", HEADER)]),
        json!(["odd", 7]),
        json!([]),
    ] {
        let messages = messages.as_array().unwrap();
        assert_eq!(&normalize(messages), messages);
    }
}

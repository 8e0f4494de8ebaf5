use std::sync::Arc;

use serde_json::json;

use super::{Dialect, ToolParser, ToolSet};
use crate::Delta;

/// Two tools.
pub fn tools() -> Arc<ToolSet> {
    let tool = |name: &str| json!({ "type": "function", "function": { "name": name } });
    Arc::new(ToolSet::new(&[tool("get_weather"), tool("add")], None, None).unwrap().unwrap())
}

/// Parses a reply that arrives in these pieces.
fn parse(dialect: Dialect, pieces: &[&str]) -> Vec<Delta> {
    let mut parser = ToolParser::new(dialect, tools(), 1);
    let mut deltas: Vec<Delta> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    deltas.extend(parser.finish());
    deltas
}

/// Content, and each call as `name(arguments)`, neighbours joined.
fn joined(deltas: &[Delta]) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut last = "";
    for delta in deltas {
        let (kind, text) = match delta {
            Delta::Content(text) => ("content", text.clone()),
            Delta::ToolCall { name, .. } => ("call", format!("call {name} ")),
            Delta::ToolArguments { arguments, .. } => ("arguments", arguments.clone()),
            Delta::Reasoning(text) => ("reasoning", text.clone()),
        };
        assert!(!text.is_empty(), "{delta:?}");
        match parts.last_mut() {
            Some(part) if kind == "arguments" || (kind == last && kind != "call") => part.push_str(&text),
            _ => parts.push(text),
        }
        last = kind;
    }
    parts
}

/// Checks a reply over every split into two pieces, and character by character.
pub fn check(dialect: Dialect, reply: &str, expected: &[&str]) {
    let boundaries: Vec<usize> = reply.char_indices().map(|(at, _)| at).chain([reply.len()]).collect();
    for &at in &boundaries {
        let (start, end) = reply.split_at(at);
        assert_eq!(joined(&parse(dialect, &[start, end])), expected, "{start:?} + {end:?}");
    }
    let characters: Vec<&str> = boundaries.windows(2).map(|pair| &reply[pair[0]..pair[1]]).collect();
    assert_eq!(joined(&parse(dialect, &characters)), expected, "{reply:?} by characters");
}

#[test]
fn hermes_calls_are_separated_from_content() {
    let check = |reply, expected: &[&str]| check(Dialect::Hermes, reply, expected);
    check("", &[]);
    check("Hello <b>", &["Hello <b>"]);
    check(" spaced \n", &[" spaced \n"]);
    check(
        "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": [1, {\"b\": \"}\\\"é\"}]}}\n</tool_call>",
        &["call add {\"a\": [1, {\"b\": \"}\\\"é\"}]}"],
    );
    check(
        "Sure.\n<tool_call>{\"name\":\"add\",\"arguments\":{}}</tool_call>\n\
         <tool_call>\n{\"arguments\": {\"x\": 1}, \"name\": \"get_weather\"}\n</tool_call>\n",
        &["Sure.", "call add {}", "call get_weather {\"x\":1}"],
    );
    check("<tool_call>{\"name\":\"add\",\"arguments\":{}}</tool_call> Done.", &["call add {}", " Done."]);
    // The model ended its turn without the tag, wrote the arguments as a string, or left them out.
    check("<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n", &["call add {}"]);
    check(
        "<tool_call>{\"name\": \"add\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
        &["call add {\"a\":1}"],
    );
    check("<tool_call>{\"name\": \"add\"}</tool_call>", &["call add {}"]);
}

#[test]
fn malformed_hermes_calls_stay_content() {
    for reply in [
        "<tool_call>",
        "a <tool_call> b",
        "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": }}</tool_call>",
        "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\"",
        "<tool_call>{\"name\": \"add\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"add\", \"arguments\": {}}<tool_call>",
        "<tool_call>{\"arguments\": {}}</tool_call>",
    ] {
        check(Dialect::Hermes, reply, &[reply]);
    }
    check(
        Dialect::Hermes,
        "<tool_call> <tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>",
        &["<tool_call> ", "call add {}"],
    );
}

#[test]
fn call_ids_are_distinct_and_follow_from_the_seed() {
    let reply = "<tool_call>{\"name\": \"add\"}</tool_call>".repeat(2);
    let ids = |deltas: Vec<Delta>| -> Vec<String> {
        let id = |delta| if let Delta::ToolCall { id, .. } = delta { Some(id) } else { None };
        deltas.into_iter().filter_map(id).collect()
    };
    let first = ids(parse(Dialect::Hermes, &[&reply]));
    assert_eq!(first, ids(parse(Dialect::Hermes, &[&reply])));
    assert_ne!(first[0], first[1]);
    for id in first {
        let random = id.strip_prefix("call_").unwrap();
        assert!(random.len() == 24 && random.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
    }
}

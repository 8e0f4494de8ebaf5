//! Parses replies at every split, and random calls in every dialect.

mod channels;
mod grammars;
mod templates;
mod written;

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use self::written::written;
use super::{Dialect, ToolParser, ToolSet};
use crate::Delta;

/// Tools with parameters of several types.
fn tools() -> Arc<ToolSet> {
    let tool = |name: &str, properties: Value| {
        let parameters = json!({ "type": "object", "properties": properties });
        json!({ "type": "function", "function": { "name": name, "parameters": parameters } })
    };
    let text = json!({ "text": { "type": "string" }, "maybe": { "type": ["string", "null"] } });
    let tools = [tool("f", json!({ "a": {} })), tool("get_weather", text), tool("add", json!({}))];
    Arc::new(ToolSet::new(&tools, None, None).unwrap().unwrap())
}

/// Parses a reply that arrives in these pieces.
fn parse(dialect: Dialect, stream: bool, pieces: &[&str]) -> Vec<Delta> {
    let mut parser = ToolParser::new(dialect, tools(), 1, stream);
    let mut deltas: Vec<Delta> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    deltas.extend(parser.finish());
    deltas
}

/// Content, reasoning and each call as `call NAME ARGUMENTS`, neighbours joined.
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
fn check(dialect: Dialect, reply: &str, expected: &[&str]) {
    let boundaries: Vec<usize> = reply.char_indices().map(|(at, _)| at).chain([reply.len()]).collect();
    for &at in &boundaries {
        let (start, end) = reply.split_at(at);
        let parts = joined(&parse(dialect, false, &[start, end]));
        assert_eq!(parts, expected, "{dialect}: {start:?} + {end:?}");
    }
    let characters: Vec<&str> = boundaries.windows(2).map(|pair| &reply[pair[0]..pair[1]]).collect();
    assert_eq!(joined(&parse(dialect, false, &characters)), expected, "{dialect}: {reply:?} by characters");
}

#[test]
fn example_of_every_dialect_is_read_as_a_call() {
    for dialect in Dialect::ALL {
        let parts = joined(&parse(dialect, false, &[dialect.example()]));
        let [call] = &parts[..] else { panic!("{dialect}: {parts:?}") };
        let arguments: Value = serde_json::from_str(call.strip_prefix("call f ").unwrap()).unwrap();
        assert_eq!(arguments, json!({ "a": 1 }), "{dialect}");
        check(dialect, dialect.example(), &[call]);
        assert_eq!(dialect.name().parse(), Ok(dialect));
    }
    assert!("pearl".parse::<Dialect>().unwrap_err().contains("hermes, qwen-xml"));
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
fn malformed_calls_stay_content() {
    for (dialect, reply) in [
        (Dialect::Hermes, "<tool_call>"),
        (Dialect::Hermes, "a <tool_call> b"),
        (Dialect::Hermes, "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>"),
        (Dialect::Hermes, "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": }}</tool_call>"),
        (Dialect::Hermes, "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\""),
        (Dialect::Hermes, "<tool_call>{\"name\": \"add\", \"arguments\": [1]}</tool_call>"),
        (Dialect::Hermes, "<tool_call>{\"name\": \"add\", \"arguments\": {}}<tool_call>"),
        (Dialect::Hermes, "<tool_call>{\"arguments\": {}}</tool_call>"),
        (Dialect::QwenXml, "<tool_call>\n<function=add>\n<parameter=a>\n1\n</function>"),
        (Dialect::QwenXml, "see <function=unknown>"),
        (Dialect::Glm, "<tool_call>nothing</tool_call>"),
        (Dialect::Glm, "<tool_call>add<arg_key>a</arg_key>1</tool_call>"),
        (Dialect::LlamaJson, "{\"name\": \"Bob\", \"age\": 7}"),
        (Dialect::LlamaPythonic, "[add(1)]"),
        (Dialect::LlamaPythonic, "[add(a=1"),
        (Dialect::Lfm2, "<|tool_call_start|>[add(a=b)]<|tool_call_end|>"),
        (Dialect::Mistral, "[TOOL_CALLS]add[ARGS]7"),
        (Dialect::MistralList, "[TOOL_CALLS][{\"name\": \"add\"}"),
        (Dialect::Kimi, "<|tool_calls_section_begin|><|tool_call_begin|>add<|tool_call_argument_begin|>{}"),
        (Dialect::DeepSeekV3, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n{}"),
        (Dialect::Gemma4, "<|tool_call>call:add{a:}<tool_call|>"),
    ] {
        let parts = joined(&parse(dialect, false, &[reply]));
        // A list whose last bracket is missing still has complete calls.
        if dialect == Dialect::MistralList {
            assert_eq!(parts, ["call add {}"]);
            continue;
        }
        check(dialect, reply, &[reply]);
    }
    check(
        Dialect::Hermes,
        "<tool_call> <tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>",
        &["<tool_call> ", "call add {}"],
    );
}

#[test]
fn text_parameters_become_json_by_their_schema() {
    let xml = |key: &str, value: &str| {
        format!(
            "<tool_call>\n<function=get_weather>\n<parameter={key}>\n{value}\n</parameter>\n</function>\n</tool_call>"
        )
    };
    for (key, value, expected) in [
        ("text", "5", r#"{"text": "5"}"#),
        ("text", "a \"b\"\n\n</x> é", r#"{"text": "a \"b\"\n\n</x> é"}"#),
        ("text", "", r#"{"text": ""}"#),
        ("maybe", "null", r#"{"maybe": null}"#),
        ("maybe", "5", r#"{"maybe": "5"}"#),
        ("other", "[1, 2]", r#"{"other": [1, 2]}"#),
        ("other", "True", r#"{"other": true}"#),
        ("other", "words here", r#"{"other": "words here"}"#),
    ] {
        check(Dialect::QwenXml, &xml(key, value), &[&format!("call get_weather {expected}")]);
    }
    check(
        Dialect::QwenXml,
        "Look:\n<function=add><parameter=a>1</parameter></function>",
        &["Look:", "call add {\"a\": 1}"],
    );
    check(
        Dialect::Glm,
        "<tool_call>get_weather<arg_key>text</arg_key><arg_value>7</arg_value></tool_call><tool_call>add</tool_call>",
        &["call get_weather {\"text\": \"7\"}", "call add {}"],
    );
}

#[test]
fn literals_of_every_notation_become_json() {
    let expected = r#"call f {"a": {"b":[1,-2.5,true,false,null,"q\"'\n😀"],"c":{}}}"#;
    check(
        Dialect::Lfm2,
        "<|tool_call_start|>[f(a={'b': [1, -2.5, True, False, None, \"q\\\"'\\n\\ud83d\\ude00\"], \"c\": {}})]<|tool_call_end|>",
        &[expected],
    );
    check(
        Dialect::Gemma4,
        "<|tool_call>call:f{a:{b:[1,-2.5,true,false,null,<|\"|>q\"'\n😀<|\"|>],c:{}}}<tool_call|>",
        &[expected],
    );
    check(
        Dialect::LlamaPythonic,
        "I call [add(), get_weather(text='x', maybe=None)] now",
        &["I call", "call add {}", "call get_weather {\"text\": \"x\", \"maybe\": null}", " now"],
    );
    let nested = format!("<|tool_call>call:f{{a:{}1{}}}<tool_call|>", "[".repeat(100), "]".repeat(100));
    assert_eq!(joined(&parse(Dialect::Gemma4, false, &[&nested])), [&*nested]);
}

#[test]
fn harmony_messages_go_to_their_channels() {
    let check = |reply, expected: &[&str]| check(Dialect::Harmony, reply, expected);
    check("plain", &["plain"]);
    check(
        "<|channel|>analysis<|message|>I think.<|end|><|start|>assistant<|channel|>final<|message|>Hi.<|return|>",
        &["I think.", "Hi."],
    );
    check(
        "<|channel|>analysis<|message|>hm to=functions.add<|end|><|start|>assistant\
         <|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary \
         to=functions.add <|constrain|>json<|message|>{\"a\": 1}<|call|>",
        &["hm to=functions.add", "I look.", "call add {\"a\": 1}"],
    );
    check(" to=functions.add<|channel|>commentary json<|message|>{}", &["call add {}"]);
    // A malformed call is content; later messages are read as usual.
    check(
        "<|channel|>commentary to=functions.add<|message|>7<|end|><|start|>assistant<|channel|>final<|message|>x",
        &["<|channel|>commentary to=functions.add<|message|>7x"],
    );
}

#[test]
fn kimi_and_mistral_calls_keep_the_form_of_their_ids() {
    let id = |deltas: Vec<Delta>| match &deltas[0] {
        Delta::ToolCall { id, .. } => id.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(id(parse(Dialect::Kimi, false, &[Dialect::Kimi.example()])), "functions.f:0");
    let id = id(parse(Dialect::Mistral, false, &[Dialect::Mistral.example()]));
    assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
}

#[test]
fn call_ids_are_distinct_and_follow_from_the_seed() {
    let reply = "<tool_call>{\"name\": \"add\"}</tool_call>".repeat(2);
    let ids = |deltas: Vec<Delta>| -> Vec<String> {
        let id = |delta| if let Delta::ToolCall { id, .. } = delta { Some(id) } else { None };
        deltas.into_iter().filter_map(id).collect()
    };
    let first = ids(parse(Dialect::Hermes, false, &[&reply]));
    assert_eq!(first, ids(parse(Dialect::Hermes, false, &[&reply])));
    assert_ne!(first[0], first[1]);
    for id in first {
        let random = id.strip_prefix("call_").unwrap();
        assert!(random.len() == 24 && random.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
    }
}

#[test]
fn streamed_arguments_arrive_before_their_call_is_complete() {
    let mut parser = ToolParser::new(Dialect::Hermes, tools(), 1, true);
    let deltas = parser.push("<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": \"hel");
    assert_eq!(joined(&deltas), ["call add {\"a\": \"hel"]);
    assert_eq!(joined(&parser.push("lo\"}}")), ["lo\"}"]);
    assert_eq!(
        (parser.push("\n</tool_call>"), parser.finish(), parser.complete_calls()),
        (vec![], vec![], 1)
    );
}

/// Values whose strings contain no markers, which not every dialect can write.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-z <>{}\\[\\]\"'\\\\,:\né😀]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let members = prop::collection::btree_map("[a-z]{1,5}", inner.clone(), 0..3);
        prop_oneof![
            prop::collection::vec(inner, 0..3).prop_map(Value::from),
            members.prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn any_calls() -> impl Strategy<Value = Vec<(&'static str, Map<String, Value>)>> {
    let members = prop::collection::btree_map("[a-z_]{1,8}", any_value(), 0..4);
    let arguments = members.prop_map(|members| members.into_iter().collect());
    prop::collection::vec((prop_oneof![Just("f"), Just("add")], arguments), 1..4)
}

proptest! {
    #[test]
    fn calls_survive_any_split_in_every_dialect(
        calls in any_calls(),
        text in "[a-z ]{0,10}[a-z]",
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        stream in any::<bool>(),
    ) {
        for dialect in Dialect::ALL {
            let calls = if dialect.is_whole_reply() { &calls[..1] } else { &calls[..] };
            let (text, reply) = match dialect.is_whole_reply() {
                true => ("", written(dialect, calls)),
                false => (&*text, text.clone() + &written(dialect, calls)),
            };
            let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(reply.len() + 1)).collect();
            ends.retain(|&end| reply.is_char_boundary(end));
            ends.extend([0, reply.len()]);
            ends.sort_unstable();
            let pieces: Vec<&str> = ends.windows(2).map(|pair| &reply[pair[0]..pair[1]]).collect();
            let parts = joined(&parse(dialect, stream, &pieces));
            let mut parts = parts.iter();
            if !text.is_empty() {
                prop_assert_eq!(parts.next().map(|part| part.as_str()), Some(text), "{}", dialect);
            }
            for (name, arguments) in calls {
                let part = parts.next().map_or("", String::as_str);
                let found = part.strip_prefix(&format!("call {name} ")).map(serde_json::from_str::<Value>);
                let found = found.and_then(Result::ok);
                prop_assert_eq!(found, Some(Value::Object(arguments.clone())), "{}: {}", dialect, reply);
            }
            prop_assert_eq!(parts.next(), None, "{}: {}", dialect, reply);
        }
    }

    #[test]
    fn random_text_is_read_without_loss_or_panic(
        fragments in prop::collection::vec(prop_oneof![
            Just("<tool_call>"), Just("</tool_call>"), Just("\n"), Just("{\"name\": \"f\", "), Just("\"arguments\": {"),
            Just("}"), Just("\""), Just("<function=f>"), Just("<parameter=a>"), Just("</parameter>"), Just("</function>"),
            Just("[TOOL_CALLS]"), Just("f"), Just("[ARGS]"), Just("[f("), Just("a="), Just("1"), Just(")"), Just("]"),
            Just("<|channel|>"), Just("<|message|>"), Just(" to=functions.f"), Just("<|end|>"), Just("é"),
        ], 0..20),
        stream in any::<bool>(),
    ) {
        for dialect in Dialect::ALL {
            let whole = fragments.concat();
            let deltas = parse(dialect, stream, &fragments);
            prop_assert_eq!(joined(&deltas), joined(&parse(dialect, stream, &[&whole])), "{}: {}", dialect, whole);
            let calls = deltas.iter().any(|delta| matches!(delta, Delta::ToolCall { .. }));
            if !calls && !dialect.is_whole_reply() {
                prop_assert_eq!(joined(&deltas).concat(), whole);
            }
        }
    }
}

/// The table of docs/tools.md; `UPDATE_DOCS=1 cargo test -p lanner-chat` rewrites it.
#[test]
fn document_lists_every_dialect() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tools.md");
    let document = std::fs::read_to_string(path).unwrap();
    let (start, rest) = document.split_once("<!-- dialects -->\n").unwrap();
    let (_, end) = rest.split_once("<!-- dialects -->").unwrap();
    let rows = Dialect::ALL.map(|dialect| {
        let example = dialect.example().replace('\n', "⏎").replace('|', "\\|");
        format!("| `{dialect}` | {} | `{example}` |\n", dialect.models())
    });
    let table = format!("| name | models | a call of `f` with `a` = 1 |\n|---|---|---|\n{}", rows.concat());
    let expected = format!("{start}<!-- dialects -->\n{table}<!-- dialects -->{end}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &expected).unwrap();
    }
    assert!(document == expected, "docs/tools.md is stale: run this test with UPDATE_DOCS=1");
}

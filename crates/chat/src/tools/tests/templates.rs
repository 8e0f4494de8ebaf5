//! Dialects of chat templates, and calls written by them.
//!
//! Published templates are not in this repository: set `LANNER_SHARED` to a folder with
//! `templates/`, or their test is skipped.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::{Map, Value, json};

use super::{Dialect, ToolParser, ToolSet};
use crate::{Delta, RenderInput, Template, Tokenizer, call_form::CallForm, conversation};

const TOKENIZER: &str = include_str!("../../../tests/data/byte_level/tokenizer.json");
const QUESTION: &str = "What now, owl?";

fn tokenizer() -> Tokenizer {
    Tokenizer::from_bytes(TOKENIZER.as_bytes(), None).unwrap()
}

/// A tokenizer with LFM2's marker, which only some of its templates have.
fn tokenizer_of_lfm2() -> Tokenizer {
    let mut json: Value = serde_json::from_str(TOKENIZER).unwrap();
    let marker = json!({ "id": 512, "content": "<|tool_call_start|>", "special": true, "single_word": false,
                         "lstrip": false, "rstrip": false, "normalized": false });
    json["added_tokens"].as_array_mut().unwrap().push(marker);
    Tokenizer::from_bytes(json.to_string().as_bytes(), None).unwrap()
}

/// Published templates that do not write calls, or not in the syntax that they teach.
const UNWRITTEN: [&str; 6] = [
    "SmolLM3-3B.jinja",
    "smollm3.jinja",
    "LFM2-8B-A1B.jinja",
    "LFM2-1.2B.jinja",
    "LFM2.5-Instruct.jinja",
    "library_llama4_latest.jinja",
];
/// Published templates that Python refuses too: they modify lists or use undefined values.
const REFUSED: [&str; 3] = ["Kimi-K2-Instruct.jinja", "Kimi-K2-Thinking.jinja", "MiroThinker.jinja"];

/// A snippet by which each dialect's template is recognised.
const SNIPPETS: [(Dialect, &str); 13] = [
    (Dialect::Hermes, "<tool_call>\\n{\"name\": \"{{ call.name }}\"}\\n</tool_call>"),
    (Dialect::QwenXml, "<tool_call>\\n<function={{ call.name }}>\\n<parameter={{ key }}>"),
    (Dialect::Glm, "<tool_call>{{ call.name }}\\n<arg_key>{{ key }}</arg_key>"),
    (Dialect::LlamaJson, "<|start_header_id|>{% if message.tool_calls %}\"parameters\": {% endif %}"),
    (Dialect::LlamaPythonic, "<|python_start|>[{{ call.name }}("),
    (Dialect::Lfm2, "List of tools: <|tool_list_start|>["),
    (Dialect::Mistral, "[TOOL_CALLS]{{ call.name }}[ARGS]{{ call.arguments }}"),
    (Dialect::MistralList, "[TOOL_CALLS] [{\"name\": \"{{ call.name }}\"}]"),
    (Dialect::Kimi, "<|tool_calls_section_begin|><|tool_call_begin|>{{ call.id }}"),
    (Dialect::DeepSeekV3, "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ call.name }}\\n```json\\n"),
    (Dialect::DeepSeekV31, "<｜tool▁call▁begin｜>{{ call.name }}<｜tool▁sep｜>"),
    (Dialect::Gemma4, "<|tool_call>call:{{ call.name }}{"),
    (Dialect::Harmony, "<|start|>assistant to=functions.{{ call.name }}<|channel|>commentary"),
];

#[test]
fn dialect_of_a_template_is_detected() {
    let tokenizer = tokenizer();
    for (dialect, snippet) in SNIPPETS {
        assert_eq!(Dialect::detect(snippet, &tokenizer), Some(dialect), "{snippet}");
    }
    for other in [
        "{{ messages[0].content }}",
        "<|START_ACTION|>{% if message.tool_calls %}\"parameters\": {% endif %}",
        "<function={{ call.name }}>{{ call.arguments }}</function>",
        "in <tool_call> tags: <tool_calls>[{{ call.name }}",
        "<seed:tool_call>\n<function={{ call.name }}>\n<parameter={{ key }}>",
    ] {
        assert_eq!(Dialect::detect(other, &tokenizer), None, "{other}");
    }
}

#[test]
fn calls_are_given_in_the_form_that_the_template_takes() {
    let head = "{% for m in messages %}{% for c in m.tool_calls or [] %}{% set a = c.function.arguments %}";
    let tail = "{% endfor %}{% endfor %}";
    for (body, text_arguments, empty_content, written) in [
        ("{{ a | tojson }}", false, false, "{\"a\": 1}"),
        ("{{ '<' + a + '>' }}", true, false, "<{\"a\": 1}>"),
        ("<{{ a }}>", true, false, "<{\"a\": 1}>"),
        ("{% for k, v in a.items() %}{{ k }}={{ v }}{% endfor %}", false, false, "a=1"),
        ("{% if a is string %}{{ a }}{% else %}{{ a | tojson }}{% endif %}", false, false, "{\"a\": 1}"),
        ("{% if 'x' in m.content %}x{% endif %}{{ a | tojson }}", false, true, "{\"a\": 1}"),
        ("{{ m.content + a }}", true, true, "{\"a\": 1}"),
        ("{% if m.content is none %}{{ a | tojson }}{% endif %}", false, false, "{\"a\": 1}"),
        ("{{ c.function.name }}", false, false, "f"),
    ] {
        let template = Template::new(&format!("{head}{body}{tail}"), Map::new()).unwrap();
        assert_eq!(template.call_form(), CallForm { text_arguments, empty_content }, "{body}");
        for arguments in [json!("{\"a\": 1}"), json!({ "a": 1 })] {
            let call = json!({ "function": { "name": "f", "arguments": arguments } });
            let messages = [json!({ "role": "assistant", "tool_calls": [call] })];
            let messages = conversation::prepare(&messages, &template).unwrap();
            let input = RenderInput { messages: &messages, ..RenderInput::default() };
            let prompt = template.render(&input).unwrap();
            assert_eq!(prompt.replace("\":1", "\": 1"), written, "{body}");
        }
    }
}

/// Templates below a folder, by their paths in it.
fn published(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders: Vec<PathBuf> = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for path in std::fs::read_dir(next).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let Ok(text) = std::fs::read_to_string(&path) else { continue };
            let source = match path.extension().and_then(|extension| extension.to_str()) {
                Some("jinja") => Some(text),
                Some("json") => serde_json::from_str::<Value>(&text)
                    .ok()
                    .and_then(|json| json["chat_template"].as_str().map(str::to_owned)),
                _ => None,
            };
            let name = path.strip_prefix(folder).unwrap().to_string_lossy().into_owned();
            found.extend(source.map(|source| (name, source)));
        }
    }
    found
}

fn tool_definitions() -> Vec<Value> {
    let properties = json!({
        "city": { "type": "string", "description": "A city" },
        "days": { "type": "integer", "description": "Days ahead" },
        "loud": { "type": "boolean", "description": "Whether loud" },
        "list": { "type": "array", "items": { "type": "string" }, "description": "Words" },
    });
    let parameters = json!({ "type": "object", "properties": properties, "required": ["city"] });
    let function = json!({ "name": "get_weather", "description": "Weather", "parameters": parameters });
    vec![json!({ "type": "function", "function": function })]
}

fn arguments() -> Value {
    json!({ "city": "Oslo \"é\" <b>", "days": 3, "loud": true, "list": ["a", "b c"] })
}

/// A template's text of an assistant's turn with a call.
fn turn(template: &Template, dialect: Dialect, tools: &[Value]) -> crate::Result<String> {
    let function = json!({ "name": "get_weather", "arguments": arguments().to_string() });
    let id = if dialect == Dialect::Kimi { "functions.get_weather:0" } else { "call00001" };
    let call = json!({ "id": id, "type": "function", "function": function });
    let user = json!({ "role": "user", "content": QUESTION });
    let calls = json!({ "role": "assistant", "content": null, "tool_calls": [call] });
    let render = |messages: &[Value], add_generation_prompt| {
        let messages = conversation::prepare(messages, template)?;
        let tools = Some(tools);
        template.render(&RenderInput {
            messages: &messages,
            tools,
            add_generation_prompt,
            ..RenderInput::default()
        })
    };
    let whole = render(&[user.clone(), calls], false)?;
    let start = render(std::slice::from_ref(&user), true).ok().filter(|prompt| whole.starts_with(prompt));
    let start = start.map_or_else(|| whole.rfind(QUESTION).map_or(0, |at| at + QUESTION.len()), |p| p.len());
    Ok(whole[start..].to_owned())
}

/// The calls that a dialect reads from a text.
fn calls(dialect: Dialect, tools: &Arc<ToolSet>, text: &str) -> Vec<(String, Value)> {
    let mut parser = ToolParser::new(dialect, tools.clone(), 1, false);
    let mut deltas = parser.push(text);
    deltas.extend(parser.finish());
    let mut calls: Vec<(String, String)> = Vec::new();
    for delta in deltas {
        match delta {
            Delta::ToolCall { name, .. } => calls.push((name, String::new())),
            Delta::ToolArguments { arguments, .. } => calls.last_mut().unwrap().1 += &arguments,
            Delta::Content(_) | Delta::Reasoning(_) => {}
        }
    }
    calls.into_iter().map(|(name, text)| (name, serde_json::from_str(&text).unwrap())).collect()
}

#[test]
fn calls_written_by_published_templates_are_read_back() {
    let Some(shared) = std::env::var_os("LANNER_SHARED").map(PathBuf::from) else {
        eprintln!("skipped: published templates: LANNER_SHARED is not set");
        return;
    };
    let (tokenizer, lfm2, definitions) = (tokenizer(), tokenizer_of_lfm2(), tool_definitions());
    let tools = Arc::new(ToolSet::new(&definitions, None, None).unwrap().unwrap());
    let expected = [("get_weather".to_owned(), arguments())];
    let special = json!({ "bos_token": "<BOS>", "eos_token": "<EOS>" }).as_object().unwrap().clone();
    let (mut counts, mut wrong) = (BTreeMap::<&str, usize>::new(), Vec::new());
    for (name, source) in published(&shared.join("templates")) {
        let tokenizer = if name.contains("LFM2") { &lfm2 } else { &tokenizer };
        let Some(dialect) = Dialect::detect(&source, tokenizer) else { continue };
        let Ok(template) = Template::new(&source, special.clone()) else { continue };
        let is_among = |names: &[&str]| names.iter().any(|suffix| name.ends_with(suffix));
        match turn(&template, dialect, &definitions) {
            Err(_) if is_among(&REFUSED) => {}
            Ok(_) if is_among(&UNWRITTEN) => {}
            Ok(turn) if calls(dialect, &tools, &turn) == expected => {
                *counts.entry(dialect.name()).or_default() += 1;
            }
            result => wrong.push(format!("{name}: {dialect}: {result:?} {:?}", template.call_form())),
        }
    }
    eprintln!("read back: {counts:?}");
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
    let read: usize = counts.values().sum();
    assert!(read >= 100 && counts.len() >= 11, "{counts:?}");
}

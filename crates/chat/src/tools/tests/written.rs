//! Calls as models write them.

use serde_json::{Map, Value};

use crate::tools::Dialect;

type Call = (&'static str, Map<String, Value>);

/// A section of calls in a dialect.
// Long: one arm for each dialect.
pub(super) fn written(dialect: Dialect, calls: &[Call]) -> String {
    let json = |arguments: &Map<String, Value>| Value::Object(arguments.clone()).to_string();
    let each = |write: &dyn Fn(usize, &Call) -> String, separator: &str| {
        let calls: Vec<String> = calls.iter().enumerate().map(|(index, call)| write(index, call)).collect();
        calls.join(separator)
    };
    match dialect {
        Dialect::Hermes => each(
            &|_, (name, arguments)| {
                format!(
                    "<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {}}}\n</tool_call>",
                    json(arguments)
                )
            },
            "\n",
        ),
        Dialect::QwenXml => each(&|_, call| qwen_xml(call), "\n"),
        Dialect::Glm => each(&|_, call| glm(call), "\n"),
        Dialect::LlamaJson => each(
            &|_, (name, arguments)| format!("{{\"name\": \"{name}\", \"parameters\": {}}}", json(arguments)),
            "; ",
        ),
        Dialect::LlamaPythonic => format!("[{}]", each(&|_, call| python(call), ", ")),
        Dialect::Lfm2 => {
            format!("<|tool_call_start|>[{}]<|tool_call_end|>", each(&|_, call| python(call), ", "))
        }
        Dialect::Mistral => {
            each(&|_, (name, arguments)| format!("[TOOL_CALLS]{name}[ARGS]{}", json(arguments)), "")
        }
        Dialect::MistralList => {
            let call = |_, (name, arguments): &Call| {
                format!("{{\"name\": \"{name}\", \"arguments\": {}, \"id\": \"123456789\"}}", json(arguments))
            };
            format!("[TOOL_CALLS][{}]", each(&call, ", "))
        }
        Dialect::Kimi => {
            let call = |index, (name, arguments): &Call| {
                let arguments = json(arguments);
                format!(
                    "<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
                )
            };
            format!("<|tool_calls_section_begin|>{}<|tool_calls_section_end|>", each(&call, ""))
        }
        Dialect::DeepSeekV3 => {
            let call = |_, (name, arguments): &Call| {
                let arguments = json(arguments);
                format!(
                    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
                )
            };
            format!("<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>", each(&call, "\n"))
        }
        Dialect::DeepSeekV31 => {
            let call = |_, (name, arguments): &Call| {
                format!("<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{}<｜tool▁call▁end｜>", json(arguments))
            };
            format!("<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>", each(&call, ""))
        }
        Dialect::Gemma4 => {
            let call = |_, (name, arguments): &Call| {
                format!("<|tool_call>call:{name}{}<tool_call|>", gemma_members(arguments))
            };
            each(&call, "")
        }
        Dialect::Harmony => {
            let call = |_, (name, arguments): &Call| {
                let arguments = json(arguments);
                format!(
                    "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"
                )
            };
            each(&call, "")
        }
    }
}

/// Parameters that these tools do not declare accept any value, so strings that parse as JSON are
/// quoted.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) if !reads_as_json(text) => text.clone(),
        other => other.to_string(),
    }
}

fn reads_as_json(text: &str) -> bool {
    let word = ["True", "False", "None"].contains(&text.trim());
    word || text.trim() != text || serde_json::from_str::<Value>(text).is_ok()
}

fn qwen_xml((name, arguments): &Call) -> String {
    let parameters: String = arguments
        .iter()
        .map(|(key, value)| format!("<parameter={key}>\n{}\n</parameter>\n", text(value)))
        .collect();
    format!("<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
}

fn glm((name, arguments): &Call) -> String {
    let parameters: String = arguments
        .iter()
        .map(|(key, value)| format!("<arg_key>{key}</arg_key>\n<arg_value>{}</arg_value>\n", text(value)))
        .collect();
    format!("<tool_call>{name}\n{parameters}</tool_call>")
}

fn python((name, arguments): &Call) -> String {
    let arguments: Vec<String> =
        arguments.iter().map(|(key, value)| format!("{key}={}", python_value(value))).collect();
    format!("{name}({})", arguments.join(", "))
}

fn python_value(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(python_value).collect::<Vec<_>>().join(", "))
        }
        Value::Object(members) => {
            let member =
                |(key, value): (&String, &Value)| format!("{}: {}", Value::from(&**key), python_value(value));
            format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}

fn gemma_members(members: &Map<String, Value>) -> String {
    let member = |(key, value): (&String, &Value)| format!("{key}:{}", gemma_value(value));
    format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(","))
}

fn gemma_value(value: &Value) -> String {
    match value {
        Value::String(text) => format!("<|\"|>{text}<|\"|>"),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(gemma_value).collect::<Vec<_>>().join(","))
        }
        Value::Object(members) => gemma_members(members),
        other => other.to_string(),
    }
}

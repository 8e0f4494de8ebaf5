//! Tool calls in chunks, and in the message folded from them.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;

use crate::server::openai::custom_input::CustomInput;

/// The part of a call in one chunk.
#[derive(Debug, Default, JsonSchema, Serialize)]
pub(super) struct ToolCallDelta {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<FunctionDelta>,
    #[serde(skip_serializing_if = "Option::is_none")]
    custom: Option<CustomDelta>,
}

/// The part of a function call in one chunk.
#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

/// The part of a call of a custom tool in one chunk.
#[derive(Debug, JsonSchema, Serialize)]
struct CustomDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    input: String,
}

/// A whole call.
#[derive(Debug, JsonSchema, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(super) enum ToolCall {
    Function { id: String, function: Function },
    Custom { id: String, custom: Custom },
}

/// The function and arguments of a call.
#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct Function {
    name: String,
    arguments: String,
}

/// The custom tool and input of a call.
#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct Custom {
    name: String,
    input: String,
}

/// Writes the calls of an answer: of functions, and of custom tools.
#[derive(Debug, Default)]
pub(super) struct CallWriter {
    custom_tools: BTreeSet<String>,
    /// The calls of custom tools that choices are writing, by the choice: the call's index, and its
    /// input.
    inputs: BTreeMap<usize, (usize, CustomInput)>,
}

impl CallWriter {
    pub(super) fn new(custom_tools: BTreeSet<String>) -> CallWriter {
        CallWriter { custom_tools, inputs: BTreeMap::new() }
    }

    /// Begins a call; the choice's call before it is complete.
    pub(super) fn begin(
        &mut self,
        choice: usize,
        index: usize,
        id: String,
        name: String,
    ) -> Vec<ToolCallDelta> {
        let mut deltas = self.end(choice);
        let begun = ToolCallDelta { index, id: Some(id), ..Default::default() };
        deltas.push(if self.custom_tools.contains(&name) {
            self.inputs.insert(choice, (index, CustomInput::default()));
            let custom = CustomDelta { name: Some(name), input: String::new() };
            ToolCallDelta { r#type: Some("custom"), custom: Some(custom), ..begun }
        } else {
            let function = FunctionDelta { name: Some(name), arguments: String::new() };
            ToolCallDelta { r#type: Some("function"), function: Some(function), ..begun }
        });
        deltas
    }

    /// More of the arguments that the model writes.
    pub(super) fn arguments(&mut self, choice: usize, index: usize, more: String) -> Vec<ToolCallDelta> {
        match self.inputs.get_mut(&choice) {
            Some((_, input)) => input_delta(index, input.push(&more)),
            None => {
                let function = FunctionDelta { name: None, arguments: more };
                vec![ToolCallDelta { index, function: Some(function), ..Default::default() }]
            }
        }
    }

    /// The rest of a choice's last call.
    pub(super) fn end(&mut self, choice: usize) -> Vec<ToolCallDelta> {
        let rest = self.inputs.remove(&choice).map(|(index, mut input)| input_delta(index, input.finish()));
        rest.unwrap_or_default()
    }
}

fn input_delta(index: usize, input: String) -> Vec<ToolCallDelta> {
    let custom = (!input.is_empty()).then_some(CustomDelta { name: None, input });
    custom
        .map(|custom| ToolCallDelta { index, custom: Some(custom), ..Default::default() })
        .into_iter()
        .collect()
}

impl ToolCallDelta {
    pub(super) fn into_function(self) -> Option<FunctionDelta> {
        self.function
    }

    pub(super) fn append_to(self, calls: &mut Vec<ToolCall>) {
        let (function, custom) = (self.function, self.custom);
        match (self.id, calls.last_mut()) {
            (Some(id), _) => calls.extend(ToolCall::begun(id, function, custom)),
            (None, Some(ToolCall::Function { function: call, .. })) => {
                call.arguments.extend(function.map(|more| more.arguments));
            }
            (None, Some(ToolCall::Custom { custom: call, .. })) => {
                call.input.extend(custom.map(|more| more.input));
            }
            (None, None) => {}
        }
    }
}

impl ToolCall {
    fn begun(id: String, function: Option<FunctionDelta>, custom: Option<CustomDelta>) -> Option<ToolCall> {
        match (function, custom) {
            (Some(FunctionDelta { name, arguments }), _) => {
                Some(ToolCall::Function { id, function: Function { name: name?, arguments } })
            }
            (None, Some(CustomDelta { name, input })) => {
                Some(ToolCall::Custom { id, custom: Custom { name: name?, input } })
            }
            (None, None) => None,
        }
    }
}

impl FunctionDelta {
    pub(super) fn append_to(self, call: &mut Option<Function>) {
        match (self.name, call) {
            (Some(name), call) => *call = Some(Function { name, arguments: self.arguments }),
            (None, Some(call)) => call.arguments.push_str(&self.arguments),
            (None, None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The calls of a choice whose model writes these names and arguments.
    fn calls(written: &[(&str, &[&str])]) -> serde_json::Value {
        let mut writer = CallWriter::new(["patch".to_owned()].into());
        let mut calls = vec![];
        for (index, (name, arguments)) in written.iter().enumerate() {
            let begun = writer.begin(0, index, format!("c{index}"), (*name).to_owned());
            let more = arguments.iter().flat_map(|more| writer.arguments(0, index, (*more).to_owned()));
            begun.into_iter().chain(more.collect::<Vec<_>>()).for_each(|delta| delta.append_to(&mut calls));
        }
        writer.end(0).into_iter().for_each(|delta| delta.append_to(&mut calls));
        serde_json::to_value(calls).unwrap()
    }

    #[test]
    fn call_of_a_custom_tool_has_an_input_and_others_have_arguments() {
        let written: [(&str, &[&str]); 3] = [
            ("patch", &["{\"in", "put\": \"a\\", "nb\"}"]),
            ("f", &["{\"input\":", " 1}"]),
            ("patch", &["{\"other\": 1}"]),
        ];
        let expected = serde_json::json!([
            { "type": "custom", "id": "c0", "custom": { "name": "patch", "input": "a\nb" } },
            { "type": "function", "id": "c1", "function": { "name": "f", "arguments": "{\"input\": 1}" } },
            { "type": "custom", "id": "c2", "custom": { "name": "patch", "input": "{\"other\": 1}" } },
        ]);
        assert_eq!(calls(&written), expected);
    }
}

//! Tool calls in chunks, and in the message folded from them.

use schemars::JsonSchema;
use serde::Serialize;

/// The part of a call in one chunk.
#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct ToolCallDelta {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    function: FunctionDelta,
}

/// The part of a function call in one chunk.
#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

/// A whole call.
#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct ToolCall {
    id: String,
    r#type: &'static str,
    function: Function,
}

/// The function and arguments of a call.
#[derive(Debug, JsonSchema, Serialize)]
pub(super) struct Function {
    name: String,
    arguments: String,
}

impl ToolCallDelta {
    pub(super) fn begin(index: usize, id: String, name: String) -> ToolCallDelta {
        let function = FunctionDelta { name: Some(name), arguments: String::new() };
        ToolCallDelta { index, id: Some(id), r#type: Some("function"), function }
    }

    pub(super) fn arguments(index: usize, arguments: String) -> ToolCallDelta {
        ToolCallDelta { index, id: None, r#type: None, function: FunctionDelta { name: None, arguments } }
    }

    pub(super) fn into_function(self) -> FunctionDelta {
        self.function
    }

    pub(super) fn append_to(self, calls: &mut Vec<ToolCall>) {
        let FunctionDelta { name, arguments } = self.function;
        match (self.id, name, calls.last_mut()) {
            (Some(id), Some(name), _) => {
                calls.push(ToolCall { id, r#type: "function", function: Function { name, arguments } });
            }
            (_, _, Some(call)) => call.function.arguments.push_str(&arguments),
            _ => {}
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

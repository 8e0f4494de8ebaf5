//! The form in which a chat template takes earlier tool calls.

use serde_json::{Value, json};

use crate::{RenderInput, Template};

/// How messages with tool calls are given to a template.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallForm {
    /// Arguments are JSON text, which the template copies; else an object, which it writes.
    pub text_arguments: bool,
    /// Missing content is an empty string, else null.
    pub empty_content: bool,
}

/// All forms, the most widely accepted first.
const FORMS: [CallForm; 4] = [
    CallForm { text_arguments: false, empty_content: false },
    CallForm { text_arguments: true, empty_content: false },
    CallForm { text_arguments: false, empty_content: true },
    CallForm { text_arguments: true, empty_content: true },
];
const KEY: &str = "lanner";
const VALUE: &str = "call-form";

impl CallForm {
    /// The first form in which the template writes the call other than as Python's `repr`; else the
    /// first form that renders.
    pub(crate) fn detect(template: &Template) -> Self {
        let prompts = FORMS.map(|form| (form, form.probe(template)));
        let first = |fits: &dyn Fn(&str) -> bool| {
            let found = prompts.iter().find(|(_, prompt)| prompt.as_deref().is_some_and(fits));
            found.map(|(form, _)| *form)
        };
        let printed = [format!("{{'{KEY}'"), format!("'{{\"{KEY}\"")];
        let is_written =
            |prompt: &str| prompt.contains(VALUE) && !printed.iter().any(|text| prompt.contains(text));
        first(&is_written).or_else(|| first(&|_| true)).unwrap_or_default()
    }

    /// The prompt of a conversation with a call in this form, if the template accepts it.
    fn probe(self, template: &Template) -> Option<String> {
        let arguments = json!({ KEY: VALUE });
        let arguments = if self.text_arguments { Value::from(arguments.to_string()) } else { arguments };
        let content = if self.empty_content { json!("") } else { Value::Null };
        let parameters = json!({ "type": "object", "properties": { KEY: { "type": "string" } } });
        let function = json!({ "name": "f", "description": "f", "parameters": parameters });
        let tools = [json!({ "type": "function", "function": function })];
        let function = json!({ "name": "f", "arguments": arguments });
        let call = json!({ "id": "call00001", "type": "function", "function": function });
        let messages = [
            json!({ "role": "user", "content": "x" }),
            json!({ "role": "assistant", "content": content, "tool_calls": [call] }),
        ];
        let input = RenderInput { messages: &messages, tools: Some(&tools), ..RenderInput::default() };
        template.render(&input).ok()
    }
}

//! One step of an answer that calls tools: what the model wrote, and the messages that the next
//! step's prompt has for it.

use chat::Delta;
use serde_json::{Value, json};

use crate::generate::{ChoiceEvent, Finish, Token};

/// The text of a tool's result, or of its failure.
pub(crate) type ToolOutput = Result<String, String>;

/// A call that the model wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ToolCall {
    pub id: String,
    pub name: String,
    /// JSON.
    pub arguments: String,
}

/// Output of the model since its prompt.
#[derive(Clone, Debug, Default)]
pub(crate) struct AnswerStep {
    pub content: String,
    pub reasoning: String,
    pub calls: Vec<ToolCall>,
    /// Without the one that ended it.
    pub tokens: Vec<u32>,
    pub end_token: Option<u32>,
}

impl AnswerStep {
    pub(crate) fn record(&mut self, event: &ChoiceEvent) {
        match event {
            ChoiceEvent::Text { delta, tokens } => {
                self.add_tokens(tokens);
                self.add(delta);
            }
            ChoiceEvent::Finished(Finish { tokens, end_token, .. }) => {
                self.add_tokens(tokens);
                self.end_token = *end_token;
            }
            ChoiceEvent::PromptProgress { .. } | ChoiceEvent::Prompt(_) | ChoiceEvent::Logits { .. } => {}
        }
    }

    fn add(&mut self, delta: &Delta) {
        match delta {
            Delta::Content(text) => self.content.push_str(text),
            Delta::Reasoning(text) => self.reasoning.push_str(text),
            Delta::ToolCall { id, name, .. } => {
                self.calls.push(ToolCall { id: id.clone(), name: name.clone(), arguments: String::new() });
            }
            Delta::ToolArguments { arguments, .. } => {
                self.calls.iter_mut().last().into_iter().for_each(|call| call.arguments.push_str(arguments));
            }
        }
    }

    fn add_tokens(&mut self, tokens: &[Token]) {
        self.tokens.extend(tokens.iter().map(|token| token.id));
    }

    /// The step as a message of OpenAI's API.
    pub(crate) fn message(&self) -> Value {
        let content = self.content.trim();
        let mut message = json!({ "role": "assistant", "content": content });
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.as_str().into();
        }
        if !self.calls.is_empty() {
            message["tool_calls"] = self.calls.iter().map(ToolCall::message).collect();
        }
        message
    }
}

impl ToolCall {
    fn message(&self) -> Value {
        let function = json!({ "name": self.name, "arguments": self.arguments });
        json!({ "id": self.id, "type": "function", "function": function })
    }
}

/// The message with a call's result.
pub(crate) fn tool_message(call: &ToolCall, output: &ToolOutput) -> Value {
    let text = match output {
        Ok(text) => text.clone(),
        Err(text) => format!("Error: {text}"),
    };
    json!({ "role": "tool", "tool_call_id": call.id, "name": call.name, "content": text })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(delta: Delta, id: u32) -> ChoiceEvent {
        ChoiceEvent::Text { delta, tokens: vec![Token { id, reasoning: false, logprobs: None }] }
    }

    #[test]
    fn step_becomes_messages() {
        let mut step = AnswerStep::default();
        let call = |index, id: &str| Delta::ToolCall { index, id: id.into(), name: "f".into() };
        let arguments = |index, text: &str| Delta::ToolArguments { index, arguments: text.into() };
        for (id, delta) in [
            Delta::Reasoning("hm".into()),
            Delta::Content("I look.\n".into()),
            call(0, "a"),
            arguments(0, "{\"x\""),
            arguments(0, ":1}"),
            call(1, "b"),
            arguments(1, "{}"),
        ]
        .into_iter()
        .enumerate()
        {
            step.record(&text(delta, id as u32));
        }
        let call = |id, arguments| json!({ "id": id, "type": "function", "function": { "name": "f", "arguments": arguments } });
        let expected = json!({ "role": "assistant", "content": "I look.", "reasoning_content": "hm",
            "tool_calls": [call("a", "{\"x\":1}"), call("b", "{}")] });
        assert_eq!((step.message(), step.tokens.len()), (expected, 7));
        let failed = tool_message(&step.calls[1], &Err("no".into()));
        assert_eq!(
            failed,
            json!({ "role": "tool", "tool_call_id": "b", "name": "f", "content": "Error: no" })
        );
    }
}

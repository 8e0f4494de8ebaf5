//! Messages of conversations in the terminal, in OpenAI's format, which templates take.

use serde_json::{Map, Value, json};

use crate::model::Conversation;

/// The messages before the first turn.
pub(crate) fn opening(system: Option<&str>) -> Vec<Value> {
    system.map(|text| json!({ "role": "system", "content": text })).into_iter().collect()
}

pub(crate) fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

pub(crate) fn assistant(content: &str, reasoning: &str) -> Value {
    let mut message = json!({ "role": "assistant", "content": content });
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    message
}

/// The input of the template; `think: None` leaves reasoning to it.
pub(crate) fn prompt_for(messages: Vec<Value>, think: Option<bool>) -> Conversation {
    let kwargs: Map<String, Value> =
        think.map(|think| ("enable_thinking".to_owned(), think.into())).into_iter().collect();
    Conversation { messages, kwargs, add_generation_prompt: true, ..Conversation::default() }
}

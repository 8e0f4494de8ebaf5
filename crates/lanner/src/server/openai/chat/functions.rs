//! The deprecated fields `functions` and `function_call`, as the tools that replaced them.

use serde_json::{Value, json};

use crate::server::openai::error::ApiError;

/// `functions` as `tools`.
pub(super) fn as_tools(functions: Vec<Value>) -> Vec<Value> {
    functions.into_iter().map(|function| json!({ "type": "function", "function": function })).collect()
}

/// `function_call` as `tool_choice`.
///
/// # Errors
/// 400: it is neither `none` nor `auto` nor an object with a name.
pub(super) fn as_tool_choice(choice: Value) -> Result<Value, ApiError> {
    match (choice.as_str(), choice["name"].as_str()) {
        (Some("none" | "auto"), _) => Ok(choice),
        (_, Some(name)) => Ok(json!({ "type": "function", "function": { "name": name } })),
        _ => {
            let message = "function_call must be `none`, `auto` or {\"name\": ..}";
            Err(ApiError::invalid("function_call", message))
        }
    }
}

/// Messages with `function_call` as messages with `tool_calls`, and those of the role `function` as
/// those of the role `tool`. A result belongs to the call before it.
pub(super) fn as_tool_messages(messages: &mut [Value]) {
    let mut calls = 0;
    for message in messages.iter_mut().filter_map(Value::as_object_mut) {
        if let Some(function) = message.remove("function_call").filter(|function| !function.is_null()) {
            calls += 1;
            let call = json!({ "id": id(calls), "type": "function", "function": function });
            message.insert("tool_calls".into(), json!([call]));
        }
        if message.get("role").and_then(Value::as_str) == Some("function") {
            message.insert("role".into(), "tool".into());
            message.insert("tool_call_id".into(), id(calls).into());
        }
    }
}

/// Nine characters, as some templates require.
fn id(call: usize) -> String {
    format!("call{call:05}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_messages_become_tool_messages() {
        let mut messages = [
            json!({ "role": "user", "content": "x" }),
            json!({ "role": "assistant", "content": null, "function_call": { "name": "f", "arguments": "{}" } }),
            json!({ "role": "function", "name": "f", "content": "7" }),
        ];
        as_tool_messages(&mut messages);
        let call =
            json!({ "id": "call00001", "type": "function", "function": { "name": "f", "arguments": "{}" } });
        let expected = [
            json!({ "role": "user", "content": "x" }),
            json!({ "role": "assistant", "content": null, "tool_calls": [call] }),
            json!({ "role": "tool", "name": "f", "content": "7", "tool_call_id": "call00001" }),
        ];
        assert_eq!(messages, expected);
    }
}

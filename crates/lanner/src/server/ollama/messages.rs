//! Converts messages from Ollama's format to OpenAI's, with ids for calls and their results.

use std::collections::VecDeque;

use serde_json::{Value, json};

use crate::server::openai::error::ApiError;

/// # Errors
/// 400: a message has images.
pub(super) fn openai_messages(mut messages: Vec<Value>) -> Result<Vec<Value>, ApiError> {
    let mut calls = 0;
    let mut pending: VecDeque<(String, Value)> = VecDeque::new();
    for (index, message) in messages.iter_mut().enumerate() {
        if message["images"].as_array().is_some_and(|images| !images.is_empty()) {
            return Err(ApiError::unsupported(&format!("messages[{index}].images")));
        }
        // Anything else is refused where the template's input is made.
        let Some(message) = message.as_object_mut() else { continue };
        for call in message.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
            calls += 1;
            let Some(call) = call.as_object_mut() else { continue };
            let id = call.entry("id").or_insert_with(|| id(calls).into());
            let id = id.as_str().unwrap_or_default().to_owned();
            call.entry("type").or_insert_with(|| "function".into());
            let name = call.get("function").map_or(Value::Null, |function| function["name"].clone());
            pending.push_back((id, name));
        }
        if message.get("role").and_then(Value::as_str) == Some("tool") {
            let name = message.remove("tool_name").or_else(|| message.get("name").cloned());
            let given = message.get("tool_call_id").cloned();
            let answers = |(id, called): &(String, Value)| match &given {
                Some(given) => given == id,
                None => name.as_ref().is_none_or(|name| name == called),
            };
            // A name that no call has may still be meant for the next one; another id is not.
            let at = pending.iter().position(answers).or(given.is_none().then_some(0));
            if let Some((id, called)) = at.and_then(|at| pending.remove(at)) {
                message.entry("tool_call_id").or_insert(json!(id));
                message.insert("name".into(), name.unwrap_or(called));
            }
        }
    }
    Ok(messages)
}

/// Nine characters, as some templates require.
fn id(call: usize) -> String {
    format!("call{call:05}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tool_results_get_the_ids_of_their_calls() {
        let call = |name: &str| json!({ "function": { "name": name, "arguments": { "a": 1 } } });
        let messages = openai_messages(vec![
            json!({ "role": "user", "content": "x" }),
            json!({ "role": "assistant", "content": "", "tool_calls": [call("f"), call("g")] }),
            json!({ "role": "tool", "tool_name": "g", "content": "7" }),
            json!({ "role": "tool", "content": "8" }),
        ])
        .unwrap();
        assert_eq!(messages[1]["tool_calls"][1]["id"], "call00002");
        assert_eq!(messages[1]["tool_calls"][0]["function"]["arguments"], json!({ "a": 1 }));
        assert_eq!(
            messages[2],
            json!({ "role": "tool", "name": "g", "content": "7", "tool_call_id": "call00002" })
        );
        assert_eq!(
            messages[3],
            json!({ "role": "tool", "name": "f", "content": "8", "tool_call_id": "call00001" })
        );
    }

    #[test]
    fn result_of_an_unknown_call_leaves_the_calls_to_their_results() {
        let call = json!({ "id": "a", "function": { "name": "f", "arguments": {} } });
        let messages = openai_messages(vec![
            json!({ "role": "assistant", "content": "", "tool_calls": [call] }),
            json!({ "role": "tool", "tool_call_id": "b", "content": "7" }),
            json!({ "role": "tool", "tool_call_id": "a", "content": "8" }),
        ])
        .unwrap();
        assert_eq!(messages[1], json!({ "role": "tool", "tool_call_id": "b", "content": "7" }));
        assert_eq!(messages[2]["name"], "f");
    }

    #[test]
    fn images_are_refused() {
        let error = openai_messages(vec![json!({ "role": "user", "images": ["aaaa"] })]).unwrap_err();
        assert_eq!(error.body.param.as_deref(), Some("messages[0].images"));
        assert!(openai_messages(vec![json!({ "role": "user", "images": [] }), json!(7)]).is_ok());
    }
}

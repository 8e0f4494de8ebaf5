//! Converts OpenAI messages to what chat templates expect. Checks types only; the template checks
//! the rest.

use serde_json::{Map, Value, json};

use crate::{Error, Result, Template, content, late_system};

/// Prepares a request's messages for [`Template::render`]; unknown fields are kept.
///
/// - Content parts become one string, joined by line feeds. With images, which are parts
///   `{"type": "image", "index": 0}`, they stay parts, texts that follow each other joined; see
///   [`take_images`]. Other parts are an error.
/// - `arguments` of tool calls become an object, as most templates expect, or JSON text for those
///   that copy text.
/// - Missing content becomes `null`, which templates test for, or an empty string beside tool calls
///   for those that do not.
/// - Reasoning of earlier turns gets both names that templates use, `reasoning_content` and
///   `thinking`, as in transformers.
/// - The role `developer` becomes `system` if the template does not mention it.
/// - System messages after the start become reminders in the turns of users and tools if the
///   template does not write them there.
///
/// # Errors
/// [`Error::Message`] for a malformed message.
pub fn prepare(messages: &[Value], template: &Template) -> Result<Vec<Value>> {
    let prepared = messages.iter().enumerate().map(|(index, message)| {
        prepare_message(message, template).map_err(|message| Error::Message { index, message })
    });
    let prepared: Vec<Value> = prepared.collect::<Result<_>>()?;
    let is_late = |pair: &[Value]| !late_system::is_system(&pair[0]) && late_system::is_system(&pair[1]);
    if prepared.windows(2).any(is_late) && !template.writes_late_system() {
        return Ok(late_system::into_reminders(prepared));
    }
    Ok(prepared)
}

/// Takes the indexes out of the image parts of prepared messages, in their order.
pub fn take_images(messages: &mut [Value]) -> Vec<usize> {
    let contents = messages.iter_mut().filter_map(|message| message.get_mut("content")?.as_array_mut());
    contents.flatten().filter_map(content::take_index).collect()
}

fn prepare_message(message: &Value, template: &Template) -> std::result::Result<Value, String> {
    let mut message = message.as_object().ok_or("a message must be an object")?.clone();
    let role = message.get("role").and_then(Value::as_str).ok_or("a message needs a role, a string")?;
    if role == "developer" && !template.source().contains("developer") {
        message.insert("role".to_owned(), json!("system"));
    }
    let content = content::join(message.get("content").unwrap_or(&Value::Null))?;
    message.insert("content".to_owned(), content);
    if let Some(Value::Array(calls)) = message.get_mut("tool_calls") {
        let form = template.call_form();
        calls.iter_mut().for_each(|call| convert_arguments(call, form.text_arguments));
        let has_content = message.get("content").is_some_and(|content| !content.is_null());
        if form.empty_content && !has_content {
            message.insert("content".to_owned(), json!(""));
        }
    }
    Ok(Value::Object(alias_reasoning(message)))
}

/// Stores reasoning, under any of its names, under both names that templates read.
fn alias_reasoning(message: Map<String, Value>) -> Map<String, Value> {
    let given =
        ["reasoning_content", "thinking", "reasoning"].into_iter().filter_map(|name| message.get(name));
    let Some(reasoning) = given.into_iter().find(|value| !value.is_null()).cloned() else { return message };
    let mut aliased = Map::from_iter([("thinking".to_owned(), reasoning.clone())]);
    aliased.extend(message);
    aliased.insert("reasoning_content".to_owned(), reasoning);
    aliased
}

/// Converts the arguments of a tool call; text that is not a JSON object is left to the template.
fn convert_arguments(call: &mut Value, as_text: bool) {
    let Some(arguments) = call.pointer_mut("/function/arguments") else { return };
    let text = match arguments {
        Value::String(text) if text.trim().is_empty() => "{}".to_owned(),
        Value::String(text) => text.clone(),
        Value::Object(_) => arguments.to_string(),
        _ => return,
    };
    if as_text {
        *arguments = text.into();
    } else if let Ok(object @ Value::Object(_)) = serde_json::from_str(&text) {
        *arguments = object;
    }
}

//! Converts messages from Ollama's format to OpenAI's, with ids for calls and their results.

use std::collections::VecDeque;

use serde_json::{Value, json};

use crate::{image::Images, model::Conversation, server::openai::error::ApiError};

/// Images of messages, as parts that refer to them.
#[derive(Debug, Default)]
pub(super) struct MessageImages {
    images: Images,
    /// The index of a message, and its parts.
    parts: Vec<(usize, Vec<Value>)>,
}

impl MessageImages {
    /// Adds the images of a message, each in base64; `at` is their field.
    ///
    /// # Errors
    /// 400: one of them is no image.
    pub(super) fn add(&mut self, message: usize, field: &Value, at: &str) -> Result<(), ApiError> {
        let list = match field {
            Value::Null => return Ok(()),
            Value::Array(list) => list,
            _ => return Err(ApiError::invalid(at, format!("{at} must be an array of images in base64"))),
        };
        let mut parts = vec![];
        for (index, image) in list.iter().enumerate() {
            let at = format!("{at}[{index}]");
            let Some(data) = image.as_str() else {
                return Err(ApiError::invalid(&at, format!("{at} must be a string of base64")));
            };
            // Some clients send what they show.
            let data =
                data.strip_prefix("data:").and_then(|uri| uri.split_once(',')).map_or(data, |uri| uri.1);
            parts.push(self.images.add_base64(data, at)?);
        }
        if !parts.is_empty() {
            self.parts.push((message, parts));
        }
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Puts the images before the texts of their messages, as Ollama does.
    pub(super) fn place(self, conversation: &mut Conversation) {
        for (message, mut parts) in self.parts {
            let Some(content) = conversation.messages.get_mut(message).map(|message| &mut message["content"])
            else {
                continue;
            };
            match content.take() {
                Value::Array(own) => parts.extend(own),
                Value::String(text) => parts.push(json!({ "type": "text", "text": text })),
                _ => {}
            }
            *content = parts.into();
        }
        conversation.images = self.images;
    }
}

/// The messages, and the images that were taken out of them.
///
/// # Errors
/// 400: an image cannot be used.
pub(super) fn openai_messages(mut messages: Vec<Value>) -> Result<(Vec<Value>, MessageImages), ApiError> {
    let mut calls = 0;
    let mut pending: VecDeque<(String, Value)> = VecDeque::new();
    let mut images = MessageImages::default();
    for (index, message) in messages.iter_mut().enumerate() {
        // Anything else is refused where the template's input is made.
        let Some(message) = message.as_object_mut() else { continue };
        if let Some(field) = message.remove("images") {
            images.add(index, &field, &format!("messages[{index}].images"))?;
        }
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
    Ok((messages, images))
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
        let (messages, _) = openai_messages(vec![
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
        let (messages, _) = openai_messages(vec![
            json!({ "role": "assistant", "content": "", "tool_calls": [call] }),
            json!({ "role": "tool", "tool_call_id": "b", "content": "7" }),
            json!({ "role": "tool", "tool_call_id": "a", "content": "8" }),
        ])
        .unwrap();
        assert_eq!(messages[1], json!({ "role": "tool", "tool_call_id": "b", "content": "7" }));
        assert_eq!(messages[2]["name"], "f");
    }

    #[test]
    fn images_come_before_the_text() {
        let png = crate::image::tests::PNG;
        let uri = format!("data:image/png;base64,{png}");
        let (messages, images) = openai_messages(vec![
            json!({ "role": "system", "content": "s", "images": [] }),
            json!({ "role": "user", "content": "x", "images": [png, uri] }),
        ])
        .unwrap();
        let mut conversation = Conversation { messages, ..Conversation::default() };
        images.place(&mut conversation);
        let part = |index: usize| json!({ "type": "image", "index": index });
        assert_eq!(
            conversation.messages,
            [
                json!({ "role": "system", "content": "s" }),
                json!({ "role": "user", "content": [part(0), part(1), { "type": "text", "text": "x" }] }),
            ]
        );
        assert_eq!(conversation.images.len(), 2);
    }

    #[test]
    fn bad_image_is_named() {
        for (images, param) in [
            (json!(["aaaa"]), "messages[0].images[0]"),
            (json!([7]), "messages[0].images[0]"),
            (json!("a"), "messages[0].images"),
        ] {
            let error = openai_messages(vec![json!({ "role": "user", "images": images })]).unwrap_err();
            assert_eq!(error.body.param.as_deref(), Some(param));
        }
        let (_, images) = openai_messages(vec![json!({ "role": "user", "images": null }), json!(7)]).unwrap();
        assert!(images.is_empty());
    }
}

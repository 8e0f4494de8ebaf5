//! Content of messages: a text, or parts of texts and images.

use serde_json::{Value, json};

/// The content as a string, as parts if it has images, or `null`.
pub(crate) fn join(content: &Value) -> std::result::Result<Value, String> {
    let parts = match content {
        Value::Null | Value::String(_) => return Ok(content.clone()),
        Value::Array(parts) => parts,
        _ => return Err("content must be a string, a list of parts, or null".to_owned()),
    };
    // An empty list is an empty text.
    let mut joined = json!("");
    for (position, part) in parts.iter().enumerate() {
        let more = match (part["type"].as_str(), part["text"].as_str()) {
            (Some("text" | "input_text" | "output_text"), Some(text)) => json!(text),
            (Some("text" | "input_text" | "output_text"), None) => {
                return Err("a text part needs text".to_owned());
            }
            (Some("image"), _) if part["index"].is_u64() => json!([part]),
            (Some(kind), _) => return Err(format!("content of type {kind} is not supported: send text")),
            (None, _) => return Err("a content part needs a type, a string".to_owned()),
        };
        match position {
            0 => joined = more,
            _ => append(&mut joined, &more),
        }
    }
    Ok(joined)
}

/// Appends content to content. Texts that meet are joined by a line feed.
pub(crate) fn append(content: &mut Value, more: &Value) {
    if let (Some(before), Some(more)) = (content.as_str(), more.as_str()) {
        *content = format!("{before}\n{more}").into();
        return;
    }
    let mut all = parts(content);
    for part in parts(more) {
        match (all.last().and_then(text), text(&part)) {
            (Some(before), Some(more)) => {
                let joined = json!({ "type": "text", "text": format!("{before}\n{more}") });
                all.pop();
                all.push(joined);
            }
            _ => all.push(part),
        }
    }
    *content = all.into();
}

/// Whether the content has an image.
pub(crate) fn has_image(content: &Value) -> bool {
    content.as_array().is_some_and(|parts| parts.iter().any(|part| part["type"] == "image"))
}

/// The content as parts.
pub(crate) fn parts(content: &Value) -> Vec<Value> {
    match content {
        Value::String(text) => vec![json!({ "type": "text", "text": text })],
        Value::Array(parts) => parts.clone(),
        _ => vec![],
    }
}

fn text(part: &Value) -> Option<&str> {
    part["text"].as_str().filter(|_| part["type"] == "text")
}

/// The index of an image part, which templates do not see.
pub(crate) fn take_index(part: &mut Value) -> Option<usize> {
    let index =
        part.as_object_mut().filter(|part| part.get("type") == Some(&json!("image")))?.remove("index");
    index?.as_u64().and_then(|index| usize::try_from(index).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(index: usize) -> Value {
        json!({ "type": "image", "index": index })
    }

    #[test]
    fn texts_are_joined_and_images_stay_parts() {
        let text = |text: &str| json!({ "type": "text", "text": text });
        let check = |content: Value, expected: Value| assert_eq!(join(&content), Ok(expected));
        check(json!([]), json!(""));
        check(json!([text("a"), { "type": "input_text", "text": "b" }]), json!("a\nb"));
        check(json!([text("a"), text(""), text("b")]), json!("a\n\nb"));
        check(json!([image(0)]), json!([image(0)]));
        check(
            json!([text("a"), { "type": "output_text", "text": "b" }, image(0), image(1), text("c"), text("d")]),
            json!([text("a\nb"), image(0), image(1), text("c\nd")]),
        );
    }

    #[test]
    fn part_that_claims_to_be_an_image_is_refused() {
        for part in [json!({ "type": "image" }), json!({ "type": "image", "image": "a.png" })] {
            assert!(join(&json!([part])).unwrap_err().contains("type image"));
        }
    }
}

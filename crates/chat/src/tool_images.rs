//! Images in the results of tools, for templates that write none there.

use serde_json::{Value, json};

use crate::{RenderInput, Template, content};

/// Label before moved images.
const LABEL: &str = "Images that the tools returned:";
/// Stands for the text of a result that had none.
const MOVED: &str = "(an image, in the next message)";

impl Template {
    /// Whether the template prints `placeholder` for an image in the result of a tool. Some print
    /// the parts as JSON, or fail.
    pub fn writes_tool_images(&self, placeholder: &str) -> bool {
        let call =
            json!({ "id": "call00001", "type": "function", "function": { "name": "f", "arguments": {} } });
        let messages = [
            json!({ "role": "user", "content": "x" }),
            json!({ "role": "assistant", "content": "", "tool_calls": [call] }),
            json!({
                "role": "tool", "tool_call_id": "call00001", "name": "f", "content": [{ "type": "image" }],
            }),
        ];
        let prompt = self.render(&RenderInput { messages: &messages, ..RenderInput::default() });
        prompt.is_ok_and(|prompt| prompt.matches(placeholder).count() == 1)
    }
}

/// Moves the images in results of tools to the start of the user's next turn; if the conversation
/// ends with the results, or the model goes on after them, to a turn of their own. The order of
/// images does not change.
pub fn into_user_turns(messages: Vec<Value>) -> Vec<Value> {
    let mut turns: Vec<Value> = Vec::with_capacity(messages.len());
    let mut moved: Vec<Value> = vec![];
    for mut message in messages {
        if message["role"] == "tool" {
            take_images(&mut message, &mut moved);
        } else if !moved.is_empty() {
            let mut images = labelled(std::mem::take(&mut moved));
            if message["role"] == "user" {
                content::append(&mut images, &message["content"]);
                message["content"] = images;
            } else {
                turns.push(json!({ "role": "user", "content": images }));
            }
        }
        turns.push(message);
    }
    if !moved.is_empty() {
        turns.push(json!({ "role": "user", "content": labelled(moved) }));
    }
    turns
}

fn labelled(images: Vec<Value>) -> Value {
    [json!({ "type": "text", "text": LABEL })].into_iter().chain(images).collect()
}

fn take_images(message: &mut Value, moved: &mut Vec<Value>) {
    if !content::has_image(&message["content"]) {
        return;
    }
    let (images, texts): (Vec<Value>, Vec<Value>) =
        content::parts(&message["content"]).into_iter().partition(|part| part["type"] == "image");
    moved.extend(images);
    let texts: Vec<&str> = texts.iter().filter_map(|part| part["text"].as_str()).collect();
    message["content"] = if texts.is_empty() { MOVED.into() } else { texts.join("\n").into() };
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    fn image(index: usize) -> Value {
        json!({ "type": "image", "index": index })
    }

    fn text(text: &str) -> Value {
        json!({ "type": "text", "text": text })
    }

    fn turn(role: &str, content: Value) -> Value {
        json!({ "role": role, "content": content })
    }

    #[test]
    fn images_of_results_move_to_the_next_turn_of_the_user() {
        let results =
            [turn("tool", json!([text("a"), image(0), text("b")])), turn("tool", json!([image(1)]))];
        let left = [turn("tool", json!("a\nb")), turn("tool", json!(MOVED))];
        let own = turn("user", json!([text(LABEL), image(0), image(1)]));
        let check = |rest: &[Value], expected: &[Value]| {
            let found = into_user_turns([&results[..], rest].concat());
            assert_eq!(found, [&left[..], expected].concat());
        };
        check(&[], std::slice::from_ref(&own));
        check(&[turn("assistant", json!("c"))], &[own, turn("assistant", json!("c"))]);
        let both = json!([text(LABEL), image(0), image(1), text("d"), image(2)]);
        check(&[turn("user", json!([text("d"), image(2)]))], &[turn("user", both)]);
        let with_text = json!([text(LABEL), image(0), image(1), text("d")]);
        check(&[turn("user", json!("d"))], &[turn("user", with_text)]);
    }

    #[test]
    fn template_that_writes_images_of_tools_is_recognised() {
        let parts = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'image' %}<IMG>{% endif %}{% endfor %}{% endif %}{% endfor %}";
        let json = "{% for m in messages %}{{ m.content }}{% endfor %}";
        for (source, expected) in [(parts, true), (json, false)] {
            let template = Template::new(source, Map::new()).unwrap();
            assert_eq!(template.writes_tool_images("<IMG>"), expected, "{source}");
        }
    }
}

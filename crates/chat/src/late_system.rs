//! System messages after the start of a conversation, for templates that take none there.

use serde_json::{Value, json};

use crate::{RenderInput, Template, content};

/// Unlike any text of a template.
const PROBE: &str = "late-system-probe";

/// Whether the template writes a system message that follows other turns. Some refuse it, others
/// drop it without a word.
pub(crate) fn is_written(template: &Template) -> bool {
    let messages = [
        json!({ "role": "user", "content": "x" }),
        json!({ "role": "assistant", "content": "y" }),
        json!({ "role": "system", "content": PROBE }),
        json!({ "role": "user", "content": "z" }),
    ];
    let prompt = template.render(&RenderInput { messages: &messages, ..RenderInput::default() });
    prompt.is_ok_and(|prompt| prompt.contains(PROBE))
}

/// Moves each system message after the first turn into the previous turn if that is the user's or a
/// tool's, else into the user's next turn, between the tags that agents use for reminders. Nothing
/// moves to the start: the prompts of a conversation keep their common prefix.
pub(crate) fn into_reminders(messages: Vec<Value>) -> Vec<Value> {
    let leading = messages.iter().take_while(|message| is_system(message)).count();
    let mut turns: Vec<Value> = Vec::with_capacity(messages.len());
    // A reminder that may still find its turn, the next one.
    let mut is_open = false;
    for (index, message) in messages.into_iter().enumerate() {
        let text = message["content"].as_str().unwrap_or_default();
        let last = turns.last_mut().filter(|_| index > leading);
        let takes_text = last.as_ref().is_some_and(|last| {
            let has_content = last["content"].is_string() || last["content"].is_array();
            has_content && (last["role"] == "user" || last["role"] == "tool")
        });
        match last {
            Some(last) if is_system(&message) && takes_text => {
                append(last, &reminder(text).into());
                continue;
            }
            Some(last) if is_open && message["role"] == "user" => append(last, &message["content"]),
            _ if is_system(&message) && index >= leading => {
                turns.push(json!({ "role": "user", "content": reminder(text) }));
                is_open = true;
                continue;
            }
            _ => turns.push(message),
        }
        is_open = false;
    }
    turns
}

pub(crate) fn is_system(message: &Value) -> bool {
    message["role"] == "system" || message["role"] == "developer"
}

fn reminder(text: &str) -> String {
    format!("<system-reminder>\n{text}\n</system-reminder>")
}

fn append(message: &mut Value, more: &Value) {
    match &mut message["content"] {
        Value::String(before) if before.is_empty() => message["content"] = more.clone(),
        before => content::append(before, more),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::conversation::prepare;

    const SKIPS: &str = "{% for m in messages %}{% if m.role != 'system' or loop.first %}{{ m.role }}:{{ m.content }};{% endif %}{% endfor %}";
    const REFUSES: &str = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be first') }}{% endif %}{{ m.role }}:{{ m.content }};{% endfor %}";
    const WRITES: &str = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";

    fn turns(turns: &[(&str, &str)]) -> Vec<Value> {
        turns.iter().map(|(role, content)| json!({ "role": role, "content": content })).collect()
    }

    fn check(messages: &[(&str, &str)], expected: &[(&str, &str)]) {
        for source in [SKIPS, REFUSES] {
            let template = Template::new(source, Map::new()).unwrap();
            assert_eq!(prepare(&turns(messages), &template).unwrap(), turns(expected), "{source}");
        }
        let template = Template::new(WRITES, Map::new()).unwrap();
        assert_eq!(prepare(&turns(messages), &template).unwrap(), turns(messages));
    }

    #[test]
    fn late_system_message_joins_a_turn_of_the_user_or_a_tool() {
        let s = "<system-reminder>\ns\n</system-reminder>";
        let d_then_s = "d\n<system-reminder>\ns\n</system-reminder>";
        let s_then_d = "<system-reminder>\ns\n</system-reminder>\nd";
        let head = [("system", "a"), ("user", "b"), ("assistant", "c")];
        check(&head, &head);
        let after = |rest: &[(&'static str, &'static str)]| [&head[..], rest].concat();
        check(&after(&[("user", "d"), ("system", "s")]), &after(&[("user", d_then_s)]));
        check(&after(&[("tool", "d"), ("system", "s")]), &after(&[("tool", d_then_s)]));
        check(&after(&[("system", "s"), ("user", "d")]), &after(&[("user", s_then_d)]));
        check(&after(&[("system", "s"), ("assistant", "d")]), &after(&[("user", s), ("assistant", "d")]));
        let twice = format!("{s}\n{s_then_d}");
        check(
            &after(&[("system", "s"), ("system", "s"), ("user", "d")]),
            &[&head[..], &[("user", twice.as_str())]].concat(),
        );
        check(&[("user", "d"), ("system", "s")], &[("user", d_then_s)]);
    }

    #[test]
    fn reminders_keep_the_prefix_of_a_growing_conversation() {
        let all = turns(&[
            ("system", "a"),
            ("user", "b"),
            ("system", "c"),
            ("assistant", "d"),
            ("tool", "e"),
            ("system", "f"),
            ("assistant", "g"),
            ("system", "h"),
            ("user", "i"),
        ]);
        let whole = into_reminders(all.clone());
        for length in [3, 6, 9] {
            let part = into_reminders(all[..length].to_vec());
            assert_eq!(part, whole[..part.len()]);
        }
    }

    #[test]
    fn late_system_message_keeps_the_images_around_it() {
        let (s, image) = ("<system-reminder>\ns\n</system-reminder>", json!({ "type": "image", "index": 0 }));
        let user = |content: Value| json!({ "role": "user", "content": content });
        let (answer, system) = (turns(&[("assistant", "c")]), turns(&[("system", "s")]));
        let text = |text: &str| json!({ "type": "text", "text": text });
        let template = Template::new(SKIPS, Map::new()).unwrap();
        for (messages, expected) in [
            ([&[user(json!([image]))], &system[..], &answer].concat(), user(json!([image, text(s)]))),
            (
                [&answer[..], &system, &[user(json!([text("d"), image]))]].concat(),
                user(json!([text(&format!("{s}\nd")), image])),
            ),
        ] {
            assert!(prepare(&messages, &template).unwrap().contains(&expected), "{messages:?}");
        }
    }
}

//! The selected branch of a conversation. A new answer to a message, or a changed message, is a
//! sibling of the one before: the store keeps both.

use serde_json::{Map, Value, json};
use store::{Conversation, Message, Role};

use crate::{attach, conversation, image::Images, sampling};

/// Messages from the first to the selected one.
#[derive(Clone, Default)]
pub(super) struct Branch {
    messages: Vec<Message>,
    /// Those that are not stored yet, also of branches that were left.
    unsaved: Vec<Message>,
}

/// An answer to add to a branch.
pub(super) struct Answer {
    pub(super) model: String,
    pub(super) content: String,
    pub(super) reasoning: String,
    pub(super) usage: Value,
    pub(super) timings: Value,
}

impl Branch {
    /// The selected branch of a stored conversation, up to its last answer: templates expect an
    /// answer to every message.
    pub(super) fn of(stored: &Conversation) -> Branch {
        let mut messages: Vec<Message> = stored.branch().into_iter().cloned().collect();
        while messages.last().is_some_and(|message| message.role != Role::Assistant) {
            messages.pop();
        }
        Branch { messages, unsaved: vec![] }
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    /// The messages in OpenAI's format; their pictures are added to `images`.
    pub(super) fn turns(&self, images: &mut Images) -> Vec<Value> {
        self.messages.iter().map(|message| turn(message, images)).collect()
    }

    /// The pictures of the last message of the user, as data URIs.
    pub(super) fn pictures(&self) -> Vec<String> {
        let asked = self.messages.iter().rev().find(|message| message.role == Role::User);
        let uris = asked.into_iter().flat_map(uris);
        uris.filter_map(Value::as_str).map(str::to_owned).collect()
    }

    /// The message at the end.
    pub(super) fn leaf(&self) -> Option<&str> {
        self.messages.last().map(|message| &*message.id)
    }

    pub(super) fn unsaved(&self) -> &[Message] {
        &self.unsaved
    }

    pub(super) fn set_saved(&mut self) {
        self.unsaved.clear();
    }

    /// The last message of the user.
    pub(super) fn question(&self) -> Option<&str> {
        self.messages.iter().rev().find(|message| message.role == Role::User).map(|message| &*message.text)
    }

    /// Leaves what follows the last message of the user; `false`: there is no such message.
    pub(super) fn rewind_to_question(&mut self) -> bool {
        let at = self.messages.iter().rposition(|message| message.role == Role::User);
        at.inspect(|at| self.messages.truncate(at + 1)).is_some()
    }

    /// Leaves the last message of the user too.
    pub(super) fn rewind_before_question(&mut self) -> bool {
        self.rewind_to_question() && self.messages.pop().is_some()
    }

    /// `pictures`: data URIs.
    pub(super) fn ask(&mut self, text: &str, pictures: Vec<String>) {
        let pictures = (!pictures.is_empty()).then(|| ("images".to_owned(), pictures.into()));
        self.push(Role::User, text, |message| Message { other: pictures.into_iter().collect(), ..message });
    }

    pub(super) fn answer(&mut self, answer: Answer) {
        let Answer { model, content, reasoning, usage, timings } = answer;
        self.push(Role::Assistant, &content, |message| Message {
            reasoning: (!reasoning.is_empty()).then_some(reasoning),
            model: Some(model),
            usage: Some(usage),
            other: Map::from_iter([("timings".to_owned(), timings)]),
            ..message
        });
    }

    /// Adds a step's messages in OpenAI's format: the calls of tools, and the result of each.
    pub(super) fn call(&mut self, model: &str, messages: &[Value]) {
        for step in messages {
            let text = step["content"].as_str().unwrap_or_default();
            if step["role"] == "tool" {
                let own = ["tool_call_id", "name"].map(|field| step[field].clone());
                let other = ["toolCallId", "toolName"].map(str::to_owned).into_iter().zip(own).collect();
                self.push(Role::Tool, text, |message| Message { other, ..message });
                continue;
            }
            self.push(Role::Assistant, text, |message| Message {
                reasoning: step["reasoning_content"].as_str().map(str::to_owned),
                model: Some(model.to_owned()),
                tool_calls: Some(step["tool_calls"].clone()),
                ..message
            });
        }
    }

    fn push(&mut self, role: Role, text: &str, with: impl FnOnce(Message) -> Message) {
        let message = with(Message {
            id: new_id(),
            parent: self.leaf().map(str::to_owned),
            role,
            text: text.to_owned(),
            created: store::now(),
            reasoning: None,
            model: None,
            tool_calls: None,
            usage: None,
            other: Map::new(),
        });
        self.unsaved.push(message.clone());
        self.messages.push(message);
    }
}

fn uris(message: &Message) -> impl Iterator<Item = &Value> {
    message.other.get("images").and_then(Value::as_array).into_iter().flatten()
}

/// A message in OpenAI's format. Pictures that cannot be used any more are left out.
fn turn(message: &Message, images: &mut Images) -> Value {
    match message.role {
        Role::User => {
            let part = |uri| json!({ "type": "image_url", "image_url": uri });
            let parts = uris(message).filter_map(|uri| images.add_part(&part(uri), "images")?.ok()).collect();
            attach::message(parts, &message.text)
        }
        Role::Tool => {
            let id = message.other.get("toolCallId").cloned().unwrap_or_default();
            let mut turn = json!({ "role": "tool", "content": message.text, "tool_call_id": id });
            message.other.get("toolName").iter().for_each(|name| turn["name"] = (*name).clone());
            turn
        }
        Role::Assistant => {
            let reasoning = message.reasoning.as_deref().unwrap_or_default();
            let mut turn = conversation::assistant(&message.text, reasoning);
            message.tool_calls.iter().for_each(|calls| turn["tool_calls"] = calls.clone());
            turn
        }
    }
}

pub(super) fn new_id() -> String {
    format!("{:016x}", sampling::random())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(content: &str) -> Answer {
        let (model, reasoning) = ("owl".into(), String::new());
        Answer { model, content: content.into(), reasoning, usage: Value::Null, timings: Value::Null }
    }

    fn texts(branch: &Branch) -> Vec<&str> {
        branch.messages.iter().map(|message| &*message.text).collect()
    }

    #[test]
    fn another_answer_is_a_sibling() {
        let mut branch = Branch::default();
        assert!(!branch.rewind_to_question());
        branch.ask("why?", vec![]);
        branch.answer(answer("because"));
        assert!(branch.rewind_to_question());
        branch.answer(answer("so"));
        assert_eq!(texts(&branch), ["why?", "so"]);
        let [question, first, second] = branch.unsaved() else { panic!("three messages") };
        assert_eq!((first.parent.as_ref(), second.parent.as_ref()), (Some(&question.id), Some(&question.id)));
        assert_eq!(branch.leaf(), Some(&*second.id));
    }

    #[test]
    fn calls_of_tools_are_messages_between_question_and_answer() {
        let mut branch = Branch::default();
        branch.ask("what?", vec![]);
        let call = json!({ "id": "1", "type": "function", "function": { "name": "f", "arguments": "{}" } });
        let calls =
            json!({ "role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call] });
        let result = json!({ "role": "tool", "content": "so", "tool_call_id": "1", "name": "f" });
        branch.call("owl", &[calls.clone(), result.clone()]);
        branch.answer(answer("that"));
        assert_eq!(branch.turns(&mut Images::default())[1..3], [calls, result]);
        let [question, call, result, answer] = branch.unsaved() else { panic!("four messages") };
        let parents = [call, result, answer].map(|message| message.parent.as_deref());
        assert_eq!(parents, [question, call, result].map(|message| Some(&*message.id)));
        assert!(branch.rewind_to_question());
        assert_eq!(branch.len(), 1);
    }

    #[test]
    fn changed_message_is_a_sibling() {
        let mut branch = Branch::default();
        branch.ask("a", vec![]);
        branch.answer(answer("b"));
        branch.ask("c", vec![]);
        branch.answer(answer("d"));
        assert_eq!(branch.question(), Some("c"));
        assert!(branch.rewind_before_question());
        branch.ask("e", vec![]);
        assert_eq!(texts(&branch), ["a", "b", "e"]);
        let [_, b, c, _, e] = branch.unsaved() else { panic!("five messages") };
        assert_eq!((c.parent.as_ref(), e.parent.as_ref()), (Some(&b.id), Some(&b.id)));
    }
}

//! Conversations as trees of messages. Their JSON is that of the web page's exports.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::StoreError;

const LONGEST_ID: usize = 64;
/// In characters.
const LONGEST_TITLE: usize = 500;
/// In characters; of titles that are made from a message.
const SHORT_TITLE: usize = 60;

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    User,
    Assistant,
    Tool,
}

/// A message. Its parent never changes: an edit or another answer is a sibling.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Message {
    pub id: String,
    /// `None`: it begins the conversation.
    pub parent: Option<String>,
    pub role: Role,
    pub text: String,
    /// In milliseconds since the Unix epoch.
    pub created: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    /// Of an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// In OpenAI's format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Value>,
    /// Fields of other programs, kept as they are.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Conversation {
    pub id: String,
    pub title: String,
    /// In milliseconds since the Unix epoch.
    pub created: i64,
    pub updated: i64,
    /// The message at the end of the selected branch.
    pub leaf: Option<String>,
    /// In the order in which they were stored.
    #[serde(with = "by_id")]
    pub messages: Vec<Message>,
    /// Of the program that made it; `system` is the system message.
    #[serde(default)]
    pub settings: Map<String, Value>,
}

/// A new conversation, or changes of one: what is `None` stays.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
pub struct Update {
    pub title: Option<String>,
    pub created: Option<i64>,
    pub updated: Option<i64>,
    pub leaf: Option<String>,
    /// Added, or replaced by their id; others stay.
    #[serde(with = "by_id")]
    pub messages: Vec<Message>,
    pub settings: Option<Map<String, Value>>,
}

/// A conversation in a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub id: String,
    pub title: String,
    pub created: i64,
    pub updated: i64,
    /// Number of messages in all branches.
    pub messages: u64,
    /// Of the last answer.
    pub model: Option<String>,
    /// Name of the API key; empty: none.
    #[serde(skip)]
    pub owner: String,
    /// The text around a match of a search.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snippet: Option<String>,
}

impl Conversation {
    /// Messages from the first to the selected one.
    pub fn branch(&self) -> Vec<&Message> {
        let find = |id: &str| self.messages.iter().find(|message| message.id == id);
        let mut path: Vec<&Message> = vec![];
        let mut next = self.leaf.as_deref();
        // A conversation that was not read from a store may have a circle.
        while let Some(message) = next.and_then(find).filter(|_| path.len() < self.messages.len()) {
            path.push(message);
            next = message.parent.as_deref();
        }
        path.reverse();
        path
    }

    /// The system message, if it has one.
    pub fn system(&self) -> Option<&str> {
        let system = self.settings.get("system")?.as_str()?.trim();
        (!system.is_empty()).then_some(system)
    }
}

impl From<Conversation> for Update {
    fn from(conversation: Conversation) -> Update {
        let Conversation { title, created, updated, leaf, messages, settings, .. } = conversation;
        Update {
            title: Some(title),
            created: Some(created),
            updated: Some(updated),
            leaf,
            messages,
            settings: Some(settings),
        }
    }
}

impl Update {
    /// Checks what can be checked without the stored conversation.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if let Some(title) = &self.title {
            check_title(title)?;
        }
        for message in &self.messages {
            check_id(&format!("messages.{}", message.id), &message.id)?;
        }
        Ok(())
    }
}

/// Ids go into addresses and file names.
pub(crate) fn check_id(field: &str, id: &str) -> Result<(), StoreError> {
    let is_plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    match is_plain && (1..=LONGEST_ID).contains(&id.len()) {
        true => Ok(()),
        false => {
            let problem = format!("an id has 1 to {LONGEST_ID} letters, digits, `-` or `_`");
            Err(StoreError::invalid(field, problem))
        }
    }
}

pub(crate) fn check_title(title: &str) -> Result<(), StoreError> {
    match (1..=LONGEST_TITLE).contains(&title.chars().count()) && !title.trim().is_empty() {
        true => Ok(()),
        false => Err(StoreError::invalid("title", format!("a title has 1 to {LONGEST_TITLE} characters"))),
    }
}

/// The title of a conversation that begins with this message: the start of its first line.
pub fn title_of(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default().trim();
    match line.char_indices().nth(SHORT_TITLE) {
        _ if line.is_empty() => "New conversation".into(),
        None => line.into(),
        Some(_) => line.chars().take(SHORT_TITLE - 1).chain(['…']).collect(),
    }
}

/// Messages as an object by their ids.
mod by_id {
    use std::fmt;

    use serde::{
        Deserializer, Serializer,
        de::{Error, MapAccess, Visitor},
    };

    use super::Message;

    pub(super) fn serialize<S: Serializer>(messages: &[Message], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(messages.iter().map(|message| (&message.id, message)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Message>, D::Error> {
        deserializer.deserialize_option(Messages)
    }

    struct Messages;

    impl<'de> Visitor<'de> for Messages {
        type Value = Vec<Message>;

        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str("an object of messages by their ids")
        }

        // A field that is null counts as left out.
        fn visit_none<E: Error>(self) -> Result<Vec<Message>, E> {
            Ok(vec![])
        }

        fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Message>, D::Error> {
            deserializer.deserialize_map(self)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<Message>, A::Error> {
            let mut messages = vec![];
            while let Some((id, message)) = map.next_entry::<String, Message>()? {
                if message.id != id {
                    return Err(A::Error::custom(format_args!(
                        "the message of `{id}` has the id `{}`",
                        message.id
                    )));
                }
                messages.push(message);
            }
            Ok(messages)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn title_is_the_start_of_the_first_line() {
        for (text, expected) in [
            ("  \n", "New conversation"),
            ("\n Why? \nBecause.", "Why?"),
            (&"ä".repeat(60), &*"ä".repeat(60)),
            (&"ä".repeat(61), &*("ä".repeat(59) + "…")),
        ] {
            assert_eq!(title_of(text), expected);
        }
    }

    #[test]
    fn conversation_keeps_fields_of_other_programs() {
        let value = json!({
            "id": "c", "title": "t", "created": 1, "updated": 2, "leaf": "b",
            "messages": {
                "a": { "id": "a", "parent": null, "role": "user", "text": "hi", "created": 1 },
                "b": { "id": "b", "parent": "a", "role": "assistant", "text": "ho", "created": 2,
                       "toolCalls": [{ "id": "x" }], "isJson": true, "timings": { "prompt_ms": 1.5 } },
            },
            "settings": { "system": " Be terse. ", "n": 1 },
        });
        let conversation: Conversation = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(conversation.messages[1].other.len(), 2);
        assert_eq!(conversation.branch().iter().map(|message| &*message.id).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(conversation.system(), Some("Be terse."));
        assert_eq!(serde_json::to_value(&conversation).unwrap(), value);
        let update: Update = serde_json::from_value(json!({ "title": null, "messages": null })).unwrap();
        assert_eq!(update, Update::default());
        let mut renamed = value;
        renamed["messages"]["a"]["id"] = "z".into();
        let error = serde_json::from_value::<Conversation>(renamed).unwrap_err().to_string();
        assert!(error.contains("the message of `a` has the id `z`"), "{error}");
    }
}

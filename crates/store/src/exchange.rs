//! Conversations as files: JSON that this program and its web page can import again, and Markdown
//! for people.

use std::fmt::Write;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Conversation, Role, StoreError, pictures};

const FORMAT: &str = "lanner-conversations";
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Export<'a> {
    format: &'static str,
    version: u32,
    conversations: &'a [Conversation],
}

#[derive(Deserialize)]
struct Import {
    format: String,
    version: u32,
    conversations: Vec<Value>,
}

/// The file of conversations.
///
/// # Errors
/// None: conversations are JSON.
pub fn to_json(conversations: &[Conversation]) -> Result<String, StoreError> {
    let export = Export { format: FORMAT, version: VERSION, conversations };
    serde_json::to_string_pretty(&export)
        .map_err(|error| StoreError::invalid("conversations", error.to_string()))
}

/// The conversations of a file.
///
/// # Errors
/// It is no such file; names the conversation.
pub fn from_json(text: &str) -> Result<Vec<Conversation>, StoreError> {
    let not_ours = |problem: String| {
        StoreError::invalid("file", format!("it has no conversations that Lanner exported: {problem}"))
    };
    let import: Import = serde_json::from_str(text).map_err(|error| not_ours(error.to_string()))?;
    if import.format != FORMAT {
        return Err(not_ours(format!("its format is `{}`, not `{FORMAT}`", import.format)));
    }
    if import.version != VERSION {
        return Err(not_ours(format!("version {} is newer than this program", import.version)));
    }
    let conversation = |(at, value): (usize, Value)| {
        let parsed = serde_json::from_value(value);
        parsed.map_err(|error| StoreError::invalid(format!("conversations[{at}]"), error.to_string()))
    };
    import.conversations.into_iter().enumerate().map(conversation).collect()
}

/// The selected branch for people.
pub fn to_markdown(conversation: &Conversation) -> String {
    let mut text = format!("# {}\n", conversation.title);
    // Writing to a string does not fail.
    let mut part = |title: &str, body: &str| {
        let _ = write!(text, "\n## {title}\n\n{body}\n");
    };
    if let Some(system) = conversation.system() {
        part("System prompt", system);
    }
    for message in conversation.branch() {
        let speaker = match message.role {
            Role::User => "You",
            Role::Assistant => "Model",
            Role::Tool => "Tool",
        };
        let calls = message.tool_calls.as_ref().and_then(Value::as_array).into_iter().flatten();
        let calls = calls.map(|call| format!("```json\n{}\n```", call["function"]));
        let pictures = Some(pictures::count(&message.other)).filter(|count| *count > 0);
        let pictures = pictures.map(|count| format!("(pictures: {count})"));
        let text = Some(message.text.trim().to_owned()).filter(|text| !text.is_empty());
        part(speaker, &pictures.into_iter().chain(text).chain(calls).collect::<Vec<_>>().join("\n\n"));
    }
    text
}

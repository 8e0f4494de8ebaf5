//! System prompts and messages of a request, as the messages that a chat template gets.

use std::{borrow::Cow, collections::HashMap};

use chat::volatile_lines;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::thinking::signed_text;
use crate::{
    image::Images,
    server::{
        images::{append_image, append_text, not_read},
        openai::error::ApiError,
        schema::AnyObject,
    },
};

/// The tag that agents put around system messages inside users' turns.
const REMINDER: &str = "<system-reminder>";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a string or an array of text blocks")]
pub(super) enum SystemField {
    Text(String),
    Blocks(#[schemars(with = "Vec<AnyObject>")] Vec<Value>),
}

impl SystemField {
    fn texts(&self) -> Result<Vec<String>, ApiError> {
        match self {
            SystemField::Text(text) => Ok(vec![text.clone()]),
            SystemField::Blocks(blocks) => texts("system", blocks),
        }
    }

    pub(super) fn blocks(&self) -> &[Value] {
        match self {
            SystemField::Text(_) => &[],
            SystemField::Blocks(blocks) => blocks,
        }
    }
}

/// The messages for a template, and their images. System messages at the start belong to the system
/// prompt; later ones become reminders in the turn before them, because most templates accept none
/// there and moving them to the start would change the prefix. Messages of the user that follow
/// each other are one turn.
///
/// # Errors
/// 400 that names the block: it lacks a field, is neither text nor an image, or is an image that
/// cannot be used.
pub(super) fn chat_messages(
    system: Option<&SystemField>,
    messages: &[Value],
) -> Result<(Vec<Value>, Images), ApiError> {
    let mut head = system.map(SystemField::texts).transpose()?.unwrap_or_default();
    let mut turns = Turns::default();
    for (index, message) in messages.iter().enumerate() {
        let content = Content { at: format!("messages[{index}].content"), value: &message["content"] };
        match message["role"].as_str() {
            Some("system") if turns.messages.is_empty() => head.extend(content.texts()?),
            Some("system") => turns.remind(&content.texts()?.join("\n")),
            Some("user") => turns.user(&content)?,
            Some("assistant") => turns.assistant(&content)?,
            _ => return Err(wrong(&format!("messages[{index}].role"), "must be user, assistant or system")),
        }
    }
    // A billing line names the client's version and request; it means nothing to the model.
    let head = head.iter().map(|text| volatile_lines::without_billing(text));
    let head: Vec<&str> = head.filter(|text| !text.is_empty()).collect();
    let system = (!head.is_empty()).then(|| json!({ "role": "system", "content": head.join("\n") }));
    Ok((system.into_iter().chain(turns.messages).collect(), turns.images))
}

/// Content of a message or of a tool's result, and where it is.
struct Content<'a> {
    at: String,
    value: &'a Value,
}

impl<'a> Content<'a> {
    /// Its blocks, each with its place; a string is a block of text.
    fn blocks(&self) -> Result<Vec<(String, Cow<'a, Value>)>, ApiError> {
        match self.value {
            Value::String(text) => {
                Ok(vec![(self.at.clone(), Cow::Owned(json!({ "type": "text", "text": text })))])
            }
            Value::Array(blocks) => {
                let place = |(index, block)| (format!("{}[{index}]", self.at), Cow::Borrowed(block));
                Ok(blocks.iter().enumerate().map(place).collect())
            }
            _ => Err(wrong(&self.at, "must be a string or an array of blocks")),
        }
    }

    fn texts(&self) -> Result<Vec<String>, ApiError> {
        self.blocks()?.iter().map(|(at, block)| Ok(text(at, block)?.to_owned())).collect()
    }
}

#[derive(Default)]
struct Turns {
    messages: Vec<Value>,
    images: Images,
    /// Names of the tools that were called, by the ids of the calls.
    called: HashMap<String, String>,
}

impl Turns {
    fn user(&mut self, content: &Content) -> Result<(), ApiError> {
        for (at, block) in content.blocks()? {
            match block["type"].as_str() {
                Some("tool_result") => self.tool_result(&at, &block)?,
                Some("image") => {
                    let part = self.image(&at, &block)?;
                    append_image(self.content("user"), part);
                }
                _ => {
                    let text = text(&at, &block)?;
                    // A user's turn after the results would end the model's own.
                    let role = if text.starts_with(REMINDER) { self.reminded_role() } else { "user" };
                    self.append(role, text);
                }
            }
        }
        Ok(())
    }

    fn tool_result(&mut self, at: &str, block: &Value) -> Result<(), ApiError> {
        let id = string(at, block, "tool_use_id")?;
        let content = self.result(at, block)?;
        let mut message = json!({ "role": "tool", "tool_call_id": id, "content": content });
        if let Some(name) = self.called.get(id) {
            message["name"] = name.clone().into();
        }
        self.messages.push(message);
        Ok(())
    }

    /// The content of a tool's result.
    fn result(&mut self, at: &str, block: &Value) -> Result<Value, ApiError> {
        let value = &block["content"];
        let blocks = match value {
            Value::Null => vec![],
            value => Content { at: format!("{at}.content"), value }.blocks()?,
        };
        let mut content = json!("");
        for (at, part) in &blocks {
            match part["type"].as_str() {
                Some("image") => append_image(&mut content, self.image(at, part)?),
                _ => append_text(&mut content, text(at, part)?),
            }
        }
        if block["is_error"] == true {
            content = match content {
                Value::String(text) => format!("Error: {text}").into(),
                Value::Array(parts) => {
                    [json!({ "type": "text", "text": "Error:" })].into_iter().chain(parts).collect()
                }
                other => other,
            };
        }
        Ok(content)
    }

    /// The part that refers to an image.
    fn image(&mut self, at: &str, block: &Value) -> Result<Value, ApiError> {
        match self.images.add_part(block, at) {
            Some(part) => Ok(part?),
            None => Err(wrong(at, "must be an image")),
        }
    }

    fn assistant(&mut self, content: &Content) -> Result<(), ApiError> {
        let (mut text_so_far, mut reasoning, mut calls) = (String::new(), String::new(), vec![]);
        for (at, block) in content.blocks()? {
            match block["type"].as_str() {
                Some("thinking") => match string(&at, &block, "thinking")? {
                    "" => reasoning += &signed_text(block["signature"].as_str().unwrap_or_default()),
                    thinking => reasoning += thinking,
                },
                // Another server wrote it, for itself.
                Some("redacted_thinking") => {}
                Some("tool_use") => calls.push(self.tool_use(&at, &block)?),
                _ => text_so_far += text(&at, &block)?,
            }
        }
        let mut message = json!({ "role": "assistant", "content": text_so_far });
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.into();
        }
        if !calls.is_empty() {
            message["content"] = Some(text_so_far).filter(|text| !text.is_empty()).into();
            message["tool_calls"] = calls.into();
        }
        self.messages.push(message);
        Ok(())
    }

    fn tool_use(&mut self, at: &str, block: &Value) -> Result<Value, ApiError> {
        let (id, name) = (string(at, block, "id")?, string(at, block, "name")?);
        if !block["input"].is_object() {
            return Err(wrong(&format!("{at}.input"), "must be an object"));
        }
        self.called.insert(id.to_owned(), name.to_owned());
        let function = json!({ "name": name, "arguments": block["input"] });
        Ok(json!({ "id": id, "type": "function", "function": function }))
    }

    fn remind(&mut self, text: &str) {
        let role = self.reminded_role();
        self.append(role, &format!("{REMINDER}\n{text}\n</system-reminder>"));
    }

    /// The role whose turn takes a reminder.
    fn reminded_role(&self) -> &'static str {
        if self.messages.last().is_some_and(|last| last["role"] == "tool") { "tool" } else { "user" }
    }

    /// Appends to the last message if it has this role.
    fn append(&mut self, role: &str, text: &str) {
        append_text(self.content(role), text);
    }

    /// The content of the last message if it has this role, else of a new one.
    fn content(&mut self, role: &str) -> &mut Value {
        if self.messages.last().is_none_or(|last| last["role"] != role) {
            self.messages.push(json!({ "role": role, "content": "" }));
        }
        let last = self.messages.len() - 1;
        &mut self.messages[last]["content"]
    }
}

fn texts(at: &str, blocks: &[Value]) -> Result<Vec<String>, ApiError> {
    let text = |(index, block)| Ok(text(&format!("{at}[{index}]"), block)?.to_owned());
    blocks.iter().enumerate().map(text).collect()
}

fn text<'a>(at: &str, block: &'a Value) -> Result<&'a str, ApiError> {
    match block["type"].as_str() {
        Some("text") => string(at, block, "text"),
        Some(kind) => Err(not_read(at, kind)),
        None => Err(wrong(&format!("{at}.type"), "must be a string")),
    }
}

fn string<'a>(at: &str, block: &'a Value, field: &str) -> Result<&'a str, ApiError> {
    block[field].as_str().ok_or_else(|| wrong(&format!("{at}.{field}"), "must be a string"))
}

fn wrong(param: &str, message: &str) -> ApiError {
    ApiError::invalid(param, format!("{param} {message}"))
}

#[cfg(test)]
mod tests {
    use super::{super::thinking::Thinking, *};

    fn check(system: Value, messages: Value, expected: Value) {
        let system: Option<SystemField> = serde_json::from_value(system).unwrap();
        let (found, _) = chat_messages(system.as_ref(), messages.as_array().unwrap()).unwrap();
        assert_eq!(Value::from(found), expected);
    }

    #[test]
    fn system_blocks_and_leading_system_messages_are_one_message() {
        let billing = "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;";
        check(
            json!([
                { "type": "text", "text": billing },
                { "type": "text", "text": format!("{billing}\nBe brief."), "cache_control": { "type": "ephemeral" } },
                { "type": "text", "text": "No jokes." },
            ]),
            json!([{ "role": "system", "content": "Be kind." }, { "role": "user", "content": "hi" }]),
            json!([
                { "role": "system", "content": "Be brief.\nNo jokes.\nBe kind." },
                { "role": "user", "content": "hi" },
            ]),
        );
        check(
            json!(""),
            json!([{ "role": "user", "content": "" }]),
            json!([{ "role": "user", "content": "" }]),
        );
    }

    #[test]
    fn turns_become_messages_of_chat_completions() {
        let omitted = Thinking { enabled: None, budget: None, omitted: true }.signature("mm");
        check(
            json!(null),
            json!([
                { "role": "user", "content": "a" },
                { "role": "user", "content": [{ "type": "text", "text": "b" }] },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "h", "signature": "s" },
                    { "type": "thinking", "thinking": "", "signature": omitted },
                    { "type": "redacted_thinking", "data": "x" },
                    { "type": "text", "text": "Wait." },
                    { "type": "tool_use", "id": "t1", "name": "f", "input": { "z": 1, "a": 2 } },
                    { "type": "tool_use", "id": "t2", "name": "g", "input": {} },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "t1", "content": "1" },
                    { "type": "tool_result", "tool_use_id": "t2", "is_error": true,
                      "content": [{ "type": "text", "text": "2" }, { "type": "text", "text": "3" }] },
                    { "type": "text", "text": "<system-reminder>r</system-reminder>" },
                    { "type": "text", "text": "c" },
                ] },
                { "role": "system", "content": "s" },
            ]),
            json!([
                { "role": "user", "content": "a\nb" },
                { "role": "assistant", "content": "Wait.", "reasoning_content": "hmm", "tool_calls": [
                    { "id": "t1", "type": "function", "function": { "name": "f", "arguments": { "z": 1, "a": 2 } } },
                    { "id": "t2", "type": "function", "function": { "name": "g", "arguments": {} } },
                ] },
                { "role": "tool", "tool_call_id": "t1", "content": "1", "name": "f" },
                { "role": "tool", "tool_call_id": "t2", "name": "g",
                  "content": "Error: 2\n3\n<system-reminder>r</system-reminder>" },
                { "role": "user", "content": "c\n<system-reminder>\ns\n</system-reminder>" },
            ]),
        );
    }

    #[test]
    fn images_keep_their_places() {
        let data = crate::image::tests::PNG;
        let image = json!({
            "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": data },
            "cache_control": { "type": "ephemeral" },
        });
        let text = |text: &str| json!({ "type": "text", "text": text });
        let part = |index: usize| json!({ "type": "image", "index": index });
        check(
            json!(null),
            json!([
                { "role": "user", "content": [text("a"), image, text("b"), image] },
                { "role": "assistant", "content": [
                    { "type": "tool_use", "id": "t", "name": "Read", "input": { "file_path": "a.png" } },
                ] },
                { "role": "user", "content": [
                    { "type": "tool_result", "tool_use_id": "t", "content": [image] },
                    text("<system-reminder>r</system-reminder>"),
                    text("c"),
                    image,
                ] },
            ]),
            json!([
                { "role": "user", "content": [text("a"), part(0), text("b"), part(1)] },
                { "role": "assistant", "content": null, "tool_calls": [
                    { "id": "t", "type": "function",
                      "function": { "name": "Read", "arguments": { "file_path": "a.png" } } },
                ] },
                { "role": "tool", "tool_call_id": "t", "name": "Read",
                  "content": [part(2), text("<system-reminder>r</system-reminder>")] },
                { "role": "user", "content": [text("c"), part(3)] },
            ]),
        );
    }

    #[test]
    fn image_outside_of_a_users_turn_is_told_where_it_belongs() {
        let image = json!([{ "type": "image", "source": { "type": "base64", "data": "" } }]);
        let system: Option<SystemField> = serde_json::from_value(image.clone()).unwrap();
        let user = [json!({ "role": "user", "content": "x" })];
        let assistant = [json!({ "role": "assistant", "content": image })];
        for (at, found) in [
            ("system[0]", chat_messages(system.as_ref(), &user)),
            ("messages[0].content[0]", chat_messages(None, &assistant)),
        ] {
            let message = found.unwrap_err().body.message;
            let words = "is an image; images belong in turns of the user and in results of tools";
            assert_eq!(message, format!("{at} {words}"));
        }
    }

    #[test]
    fn bad_block_is_named() {
        let image = |source: Value| json!({ "type": "image", "source": source });
        let file = || image(json!({ "type": "file", "file_id": "f" }));
        let svg = || image(json!({ "type": "base64", "media_type": "image/png", "data": "PHN2Zz4=" }));
        let result =
            |content: Value| json!({ "type": "tool_result", "tool_use_id": "t", "content": content });
        for (role, content, param) in [
            ("owl", json!("x"), "messages[0].role"),
            ("user", json!(null), "messages[0].content"),
            ("user", json!([7]), "messages[0].content[0].type"),
            ("user", json!([{ "type": "text" }]), "messages[0].content[0].text"),
            ("user", json!([file()]), "messages[0].content[0].source.type"),
            ("user", json!([svg()]), "messages[0].content[0].source.data"),
            ("user", json!([image(json!(null))]), "messages[0].content[0].source.type"),
            ("assistant", json!([svg()]), "messages[0].content[0].type"),
            ("user", json!([{ "type": "document" }]), "messages[0].content[0].type"),
            ("user", json!([result(json!([file()]))]), "messages[0].content[0].content[0].source.type"),
            (
                "user",
                json!([result(json!([{ "type": "document" }]))]),
                "messages[0].content[0].content[0].type",
            ),
            ("user", json!([result(json!(7))]), "messages[0].content[0].content"),
            ("user", json!([{ "type": "tool_result" }]), "messages[0].content[0].tool_use_id"),
            ("assistant", json!([{ "type": "server_tool_use" }]), "messages[0].content[0].type"),
            ("assistant", json!([{ "type": "thinking" }]), "messages[0].content[0].thinking"),
            (
                "assistant",
                json!([{ "type": "tool_use", "id": "t", "name": "f" }]),
                "messages[0].content[0].input",
            ),
        ] {
            let error = chat_messages(None, &[json!({ "role": role, "content": content })]).unwrap_err();
            assert_eq!(error.body.param.as_deref(), Some(param), "{content}");
            assert!(error.body.message.contains("messages[0]"), "{}", error.body.message);
        }
    }
}

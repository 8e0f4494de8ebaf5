//! Input items, and the messages that a chat template gets for them.

use base64::{Engine, prelude::BASE64_STANDARD};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    item_fields::keep_known,
    mcp_approvals::{Approvals, called_name},
};
use crate::{
    image::Images,
    mcp_tools::{ToolCall, ToolOutput, tool_message},
    sampling,
    server::{
        images::{append_image, append_text, not_read},
        openai::{custom_tools::function_call, error::ApiError},
        schema::AnyObject,
    },
};

/// Marks reasoning that this server encoded.
const ENCODED: &str = "lanner1:";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "a string or an array of items")]
pub(super) enum InputField {
    Text(String),
    Items(#[schemars(with = "Vec<AnyObject>", length(min = 1))] Vec<Value>),
}

impl InputField {
    /// The items, each with a type and an id, without unknown fields.
    ///
    /// # Errors
    /// 400: one of them is not an object.
    pub(super) fn items(self) -> Result<Vec<Value>, ApiError> {
        let items = match self {
            InputField::Text(text) => vec![json!({ "role": "user", "content": text })],
            InputField::Items(items) => items,
        };
        items.into_iter().enumerate().map(|(index, item)| identified(index, item)).collect()
    }
}

fn identified(index: usize, mut item: Value) -> Result<Value, ApiError> {
    let Some(fields) = item.as_object_mut() else { return Err(wrong(index, "", "must be an object")) };
    if !fields.contains_key("type") && fields.contains_key("role") {
        fields.insert("type".into(), "message".into());
    }
    keep_known(fields);
    if fields.get("type") == Some(&"message".into()) {
        fields.entry("status").or_insert("completed".into());
        if let Some(Value::String(text)) = fields.get("content") {
            let kind = if fields["role"] == "assistant" { "output_text" } else { "input_text" };
            let part = json!([{ "type": kind, "text": text }]);
            fields.insert("content".into(), part);
        }
    }
    if !fields.get("id").is_some_and(Value::is_string) {
        let prefix = match fields.get("type").and_then(Value::as_str) {
            Some("message") => "msg",
            Some("reasoning") => "rs",
            Some("function_call") => "fc",
            Some("function_call_output") => "fco",
            Some("mcp_approval_response") => "mcpa",
            _ => "item",
        };
        fields.insert("id".into(), format!("{prefix}_{:016x}", sampling::random()).into());
    }
    Ok(item)
}

/// The messages of this turn's items and those before them, with their images. Reasoning, text and
/// calls that follow each other are one turn of the assistant, as the model wrote them;
/// instructions and system messages at the start are one system message, because many templates
/// accept no second one.
///
/// # Errors
/// 400 that names the item: it has no such type, lacks a field, or has an image that cannot be
/// used.
pub(super) fn messages(
    instructions: Option<&str>,
    history: &[Value],
    items: &[Value],
) -> Result<(Vec<Value>, Images), ApiError> {
    let approvals = Approvals::new(history.iter().chain(items));
    let mut turns = Turns { approvals, messages: vec![], images: Images::default(), assistant: None };
    turns.messages.extend(instructions.map(|text| json!({ "role": "system", "content": text })));
    for (index, item) in history.iter().chain(items).enumerate() {
        // Items of the history have been checked.
        turns.push(index.saturating_sub(history.len()), item)?;
    }
    turns.flush();
    Ok((merge_system(turns.messages), turns.images))
}

struct Turns<'a> {
    /// Approvals of MCP tool calls.
    approvals: Approvals<'a>,
    messages: Vec<Value>,
    images: Images,
    assistant: Option<AssistantTurn>,
}

/// A turn of the assistant that may go on.
#[derive(Default)]
struct AssistantTurn {
    reasoning: String,
    content: Value,
    calls: Vec<Value>,
}

impl Turns<'_> {
    fn push(&mut self, index: usize, item: &Value) -> Result<(), ApiError> {
        let field = |name: &str| {
            item[name].as_str().ok_or_else(|| wrong(index, &format!(".{name}"), "must be a string"))
        };
        match field("type")? {
            "message" => self.message(index, item),
            "reasoning" => {
                self.next_turn(|turn| turn.content.is_null() && turn.calls.is_empty());
                self.assistant.get_or_insert_default().reasoning.push_str(&reasoning(item));
                Ok(())
            }
            "function_call" => {
                let function = json!({ "name": field("name")?, "arguments": field("arguments")? });
                self.call(field("call_id")?, function);
                Ok(())
            }
            "custom_tool_call" => {
                let function = function_call(field("name")?, field("input")?);
                self.call(field("call_id")?, function);
                Ok(())
            }
            "function_call_output" | "custom_tool_call_output" => {
                let output = self.content(index, "output", &item["output"])?;
                self.flush();
                let id = field("call_id")?;
                self.messages.push(json!({ "role": "tool", "tool_call_id": id, "content": output }));
                Ok(())
            }
            "mcp_call" => {
                let output = match (item["output"].as_str(), item["error"].as_str()) {
                    (Some(output), _) => Ok(output.to_owned()),
                    (None, error) => Err(error.unwrap_or("the call was cancelled").to_owned()),
                };
                self.mcp_call(
                    field("id")?,
                    field("server_label")?,
                    [field("name")?, field("arguments")?],
                    &output,
                );
                Ok(())
            }
            "mcp_approval_request" => {
                let (id, label) = (field("id")?, field("server_label")?);
                if !self.approvals.is_made(id) {
                    let result = Ok(self.approvals.result(id));
                    self.mcp_call(id, label, [field("name")?, field("arguments")?], &result);
                }
                Ok(())
            }
            "mcp_approval_response" => {
                field("approval_request_id")?;
                let is_answer = item["approve"].is_boolean();
                is_answer.then_some(()).ok_or_else(|| wrong(index, ".approve", "must be true or false"))
            }
            "mcp_list_tools" => Ok(()),
            kind => Err(wrong(index, ".type", &format!("is `{kind}`, which is not supported"))),
        }
    }

    fn message(&mut self, index: usize, item: &Value) -> Result<(), ApiError> {
        let content = self.content(index, "content", &item["content"])?;
        match item["role"].as_str() {
            Some("assistant") => {
                self.next_turn(|turn| turn.content.is_null() && turn.calls.is_empty());
                self.assistant.get_or_insert_default().content = content;
                Ok(())
            }
            Some(role @ ("user" | "system" | "developer")) => {
                self.flush();
                self.messages.push(json!({ "role": role, "content": content }));
                Ok(())
            }
            _ => Err(wrong(index, ".role", "must be user, assistant, system or developer")),
        }
    }

    /// The text and images of a message or a tool's output.
    fn content(&mut self, index: usize, field: &str, content: &Value) -> Result<Value, ApiError> {
        let parts = match content {
            Value::String(_) => return Ok(content.clone()),
            Value::Array(parts) => parts,
            _ => return Err(wrong(index, &format!(".{field}"), "must be a string or an array of parts")),
        };
        let mut joined = json!("");
        for (at, part) in parts.iter().enumerate() {
            let place = format!("input[{index}].{field}[{at}]");
            let key = if part["type"] == "refusal" { "refusal" } else { "text" };
            match (part["type"].as_str(), part[key].as_str()) {
                (Some("input_text" | "output_text" | "text" | "refusal"), Some(text)) => {
                    append_text(&mut joined, text);
                }
                (Some("input_image"), _) => {
                    let image = self.images.add_part(part, &place);
                    append_image(&mut joined, image.unwrap_or_else(|| Ok(Value::Null))?);
                }
                (Some(kind @ ("input_file" | "input_audio" | "input_video")), _) => {
                    return Err(not_read(&place, kind));
                }
                _ => {
                    return Err(wrong(
                        index,
                        &format!(".{field}[{at}]"),
                        "must be a part of text or an image",
                    ));
                }
            }
        }
        Ok(joined)
    }

    /// A call of an MCP tool, and its result.
    fn mcp_call(&mut self, id: &str, label: &str, [name, arguments]: [&str; 2], output: &ToolOutput) {
        let name = called_name(label, name);
        self.call(id, json!({ "name": name, "arguments": arguments }));
        self.flush();
        let call = ToolCall { id: id.to_owned(), name, arguments: String::new() };
        self.messages.push(tool_message(&call, output));
    }

    fn call(&mut self, id: &str, function: Value) {
        let call = json!({ "id": id, "type": "function", "function": function });
        self.assistant.get_or_insert_default().calls.push(call);
    }

    /// Ends the assistant's turn unless it `continues`.
    fn next_turn(&mut self, continues: impl Fn(&AssistantTurn) -> bool) {
        if !self.assistant.as_ref().is_some_and(continues) {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let Some(AssistantTurn { reasoning, content, calls }) = self.assistant.take() else { return };
        let mut message = json!({ "role": "assistant", "content": content });
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        self.messages.push(message);
    }
}

fn wrong(index: usize, field: &str, message: &str) -> ApiError {
    let param = format!("input[{index}]{field}");
    ApiError::invalid(param.clone(), format!("{param} {message}"))
}

fn merge_system(messages: Vec<Value>) -> Vec<Value> {
    let is_system = |message: &&Value| message["role"] == "system" || message["role"] == "developer";
    let leading = messages.iter().take_while(is_system).count();
    if leading < 2 {
        return messages;
    }
    let texts: Vec<&str> = messages[..leading].iter().filter_map(|m| m["content"].as_str()).collect();
    let merged = json!({ "role": "system", "content": texts.join("\n\n") });
    std::iter::once(merged).chain(messages[leading..].iter().cloned()).collect()
}

/// The text of a reasoning item: its own, or encoded by this server, or its summary.
fn reasoning(item: &Value) -> String {
    let texts = |list: &Value| -> String {
        let texts = list.as_array().into_iter().flatten().filter_map(|part| part["text"].as_str());
        texts.collect::<Vec<_>>().join("\n")
    };
    let own = texts(&item["content"]);
    if !own.is_empty() {
        return own;
    }
    let encoded = item["encrypted_content"].as_str().and_then(decode_reasoning);
    encoded.unwrap_or_else(|| texts(&item["summary"]))
}

/// Reasoning for clients that send it back unread. Not a secret: the client may read it too.
pub fn encode_reasoning(text: &str) -> String {
    BASE64_STANDARD.encode(format!("{ENCODED}{text}"))
}

/// `None` if another server encoded it.
pub fn decode_reasoning(encoded: &str) -> Option<String> {
    let text = String::from_utf8(BASE64_STANDARD.decode(encoded).ok()?).ok()?;
    text.strip_prefix(ENCODED).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(instructions: Option<&str>, input: Value, expected: Value) {
        let field: InputField = serde_json::from_value(input).unwrap();
        let (found, _) = messages(instructions, &[], &field.items().unwrap()).unwrap();
        assert_eq!(Value::from(found), expected);
    }

    #[test]
    fn items_of_one_assistant_turn_become_one_message() {
        check(
            None,
            json!([
                { "role": "user", "content": [{ "type": "input_text", "text": "hi" }] },
                { "type": "reasoning", "id": "rs", "summary": [], "encrypted_content": encode_reasoning("hm") },
                { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "Wait." }] },
                { "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}" },
                { "type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "a\n" },
                { "type": "function_call_output", "call_id": "c1", "output": "1" },
                { "type": "custom_tool_call_output", "call_id": "c2",
                  "output": [{ "type": "input_text", "text": "2" }] },
                { "type": "reasoning", "summary": [{ "type": "summary_text", "text": "so" }] },
                { "type": "message", "role": "assistant", "content": "Done." },
                { "type": "message", "role": "assistant", "content": "Really." },
            ]),
            json!([
                { "role": "user", "content": "hi" },
                { "role": "assistant", "content": "Wait.", "reasoning_content": "hm", "tool_calls": [
                    { "id": "c1", "type": "function", "function": { "name": "f", "arguments": "{}" } },
                    { "id": "c2", "type": "function",
                      "function": { "name": "patch", "arguments": "{\"input\":\"a\\n\"}" } },
                ] },
                { "role": "tool", "tool_call_id": "c1", "content": "1" },
                { "role": "tool", "tool_call_id": "c2", "content": "2" },
                { "role": "assistant", "content": "Done.", "reasoning_content": "so" },
                { "role": "assistant", "content": "Really." },
            ]),
        );
    }

    #[test]
    fn instructions_and_leading_system_messages_are_one_message() {
        check(
            Some("Be brief."),
            json!([
                { "role": "developer", "content": "No jokes." },
                { "role": "user", "content": "hi" },
                { "role": "system", "content": "Later." },
            ]),
            json!([
                { "role": "system", "content": "Be brief.\n\nNo jokes." },
                { "role": "user", "content": "hi" },
                { "role": "system", "content": "Later." },
            ]),
        );
        check(None, json!("hi"), json!([{ "role": "user", "content": "hi" }]));
    }

    #[test]
    fn images_keep_their_places() {
        let data = crate::image::tests::PNG;
        let image = json!({ "type": "input_image", "image_url": format!("data:image/png;base64,{data}") });
        let text = |text: &str| json!({ "type": "input_text", "text": text });
        let part = |index: usize| json!({ "type": "image", "index": index });
        check(
            None,
            json!([
                { "role": "user", "content": [text("a"), image, text("b")] },
                { "type": "function_call", "call_id": "c1", "name": "view_image", "arguments": "{}" },
                { "type": "function_call_output", "call_id": "c1", "output": [image] },
            ]),
            json!([
                { "role": "user", "content": [
                    { "type": "text", "text": "a" }, part(0), { "type": "text", "text": "b" },
                ] },
                { "role": "assistant", "content": null, "tool_calls": [
                    { "id": "c1", "type": "function",
                      "function": { "name": "view_image", "arguments": "{}" } },
                ] },
                { "role": "tool", "tool_call_id": "c1", "content": [part(1)] },
            ]),
        );
    }

    #[test]
    fn bad_item_is_named() {
        for (item, param) in [
            (json!(7), "input[0]"),
            (json!({ "content": "x" }), "input[0].type"),
            (json!({ "role": "user" }), "input[0].content"),
            (json!({ "role": "owl", "content": "x" }), "input[0].role"),
            (
                json!({ "role": "user", "content": [{ "type": "input_image" }] }),
                "input[0].content[0].image_url",
            ),
            (json!({ "role": "user", "content": [{ "type": "input_file" }] }), "input[0].content[0].type"),
            (json!({ "role": "user", "content": [{ "type": "input_audio" }] }), "input[0].content[0].type"),
            (
                json!({ "role": "user", "content": [{ "type": "input_image", "file_id": "f" }] }),
                "input[0].content[0].file_id",
            ),
            (
                json!({ "type": "function_call_output", "call_id": "c",
                    "output": [{ "type": "input_image", "image_url": "data:;base64,PHN2Zz4=" }] }),
                "input[0].output[0].image_url",
            ),
            (json!({ "role": "user", "content": [{ "type": "input_text" }] }), "input[0].content[0]"),
            (json!({ "type": "function_call", "call_id": "c", "name": "f" }), "input[0].arguments"),
            (json!({ "type": "function_call_output", "output": "x" }), "input[0].call_id"),
            (json!({ "type": "computer_call" }), "input[0].type"),
        ] {
            let items = InputField::Items(vec![item.clone()]).items();
            let error = items.and_then(|items| messages(None, &[], &items)).unwrap_err();
            assert_eq!(error.body.param.as_deref(), Some(param), "{item}");
        }
    }

    #[test]
    fn reasoning_of_another_server_is_not_read() {
        assert_eq!(decode_reasoning(&encode_reasoning("é\n")).as_deref(), Some("é\n"));
        assert_eq!(decode_reasoning(&BASE64_STANDARD.encode("gAAAA")), None);
        assert_eq!(decode_reasoning("%"), None);
    }
}

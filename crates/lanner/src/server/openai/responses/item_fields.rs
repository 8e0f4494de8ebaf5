//! The fields of input items that this server reads. Others are dropped where the request enters,
//! because items are stored and sent back.

use serde_json::{Map, Value, json};

/// Drops what no part of the server reads: fields that the item's type does not have, unknown
/// states, and fields of parts besides their type, text and image.
pub(super) fn keep_known(fields: &mut Map<String, Value>) {
    let kind = fields.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let own: &[&str] = match kind.as_str() {
        "message" => &["role", "content"],
        "reasoning" => &["content", "summary", "encrypted_content"],
        "function_call" => &["call_id", "name", "arguments"],
        "custom_tool_call" => &["call_id", "name", "input"],
        "mcp_call" => &["approval_request_id", "server_label", "name", "arguments", "output", "error"],
        "mcp_approval_request" => &["server_label", "name", "arguments"],
        "mcp_approval_response" => &["approval_request_id", "approve", "reason"],
        // The tools themselves are listed anew for each response.
        "mcp_list_tools" => &["server_label", "error"],
        "function_call_output" | "custom_tool_call_output" => &["call_id", "output"],
        _ => &[],
    };
    fields.retain(|name, value| match name.as_str() {
        "type" | "id" => value.is_string(),
        "status" => ["completed", "incomplete", "in_progress", "failed"].iter().any(|known| value == known),
        name if !own.contains(&name) => false,
        "approve" => value.is_boolean(),
        "output" if kind == "mcp_call" => value.is_string(),
        "content" | "output" | "summary" => true,
        _ => value.is_string(),
    });
    for name in ["content", "output", "summary"] {
        let Some(Value::Array(parts)) = fields.get_mut(name) else { continue };
        if kind == "reasoning" {
            parts.retain(Value::is_object);
        }
        parts.iter_mut().filter_map(Value::as_object_mut).for_each(keep_known_of_part);
    }
    if kind == "reasoning" {
        fields.retain(|name, value| !matches!(name.as_str(), "content" | "summary") || value.is_array());
    }
}

fn keep_known_of_part(part: &mut Map<String, Value>) {
    let is_image = part.get("type").is_some_and(|kind| kind == "input_image");
    part.retain(|name, value| match name.as_str() {
        "type" | "text" | "refusal" => value.is_string(),
        "image_url" | "file_id" | "detail" => is_image && value.is_string(),
        _ => false,
    });
    if part.get("type").is_some_and(|kind| kind == "output_text") {
        // OpenAI's clients expect the field; this server's own are always empty.
        part.insert("annotations".into(), json!([]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(mut item: Value, expected: Value) {
        keep_known(item.as_object_mut().unwrap());
        assert_eq!(item, expected);
    }

    #[test]
    fn unknown_fields_of_items_are_dropped() {
        check(
            json!({ "type": "message", "id": "a", "role": "user", "junk": "x", "status": "y", "call_id": "c",
                "content": [{ "type": "input_text", "text": "hi", "junk": [1] }] }),
            json!({ "type": "message", "id": "a", "role": "user",
                "content": [{ "type": "input_text", "text": "hi" }] }),
        );
        check(
            json!({ "type": "message", "role": "assistant", "status": "incomplete",
                "content": [{ "type": "output_text", "text": "hi", "logprobs": [1], "annotations": [2] }] }),
            json!({ "type": "message", "role": "assistant", "status": "incomplete",
                "content": [{ "type": "output_text", "text": "hi", "annotations": [] }] }),
        );
        check(
            json!({ "type": "reasoning", "content": { "junk": 1 }, "encrypted_content": 7,
                "summary": [["junk"], { "type": "summary_text", "text": "so", "x": 1 }] }),
            json!({ "type": "reasoning", "summary": [{ "type": "summary_text", "text": "so" }] }),
        );
        check(
            json!({ "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "input": "x" }),
            json!({ "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}" }),
        );
        check(
            json!({ "type": "function_call_output", "call_id": "c", "output": "1", "name": "x" }),
            json!({ "type": "function_call_output", "call_id": "c", "output": "1" }),
        );
        check(
            json!({ "type": "mcp_call", "id": "m", "server_label": "s", "name": "f", "arguments": "{}",
                "output": "1", "error": null, "status": "completed", "junk": 1 }),
            json!({ "type": "mcp_call", "id": "m", "server_label": "s", "name": "f", "arguments": "{}",
                "output": "1", "status": "completed" }),
        );
        check(
            json!({ "type": "mcp_approval_response", "approval_request_id": "a", "approve": true, "reason": 1 }),
            json!({ "type": "mcp_approval_response", "approval_request_id": "a", "approve": true }),
        );
        check(
            json!({ "type": "item_reference", "id": "a", "junk": 1 }),
            json!({ "type": "item_reference", "id": "a" }),
        );
    }
}

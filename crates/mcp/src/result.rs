//! The result of a call as the text that a model reads.

use serde_json::Value;

/// Result of a tool call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallResult {
    /// Its text parts, and a line for each part that is no text.
    pub text: String,
    /// Whether the tool reports a failure.
    pub is_error: bool,
    /// Whether the text was shortened.
    pub is_shortened: bool,
}

impl CallResult {
    /// The result of `tools/call`, of at most `limit` bytes.
    pub(crate) fn new(result: &Value, limit: usize) -> CallResult {
        let parts = result["content"].as_array().map_or(&[][..], Vec::as_slice);
        let mut text = parts.iter().map(part).collect::<Vec<_>>().join("\n");
        if parts.is_empty() && !result["structuredContent"].is_null() {
            text = result["structuredContent"].to_string();
        }
        if result["resultType"] == "input_required" {
            text.push_str("[the tool asks for input, which this client cannot give]");
        }
        let is_error = result["isError"] == true || result["resultType"] == "input_required";
        let is_shortened = text.len() > limit;
        if is_shortened {
            text = shortened(&text, limit);
        }
        CallResult { text, is_error, is_shortened }
    }
}

/// The text of a part of the content.
fn part(part: &Value) -> String {
    let text = |name: &str| part[name].as_str().unwrap_or_default();
    let data = |kind: &str| {
        let bytes = text("data").len() / 4 * 3;
        format!("[{kind} {}, about {bytes} bytes, not shown]", text("mimeType"))
    };
    match part["type"].as_str() {
        Some("text") => text("text").to_owned(),
        Some("image") => data("image"),
        Some("audio") => data("audio"),
        Some("resource_link") => format!("[resource {} {}]", text("name"), text("uri")),
        Some("resource") => {
            let resource = &part["resource"];
            let uri = resource["uri"].as_str().unwrap_or_default();
            match resource["text"].as_str() {
                Some(text) => text.to_owned(),
                None => format!("[resource {uri}, not text]"),
            }
        }
        kind => format!("[a part of type {}, not shown]", kind.unwrap_or("unknown")),
    }
}

/// Start and end of the text, and between them how much is left out.
fn shortened(text: &str, limit: usize) -> String {
    let note = |omitted: usize| format!("\n[… {omitted} bytes left out …]\n");
    let room = limit.saturating_sub(note(text.len()).len());
    let (head, tail) = (room * 3 / 4, room / 4);
    let start = (0..=head).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let end = (text.len() - tail..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    format!("{}{}{}", &text[..start], note(end - start), &text[end..])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parts_become_text() {
        let result = json!({ "content": [
            { "type": "text", "text": "a" },
            { "type": "image", "data": "AAAAAAAA", "mimeType": "image/png" },
            { "type": "resource", "resource": { "uri": "file:///x", "text": "inside" } },
            { "type": "resource", "resource": { "uri": "file:///y", "blob": "AA" } },
            { "type": "resource_link", "name": "n", "uri": "u" },
            { "type": "hologram" },
        ], "structuredContent": { "a": 1 } });
        let expected = "a\n[image image/png, about 6 bytes, not shown]\ninside\n[resource file:///y, not text]\n\
                        [resource n u]\n[a part of type hologram, not shown]";
        assert_eq!(CallResult::new(&result, 1000).text, expected);
        let structured = CallResult::new(&json!({ "structuredContent": { "a": 1 }, "isError": true }), 1000);
        assert_eq!((&*structured.text, structured.is_error), ("{\"a\":1}", true));
        assert_eq!(CallResult::new(&json!({}), 1000).text, "");
    }

    #[test]
    fn long_text_keeps_its_start_and_end() {
        let text = format!("start{}end", "é".repeat(50_000));
        let result = CallResult::new(&json!({ "content": [{ "type": "text", "text": text }] }), 1000);
        assert!(result.is_shortened && result.text.len() <= 1000, "{}", result.text.len());
        assert!(result.text.starts_with("start") && result.text.ends_with("end"));
        assert!(result.text.contains("bytes left out"));
    }
}

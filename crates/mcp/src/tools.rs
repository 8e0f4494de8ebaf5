//! Tools as a server lists them, checked.

use serde_json::{Map, Value};

use crate::{Limits, secrets::Secrets};

/// Longest name of a tool that is left out, in characters.
const NAME_CHARS: usize = 100;

/// A tool of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolInfo {
    /// The server's name for it.
    pub name: String,
    /// For the model.
    pub description: Option<String>,
    /// A JSON Schema of its arguments, an object.
    pub input_schema: Value,
    /// The server's hints, such as `readOnlyHint`. Nothing is decided by them.
    pub annotations: Option<Value>,
}

/// The tools of a server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolList {
    /// In the server's order.
    pub tools: Vec<ToolInfo>,
    /// Those that cannot be offered.
    pub skipped: Vec<SkippedTool>,
    /// Whether the server has more tools than the limit.
    pub is_cut: bool,
}

/// A tool that cannot be offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedTool {
    /// Its name, or its number in the list.
    pub name: String,
    /// The problem with the tool.
    pub reason: String,
}

impl ToolList {
    /// Adds a page of `tools/list`; whether there is room for more.
    pub(crate) fn add_page(&mut self, page: &[Value], limits: &Limits, secrets: &Secrets) -> bool {
        for definition in page {
            if self.tools.len() >= limits.tools {
                self.is_cut = true;
                return false;
            }
            if let Err((name, reason)) = self.add(definition, limits) {
                self.skip(&name, reason, limits, secrets);
            }
        }
        true
    }

    /// # Errors
    /// The tool cannot be offered: its name, or its number in the list, and the reason.
    fn add(&mut self, definition: &Value, limits: &Limits) -> Result<(), (String, String)> {
        let name = definition["name"].as_str().filter(|name| !name.is_empty());
        let Some(name) = name else {
            let number = self.tools.len() + self.skipped.len() + 1;
            return Err((format!("number {number}"), "it has no name".into()));
        };
        let skipped = |reason: String| Err((name.to_owned(), reason));
        if self.tools.iter().any(|tool| tool.name == name) {
            return skipped("another tool has the same name".into());
        }
        let bytes = definition.to_string().len();
        if bytes > limits.tool_bytes {
            return skipped(format!("its definition has {bytes} bytes, more than {}", limits.tool_bytes));
        }
        let input_schema = match input_schema(&definition["inputSchema"]) {
            Ok(schema) => schema,
            Err(reason) => return skipped(reason.into()),
        };
        self.tools.push(ToolInfo {
            name: name.to_owned(),
            description: definition["description"].as_str().map(str::to_owned),
            input_schema,
            annotations: definition.get("annotations").filter(|value| value.is_object()).cloned(),
        });
        Ok(())
    }

    fn skip(&mut self, name: &str, reason: String, limits: &Limits, secrets: &Secrets) {
        // The limit on tools bounds the list of faulty ones too.
        if self.skipped.len() < limits.tools {
            self.skipped.push(SkippedTool { name: secrets.shortened(name, NAME_CHARS), reason });
        }
    }
}

/// The schema with what every schema of an object has.
fn input_schema(schema: &Value) -> Result<Value, &'static str> {
    let mut schema = match schema {
        Value::Null => Map::new(),
        Value::Object(schema) => schema.clone(),
        _ => return Err("its inputSchema is not an object"),
    };
    match schema.get("type") {
        None => _ = schema.insert("type".into(), "object".into()),
        Some(kind) if kind == "object" => {}
        Some(_) => return Err("its inputSchema does not describe an object"),
    }
    match schema.get("properties") {
        None => _ = schema.insert("properties".into(), Map::new().into()),
        Some(Value::Object(_)) => {}
        Some(_) => return Err("the properties of its inputSchema are not an object"),
    }
    // The model has no use for it.
    schema.remove("$schema");
    Ok(schema.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn faulty_tools_are_left_out_with_a_reason() {
        let limits = Limits { tool_bytes: 300, ..Limits::default() };
        let mut list = ToolList::default();
        let page = [
            json!({ "name": "ok", "description": "d", "inputSchema": { "$schema": "x", "type": "object" } }),
            json!({ "name": "ok" }),
            json!({ "inputSchema": {} }),
            json!({ "name": "text", "inputSchema": "x" }),
            json!({ "name": "list", "inputSchema": { "type": "array" } }),
            json!({ "name": "props", "inputSchema": { "properties": 7 } }),
            json!({ "name": "long", "description": "x".repeat(300) }),
            json!({ "name": "secret-value", "inputSchema": 1 }),
            json!({ "name": "bare" }),
        ];
        let secrets = Secrets::new(["secret-value"]);
        assert!(list.add_page(&page, &limits, &secrets));
        let empty = json!({ "type": "object", "properties": {} });
        let found: Vec<(&str, &Value)> =
            list.tools.iter().map(|tool| (&*tool.name, &tool.input_schema)).collect();
        assert_eq!(found, [("ok", &empty), ("bare", &empty)]);
        let skipped: Vec<&str> = list.skipped.iter().map(|tool| &*tool.name).collect();
        assert_eq!(skipped, ["ok", "number 3", "text", "list", "props", "long", "***"]);
    }

    #[test]
    fn tools_beyond_the_limit_are_left_out() {
        let limits = Limits { tools: 3, ..Limits::default() };
        let page: Vec<Value> = (0..5).map(|n| json!({ "name": format!("t{n}") })).collect();
        let (mut list, secrets) = (ToolList::default(), Secrets::default());
        assert!(!list.add_page(&page, &limits, &secrets));
        assert_eq!((list.tools.len(), list.is_cut), (3, true));
    }
}

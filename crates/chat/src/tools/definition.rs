//! The tools of a request: checked definitions, and which of them the model may or must call.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::reader::{self, Malformed};

const MAX_TOOLS: usize = 1_000;
const MAX_NAME_BYTES: usize = 128;

/// A tool that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// The JSON schema of the arguments, an object.
    pub parameters: Value,
}

/// The tools that the model may call, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSet {
    tools: Vec<Tool>,
    /// Whether the reply must be a call.
    pub required: bool,
    /// Whether the reply may have several calls.
    pub parallel: bool,
}

/// Why the tools of a request are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidTools {
    /// The field, such as `tools[1].function.name`.
    pub field: String,
    /// The reason.
    pub message: String,
}

impl ToolSet {
    /// Checks `tools`, `tool_choice` and `parallel_tool_calls` of an OpenAI request; `None` if the
    /// model may not call tools.
    ///
    /// # Errors
    /// The first field that is not valid.
    pub fn new(
        definitions: &[Value],
        choice: Option<&Value>,
        parallel: Option<bool>,
    ) -> Result<Option<Self>, InvalidTools> {
        if definitions.len() > MAX_TOOLS {
            return Err(invalid("tools", format!("tools has more than {MAX_TOOLS} entries")));
        }
        let mut names = HashSet::new();
        let mut tools = Vec::with_capacity(definitions.len());
        for (index, definition) in definitions.iter().enumerate() {
            let tool = Tool::new(definition, index)?;
            if !names.insert(tool.name.clone()) {
                let field = format!("tools[{index}].function.name");
                return Err(invalid(&field, format!("two tools are named `{}`", tool.name)));
            }
            tools.push(tool);
        }
        let set = Self { tools, required: false, parallel: parallel.unwrap_or(true) };
        set.choose(choice.unwrap_or(&Value::Null))
    }

    /// All tools that may be called.
    pub fn tools(&self) -> &[Tool] {
        &self.tools
    }

    /// The tool of this name, if it may be called.
    pub fn get(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// Requires a string parameter of a tool to match a regular expression, which the definition
    /// that the model reads does not have.
    pub fn set_pattern(&mut self, tool: &str, parameter: &str, pattern: &str) {
        let tool = self.tools.iter_mut().find(|known| known.name == tool);
        let schema = tool.and_then(|tool| tool.parameters["properties"].get_mut(parameter));
        if let Some(schema) = schema {
            schema["pattern"] = pattern.into();
        }
    }

    /// The empty set, for dialects whose replies are parsed even without tools.
    pub fn none() -> Self {
        Self { tools: Vec::new(), required: false, parallel: true }
    }

    pub(super) fn known_tool(&self, name: &str) -> reader::Result<&Tool> {
        self.get(name).ok_or(Malformed)
    }

    pub(super) fn known(&self, name: &str) -> reader::Result<&str> {
        self.known_tool(name).map(|tool| &*tool.name)
    }

    fn choose(self, choice: &Value) -> Result<Option<Self>, InvalidTools> {
        match (choice.as_str(), choice["type"].as_str()) {
            _ if choice.is_null() => Ok(Some(self).filter(|set| !set.tools.is_empty())),
            (Some("none"), _) => Ok(None),
            (Some("auto"), _) => Ok(Some(self).filter(|set| !set.tools.is_empty())),
            (Some("required" | "any"), _) => Self { required: true, ..self }.non_empty(),
            (_, Some("function")) => self.named(choice),
            (_, Some("allowed_tools")) => self.allowed(choice),
            _ => {
                let message = "tool_choice must be `none`, `auto`, `required`, \
                    {\"type\": \"function\", \"function\": {\"name\": ..}} or \
                    {\"type\": \"allowed_tools\", ..}";
                Err(invalid("tool_choice", message))
            }
        }
    }

    fn non_empty(self) -> Result<Option<Self>, InvalidTools> {
        match self.tools.is_empty() {
            true => Err(invalid("tool_choice", "tool_choice asks for a call, but there are no tools")),
            false => Ok(Some(self)),
        }
    }

    /// `{"type": "function", "function": {"name": ..}}`: exactly one call, of this tool.
    fn named(self, choice: &Value) -> Result<Option<Self>, InvalidTools> {
        let name = choice["function"]["name"].as_str().or(choice["name"].as_str());
        let name = name.ok_or_else(|| invalid("tool_choice", "tool_choice names no function"))?;
        Self { required: true, parallel: false, ..self }.only(&[name])
    }

    /// `{"type": "allowed_tools", "allowed_tools": {"mode": .., "tools": [..]}}`.
    fn allowed(self, choice: &Value) -> Result<Option<Self>, InvalidTools> {
        let wrong = |message: &str| invalid("tool_choice", message);
        let allowed = choice.get("allowed_tools").unwrap_or(choice);
        let required = match allowed["mode"].as_str() {
            Some("required") => true,
            Some("auto") => false,
            _ => return Err(wrong("the mode of allowed_tools must be `auto` or `required`")),
        };
        let tools = allowed["tools"].as_array().ok_or_else(|| wrong("allowed_tools names no tools"))?;
        let name =
            |tool: &'_ Value| tool["function"]["name"].as_str().or(tool["name"].as_str()).map(str::to_owned);
        let names: Option<Vec<String>> = tools.iter().map(name).collect();
        let names = names.ok_or_else(|| wrong("a tool of allowed_tools has no name"))?;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        Self { required, ..self }.only(&names)
    }

    fn only(mut self, names: &[&str]) -> Result<Option<Self>, InvalidTools> {
        if let Some(unknown) = names.iter().find(|name| self.get(name).is_none()) {
            let unknown: String = unknown.chars().take(MAX_NAME_BYTES).collect();
            let message = format!("tool_choice names `{unknown}`, which is not among the tools");
            return Err(invalid("tool_choice", message));
        }
        self.tools.retain(|tool| names.contains(&&*tool.name));
        self.non_empty()
    }
}

impl Tool {
    fn new(definition: &Value, index: usize) -> Result<Self, InvalidTools> {
        let at = |field: &str| format!("tools[{index}]{field}");
        if definition["type"].as_str() != Some("function") {
            let message = format!("{} must be `function`; other tools are not supported", at(".type"));
            return Err(invalid(&at(".type"), message));
        }
        let Some(function) = definition["function"].as_object() else {
            return Err(invalid(&at(".function"), format!("{} must be an object", at(".function"))));
        };
        let name = function.get("name").and_then(Value::as_str).unwrap_or_default();
        if !is_name(name) {
            let field = at(".function.name");
            let message = format!(
                "{field} must have 1 to {MAX_NAME_BYTES} letters, digits, underscores, hyphens or dots"
            );
            return Err(invalid(&field, message));
        }
        let parameters = match function.get("parameters") {
            None | Some(Value::Null) => json!({ "type": "object", "properties": {} }),
            Some(Value::Object(schema)) => object_schema(schema),
            Some(_) => {
                let field = at(".function.parameters");
                return Err(invalid(&field, format!("{field} must be a JSON schema, an object")));
            }
        };
        Ok(Self { name: name.to_owned(), parameters })
    }
}

/// Adds `type: object` if missing, and empty `properties` if the schema has only annotations.
fn object_schema(schema: &Map<String, Value>) -> Value {
    let mut schema = schema.clone();
    if !schema.contains_key("type") {
        schema.insert("type".to_owned(), json!("object"));
    }
    let annotations = ["type", "description", "title", "$schema"];
    if schema.keys().all(|key| annotations.contains(&key.as_str())) {
        schema.insert("properties".to_owned(), json!({}));
    }
    Value::Object(schema)
}

fn is_name(name: &str) -> bool {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(valid)
}

pub(super) fn invalid(field: &str, message: impl Into<String>) -> InvalidTools {
    InvalidTools { field: field.to_owned(), message: message.into() }
}

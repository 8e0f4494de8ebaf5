//! Tools of the Responses API, as chat completions have them.

use std::collections::BTreeSet;

use chat::{grammar::lark_to_regex, tools::ToolSet};
use serde_json::{Value, json};

use crate::server::openai::error::ApiError;

/// Tools that OpenAI's servers run, and groups of further functions, as Codex sends one of its
/// sub-agents: an answer can do without them, and they are not offered to the model.
const NOT_OFFERED: [&str; 7] = [
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
    "image_generation",
    "local_shell",
    "namespace",
];

/// The parameter of a custom tool.
const INPUT: &str = "input";

/// Tools that the model is offered.
#[derive(Debug, Default, PartialEq)]
pub(super) struct OfferedTools {
    /// As the request has them.
    pub own: Vec<Value>,
    /// As chat completions have them.
    pub chat: Vec<Value>,
    /// Names of custom tools: the model calls them as functions of one text.
    pub custom: BTreeSet<String>,
    /// Regular expressions that the texts of some of them match.
    patterns: Vec<(String, String)>,
}

impl OfferedTools {
    /// # Errors
    /// 400: a tool lacks a field, or an answer without it would be another one.
    pub(super) fn new(tools: Vec<Value>) -> Result<OfferedTools, ApiError> {
        let mut offered = OfferedTools::default();
        for (index, tool) in tools.into_iter().enumerate() {
            let param = format!("tools[{index}]");
            let text = |name: &str| {
                let param = format!("{param}.{name}");
                tool[name]
                    .as_str()
                    .ok_or_else(|| ApiError::invalid(param.clone(), format!("{param} must be a string")))
            };
            match text("type")? {
                "function" => offered.chat.push(function(&tool, text("name")?)),
                "custom" => {
                    let name = text("name")?;
                    let format = InputFormat::of(&tool, &param)?;
                    offered.chat.push(custom(&tool, name, &format));
                    offered.custom.insert(name.to_owned());
                    offered.patterns.extend(format.pattern.map(|pattern| (name.to_owned(), pattern)));
                }
                kind if NOT_OFFERED.contains(&kind) => continue,
                kind => {
                    let message = format!("{param} is a `{kind}` tool, which is not supported");
                    return Err(
                        ApiError::invalid(format!("{param}.type"), message).code("unsupported_parameter")
                    );
                }
            }
            offered.own.push(tool);
        }
        Ok(offered)
    }

    /// Has the inputs of custom tools follow their grammars.
    pub(super) fn constrain(&self, tools: &mut ToolSet) {
        self.patterns.iter().for_each(|(name, pattern)| tools.set_pattern(name, INPUT, pattern));
    }
}

fn function(tool: &Value, name: &str) -> Value {
    let mut function = json!({ "name": name });
    for field in ["description", "parameters", "strict"] {
        if !tool[field].is_null() {
            function[field] = tool[field].clone();
        }
    }
    json!({ "type": "function", "function": function })
}

/// What the input of a custom tool must be.
#[derive(Default)]
struct InputFormat {
    /// For the model.
    description: String,
    pattern: Option<String>,
}

impl InputFormat {
    /// # Errors
    /// 400: it has another type than text and grammar, or its grammar cannot be followed.
    fn of(tool: &Value, param: &str) -> Result<InputFormat, ApiError> {
        let param = format!("{param}.format");
        let format = &tool["format"];
        let refuse = |field: &str, message: String| {
            Err(ApiError::invalid(format!("{param}{field}"), message).code("unsupported_parameter"))
        };
        match format["type"].as_str() {
            None if format.is_null() => return Ok(InputFormat::default()),
            Some("text") => return Ok(InputFormat::default()),
            Some("grammar") => {}
            _ => return refuse("", format!("{param}.type must be `text` or `grammar`")),
        }
        // OpenAI's reference has the fields here, its older one in an object of their own.
        let grammar = format.get("grammar").unwrap_or(format);
        let Some(definition) = grammar["definition"].as_str() else {
            return refuse(".definition", format!("{param}.definition must be a string"));
        };
        let (pattern, language) = match grammar["syntax"].as_str() {
            Some("lark") => (lark_to_regex(definition), "Lark grammar"),
            Some("regex") => (Ok(format!("^(?:{definition})$")), "regular expression"),
            _ => return refuse(".syntax", format!("{param}.syntax must be `lark` or `regex`")),
        };
        match pattern {
            Ok(pattern) => {
                let description = format!(" It matches this {language}:\n{definition}");
                Ok(InputFormat { description, pattern: Some(pattern) })
            }
            Err(error) => refuse(".definition", format!("{param}.definition: {error}")),
        }
    }
}

fn custom(tool: &Value, name: &str, format: &InputFormat) -> Value {
    let description = format!("The whole input of the tool.{}", format.description);
    let input = json!({ "type": "string", "description": description });
    let parameters = json!({
        "type": "object",
        "properties": { INPUT: input },
        "required": [INPUT],
        "additionalProperties": false,
    });
    let mut function = json!({ "name": name, "parameters": parameters });
    if !tool["description"].is_null() {
        function["description"] = tool["description"].clone();
    }
    json!({ "type": "function", "function": function })
}

/// `tool_choice`, as chat completions have it.
///
/// # Errors
/// 400: it requires a tool that the model is not offered.
pub(super) fn chat_choice(choice: &Value) -> Result<Value, ApiError> {
    let named = |tool: &Value| json!({ "type": "function", "function": { "name": tool["name"] } });
    let Some(kind) = choice["type"].as_str() else { return Ok(choice.clone()) };
    match kind {
        "function" | "custom" => Ok(named(choice)),
        "allowed_tools" => {
            let allowed = choice["tools"].as_array().into_iter().flatten();
            let tools: Vec<Value> = allowed.map(named).collect();
            let allowed_tools = json!({ "mode": choice["mode"], "tools": tools });
            Ok(json!({ "type": "allowed_tools", "allowed_tools": allowed_tools }))
        }
        kind => {
            let message = format!("tool_choice requires a `{kind}` tool, which is not supported");
            Err(ApiError::invalid("tool_choice", message).code("unsupported_parameter"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_become_those_of_chat_completions() {
        let parameters = json!({ "type": "object", "properties": {} });
        let f = json!({ "type": "function", "name": "f", "description": "d", "parameters": parameters, "strict": false });
        let patch = json!({ "type": "custom", "name": "patch", "format": { "type": "text" } });
        let search = json!({ "type": "web_search", "external_web_access": false });
        let group = json!({ "type": "namespace", "name": "agents", "tools": [f.clone()] });
        let offered = OfferedTools::new(vec![search, f.clone(), group, patch.clone()]).unwrap();
        let expected = json!({ "name": "f", "description": "d", "parameters": parameters, "strict": false });
        assert_eq!(offered.chat[0], json!({ "type": "function", "function": expected }));
        assert_eq!(offered.chat[1]["function"]["parameters"]["required"], json!(["input"]));
        assert_eq!(offered.own, [f, patch]);
        assert_eq!(offered.custom, ["patch".to_owned()].into());
    }

    #[test]
    fn tool_that_the_answer_depends_on_is_refused() {
        let custom = |format: Value| json!({ "type": "custom", "name": "f", "format": format });
        let grammar = |syntax: &str, definition: &str| {
            custom(json!({ "type": "grammar", "syntax": syntax, "definition": definition }))
        };
        for (tool, param) in [
            (json!({ "type": "mcp", "server_url": "https://example.com" }), "tools[0].type"),
            (json!({ "type": "file_search", "vector_store_ids": [] }), "tools[0].type"),
            (json!({ "type": "function" }), "tools[0].name"),
            (json!({ "name": "f" }), "tools[0].type"),
            (custom(json!({ "type": "grammar" })), "tools[0].format.definition"),
            (custom(json!({ "type": "xml" })), "tools[0].format"),
            (grammar("gbnf", "root ::= x"), "tools[0].format.syntax"),
            (grammar("lark", "start: \"(\" start \")\" | \"x\""), "tools[0].format.definition"),
        ] {
            let error = OfferedTools::new(vec![tool.clone()]).unwrap_err();
            assert_eq!(error.body.param.as_deref(), Some(param), "{tool}");
        }
    }

    #[test]
    fn tool_choice_becomes_that_of_chat_completions() {
        let check = |choice: Value, expected: Value| assert_eq!(chat_choice(&choice).unwrap(), expected);
        let named = |name: &str| json!({ "type": "function", "function": { "name": name } });
        check(json!("required"), json!("required"));
        check(json!({ "type": "function", "name": "f" }), named("f"));
        check(
            json!({ "type": "allowed_tools", "mode": "auto", "tools": [{ "type": "function", "name": "f" }] }),
            json!({ "type": "allowed_tools", "allowed_tools": { "mode": "auto", "tools": [named("f")] } }),
        );
        assert!(chat_choice(&json!({ "type": "file_search" })).is_err());
    }
}

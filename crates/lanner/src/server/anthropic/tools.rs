//! Tools of the Messages API, as chat completions have them.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::server::{openai::error::ApiError, schema::words};

#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct ToolChoiceField {
    #[schemars(transform = words(["auto", "any", "tool", "none"]))]
    r#type: String,
    /// The tool to call, with type `tool`.
    name: Option<String>,
    /// Allow one call.
    pub disable_parallel_tool_use: Option<bool>,
}

/// # Errors
/// 400: a tool lacks a field, or Anthropic's servers run or define it.
pub(super) fn chat_tools(tools: &[Value]) -> Result<Vec<Value>, ApiError> {
    tools.iter().enumerate().map(|(index, tool)| chat_tool(&format!("tools[{index}]"), tool)).collect()
}

fn chat_tool(at: &str, tool: &Value) -> Result<Value, ApiError> {
    match &tool["type"] {
        Value::Null => {}
        Value::String(kind) if kind == "custom" => {}
        kind => {
            let message = format!(
                "{at} is a {kind} tool of Anthropic's; this server has only tools that the request defines, with name and input_schema"
            );
            return Err(ApiError::invalid(format!("{at}.type"), message).code("unsupported_parameter"));
        }
    }
    let missing = |name: &str, kind: &str| {
        ApiError::invalid(format!("{at}.{name}"), format!("{at}.{name} must be {kind}"))
    };
    let name = tool["name"].as_str().ok_or_else(|| missing("name", "a string"))?;
    if !tool["input_schema"].is_object() {
        return Err(missing("input_schema", "a JSON schema, an object"));
    }
    let mut function = json!({ "name": name });
    let fields = [("description", "description"), ("input_schema", "parameters"), ("strict", "strict")];
    for (own, chat) in fields.into_iter().filter(|(own, _)| !tool[own].is_null()) {
        function[chat] = tool[own].clone();
    }
    Ok(json!({ "type": "function", "function": function }))
}

/// `tool_choice`, as chat completions have it.
///
/// # Errors
/// 400: it is of no known type, or lacks the tool's name.
pub(super) fn chat_choice(choice: &ToolChoiceField) -> Result<Value, ApiError> {
    match (&*choice.r#type, &choice.name) {
        ("auto" | "none", _) => Ok(choice.r#type.clone().into()),
        ("any", _) => Ok("required".into()),
        ("tool", Some(name)) => Ok(json!({ "type": "function", "function": { "name": name } })),
        ("tool", None) => Err(ApiError::invalid("tool_choice.name", "tool_choice.name is missing")),
        (other, _) => {
            let message = format!("tool_choice.type is `{other}`; it must be auto, any, tool or none");
            Err(ApiError::invalid("tool_choice.type", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tool_becomes_that_of_chat_completions() {
        let schema = json!({ "type": "object", "properties": {} });
        let tool = json!({ "name": "f", "description": "d", "input_schema": schema, "cache_control": {} });
        let function = json!({ "name": "f", "description": "d", "parameters": schema });
        assert_eq!(chat_tools(&[tool]).unwrap(), [json!({ "type": "function", "function": function })]);
    }

    #[test]
    fn tool_of_anthropic_is_refused() {
        for (tool, param) in [
            (json!({ "type": "web_search_20250305", "name": "web_search" }), "tools[0].type"),
            (json!({ "type": "bash_20250124", "name": "bash" }), "tools[0].type"),
            (json!({ "input_schema": {} }), "tools[0].name"),
            (json!({ "name": "f" }), "tools[0].input_schema"),
            (json!(7), "tools[0].name"),
        ] {
            let error = chat_tools(std::slice::from_ref(&tool)).unwrap_err();
            assert_eq!(error.body.param.as_deref(), Some(param), "{tool}");
        }
    }

    #[test]
    fn tool_choice_becomes_that_of_chat_completions() {
        let choice = |choice: Value| chat_choice(&serde_json::from_value(choice).unwrap());
        let named = json!({ "type": "function", "function": { "name": "f" } });
        assert_eq!(choice(json!({ "type": "any" })).unwrap(), "required");
        assert_eq!(choice(json!({ "type": "tool", "name": "f" })).unwrap(), named);
        assert!(choice(json!({ "type": "tool" })).is_err() && choice(json!({ "type": "owl" })).is_err());
    }
}

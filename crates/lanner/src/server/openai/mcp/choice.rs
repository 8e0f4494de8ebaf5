//! `tool_choice` that names tools of MCP servers.

use serde_json::{Value, json};

use crate::{mcp_tools::McpTools, server::openai::error::ApiError};

/// The choice with the names that the model is offered.
///
/// # Errors
/// 400: it names a server or a tool that the request does not have.
pub(super) fn offered_choice(choice: &Value, tools: &McpTools) -> Result<Value, ApiError> {
    if choice["type"] == "mcp" {
        let names = named(choice, tools)?;
        return Ok(match (&names[..], choice["name"].is_string()) {
            ([name], true) => json!({ "type": "function", "function": { "name": name } }),
            _ => allowed("required", names.into_iter().map(function).collect()),
        });
    }
    let Some(listed) = choice.pointer("/allowed_tools/tools").and_then(Value::as_array) else {
        return Ok(choice.clone());
    };
    let mut all = vec![];
    for tool in listed {
        match tool["type"] == "mcp" {
            true => all.extend(named(tool, tools)?.into_iter().map(function)),
            false => all.push(tool.clone()),
        }
    }
    Ok(allowed(choice["allowed_tools"]["mode"].as_str().unwrap_or_default(), all))
}

fn allowed(mode: &str, tools: Vec<Value>) -> Value {
    json!({ "type": "allowed_tools", "allowed_tools": { "mode": mode, "tools": tools } })
}

fn function(name: &str) -> Value {
    json!({ "type": "function", "function": { "name": name } })
}

/// The offered names of a server's tools, or of one of them.
fn named<'a>(choice: &Value, tools: &'a McpTools) -> Result<Vec<&'a str>, ApiError> {
    let (label, name) = (choice["server_label"].as_str().unwrap_or_default(), choice["name"].as_str());
    let is_meant = |tool: &&crate::mcp_tools::McpTool| {
        tool.label == label && name.is_none_or(|name| tool.info.name == name)
    };
    let found: Vec<&str> = tools.all().iter().filter(is_meant).map(|tool| &*tool.name).collect();
    if found.is_empty() {
        let message = "tool_choice names a tool of an MCP server that the request does not offer";
        return Err(ApiError::invalid("tool_choice", message));
    }
    Ok(found)
}

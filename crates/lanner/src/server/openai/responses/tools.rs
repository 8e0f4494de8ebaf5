//! Tools of the Responses API, as chat completions have them.

use serde_json::{Value, json};

use crate::server::openai::{
    custom_tools::{CustomTools, rename_functions},
    error::ApiError,
};

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

/// Tools that the model is offered.
#[derive(Debug, Default, PartialEq)]
pub(super) struct OfferedTools {
    /// As the request has them.
    pub own: Vec<Value>,
    /// As chat completions have them.
    pub chat: Vec<Value>,
    pub custom: CustomTools,
    /// Where the request has those of `chat`.
    pub indexes: Vec<usize>,
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
                "custom" => offered.chat.push(offered.custom.add(&tool, &param)?),
                // Chat completions have the same form.
                "mcp" => offered.chat.push(tool.clone()),
                kind if NOT_OFFERED.contains(&kind) => continue,
                kind => {
                    let message = format!("{param} is a `{kind}` tool, which is not supported");
                    return Err(
                        ApiError::invalid(format!("{param}.type"), message).code("unsupported_parameter")
                    );
                }
            }
            offered.own.push(tool);
            offered.indexes.push(index);
        }
        Ok(offered)
    }

    /// An error of a function of `chat` with the name of the request's tool.
    pub(super) fn renamed(&self, error: ApiError) -> ApiError {
        let own = |index: usize| self.indexes.get(index).map(|own| format!("tools[{own}]"));
        rename_tools(rename_functions(error, own), own)
    }
}

/// An error of an MCP tool at an index with the index of the request.
fn rename_tools(mut error: ApiError, own: impl Fn(usize) -> Option<String>) -> ApiError {
    let param = error.body.param.clone().unwrap_or_default();
    let parts = param.strip_prefix("tools[").and_then(|rest| rest.split_once("]."));
    let parts = parts.filter(|(_, field)| !field.starts_with("function"));
    let renamed = parts.and_then(|(index, _)| Some((format!("tools[{index}]"), own(index.parse().ok()?)?)));
    if let Some((chat, own)) = renamed.filter(|(chat, own)| chat != own) {
        error.body.param = Some(param.replacen(&chat, &own, 1));
        error.body.message = error.body.message.replace(&chat, &own);
    }
    error
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

/// `tool_choice`, as chat completions have it.
///
/// # Errors
/// 400: it requires a tool that the model is not offered.
pub(super) fn chat_choice(choice: &Value) -> Result<Value, ApiError> {
    let named = |tool: &Value| match tool["type"] == "mcp" {
        true => tool.clone(),
        false => json!({ "type": "function", "function": { "name": tool["name"] } }),
    };
    let Some(kind) = choice["type"].as_str() else { return Ok(choice.clone()) };
    match kind {
        "function" | "custom" | "mcp" => Ok(named(choice)),
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
        assert_eq!(offered.custom.into_names(), ["patch".to_owned()].into());
    }

    #[test]
    fn tool_that_the_answer_depends_on_is_refused() {
        let custom = |format: Value| json!({ "type": "custom", "name": "f", "format": format });
        let grammar = |syntax: &str, definition: &str| {
            custom(json!({ "type": "grammar", "syntax": syntax, "definition": definition }))
        };
        for (tool, param) in [
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

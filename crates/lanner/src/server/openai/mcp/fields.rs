//! The fields of an MCP tool.

use mcp::ToolInfo;
use serde_json::Value;

use crate::server::openai::error::ApiError;

/// Longest label; it is a part of the names of tools.
const MAX_LABEL: usize = 48;

/// A tool of type `mcp`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct McpServerField {
    /// Its place among the request's tools.
    pub index: usize,
    pub label: String,
    /// A configured server's; `None`: the label is its name.
    pub url: Option<String>,
    allowed: Option<ToolFilter>,
    approval: Approval,
}

/// Which tools.
#[derive(Clone, Debug, Default, PartialEq)]
struct ToolFilter {
    names: Option<Vec<String>>,
    /// Only those that their server calls read-only, or only the others.
    read_only: Option<bool>,
}

/// Which calls the client must approve.
#[derive(Clone, Debug, PartialEq)]
enum Approval {
    Always,
    Never,
    /// Those of `always`, and without that all but those of `never`.
    Some {
        always: Option<ToolFilter>,
        never: Option<ToolFilter>,
    },
}

impl McpServerField {
    /// # Errors
    /// 400 that names the field.
    pub(super) fn new(tool: &Value, index: usize) -> Result<McpServerField, ApiError> {
        let param = format!("tools[{index}]");
        let invalid = |field: &str, problem: &str| {
            let field = format!("{param}.{field}");
            ApiError::invalid(field.clone(), format!("{field} {problem}"))
        };
        let text = |field: &str| match &tool[field] {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(text.clone())),
            _ => Err(invalid(field, "must be a string")),
        };
        for field in ["headers", "authorization"] {
            if !tool[field].is_null() {
                return Err(invalid(
                    field,
                    "is not supported; the server's --mcp file has the headers of its servers",
                ));
            }
        }
        for field in ["connector_id", "tunnel_id"] {
            if !tool[field].is_null() {
                return Err(invalid(field, "is not supported; name a server of the server's --mcp file")
                    .code("unsupported_parameter"));
            }
        }
        let label = text("server_label")?.ok_or_else(|| invalid("server_label", "is missing"))?;
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if label.is_empty() || label.len() > MAX_LABEL || !label.chars().all(is_part) {
            let problem = format!("must have 1 to {MAX_LABEL} letters, digits, `-` and `_`");
            return Err(invalid("server_label", &problem));
        }
        text("server_description")?;
        Ok(McpServerField {
            label,
            url: text("server_url")?,
            allowed: ToolFilter::new(&tool["allowed_tools"])
                .map_err(|problem| invalid("allowed_tools", problem))?,
            approval: Approval::new(&tool["require_approval"])
                .map_err(|problem| invalid("require_approval", problem))?,
            index,
        })
    }

    /// The name of one of its fields in errors.
    pub(super) fn param(&self, field: &str) -> String {
        format!("tools[{}].{field}", self.index)
    }

    pub(super) fn allows(&self, tool: &ToolInfo) -> bool {
        self.allowed.as_ref().is_none_or(|filter| filter.has(tool))
    }

    pub(super) fn needs_approval(&self, tool: &ToolInfo) -> bool {
        match &self.approval {
            Approval::Always => true,
            Approval::Never => false,
            Approval::Some { always: Some(always), .. } if always.has(tool) => true,
            Approval::Some { never, .. } => !never.as_ref().is_some_and(|never| never.has(tool)),
        }
    }

    /// A tool of `allowed_tools` that is not among these.
    pub(super) fn unknown_tool<'a>(&'a self, tools: &[ToolInfo]) -> Option<&'a str> {
        let names = self.allowed.as_ref()?.names.as_ref()?;
        names.iter().find(|name| tools.iter().all(|tool| tool.name != **name)).map(String::as_str)
    }
}

impl ToolFilter {
    /// A list of names, or an object with one.
    fn new(value: &Value) -> Result<Option<ToolFilter>, &'static str> {
        let names = |list: &Value| match list {
            Value::Null => Ok(None),
            Value::Array(names) => {
                let names: Option<Vec<String>> =
                    names.iter().map(|name| name.as_str().map(str::to_owned)).collect();
                names.map(Some).ok_or("must list names of tools")
            }
            _ => Err("must be a list of names, or an object with `tool_names` or `read_only`"),
        };
        match value {
            Value::Null => Ok(None),
            Value::Object(fields) => {
                if fields.keys().any(|field| field != "tool_names" && field != "read_only") {
                    return Err("can have `tool_names` and `read_only`");
                }
                let read_only = match &value["read_only"] {
                    Value::Null => None,
                    Value::Bool(read_only) => Some(*read_only),
                    _ => return Err("must have true or false as `read_only`"),
                };
                Ok(Some(ToolFilter { names: names(&value["tool_names"])?, read_only }))
            }
            list => Ok(Some(ToolFilter { names: names(list)?, read_only: None })),
        }
    }

    fn has(&self, tool: &ToolInfo) -> bool {
        let hint = tool.annotations.as_ref().is_some_and(|hints| hints["readOnlyHint"] == true);
        let is_named = self.names.as_ref().is_none_or(|names| names.contains(&tool.name));
        is_named && self.read_only.is_none_or(|read_only| read_only == hint)
    }
}

impl Approval {
    fn new(value: &Value) -> Result<Approval, &'static str> {
        match (value, value.as_str()) {
            (Value::Null, _) | (_, Some("always")) => Ok(Approval::Always),
            (_, Some("never")) => Ok(Approval::Never),
            (Value::Object(fields), _) if fields.keys().all(|key| key == "always" || key == "never") => {
                let filter = |name: &str| ToolFilter::new(&value[name]);
                Ok(Approval::Some { always: filter("always")?, never: filter("never")? })
            }
            _ => Err("must be `always`, `never`, or an object with `always` or `never`"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(name: &str, read_only: bool) -> ToolInfo {
        let annotations = Some(json!({ "readOnlyHint": read_only }));
        ToolInfo { name: name.into(), description: None, input_schema: json!({}), annotations }
    }

    #[test]
    fn approval_and_filter_follow_their_fields() {
        let tools = [tool("read", true), tool("write", false), tool("list", true)];
        for (fields, allowed, asked) in [
            (json!({}), vec!["read", "write", "list"], vec!["read", "write", "list"]),
            (json!({ "require_approval": "never" }), vec!["read", "write", "list"], vec![]),
            (json!({ "allowed_tools": ["read"] }), vec!["read"], vec!["read", "write", "list"]),
            (
                json!({ "allowed_tools": { "read_only": true } }),
                vec!["read", "list"],
                vec!["read", "write", "list"],
            ),
            (
                json!({ "require_approval": { "never": { "tool_names": ["read", "list"] } } }),
                vec!["read", "write", "list"],
                vec!["write"],
            ),
            (
                json!({ "require_approval": { "always": { "tool_names": ["list"] }, "never": { "read_only": true } } }),
                vec!["read", "write", "list"],
                vec!["write", "list"],
            ),
        ] {
            let mut entry = fields.clone();
            entry["server_label"] = "files".into();
            let field = McpServerField::new(&entry, 0).unwrap();
            let names = |is_so: &dyn Fn(&ToolInfo) -> bool| {
                tools.iter().filter(|tool| is_so(tool)).map(|tool| tool.name.clone()).collect::<Vec<_>>()
            };
            assert_eq!(names(&|tool| field.allows(tool)), allowed, "{fields}");
            assert_eq!(names(&|tool| field.needs_approval(tool)), asked, "{fields}");
        }
    }

    #[test]
    fn invalid_field_is_named() {
        for (fields, param) in [
            (json!({}), "tools[3].server_label"),
            (json!({ "server_label": "a b" }), "tools[3].server_label"),
            (json!({ "server_label": "a", "server_url": 7 }), "tools[3].server_url"),
            (json!({ "server_label": "a", "headers": { "x": "y" } }), "tools[3].headers"),
            (json!({ "server_label": "a", "authorization": "t" }), "tools[3].authorization"),
            (json!({ "server_label": "a", "connector_id": "c" }), "tools[3].connector_id"),
            (json!({ "server_label": "a", "allowed_tools": "x" }), "tools[3].allowed_tools"),
            (json!({ "server_label": "a", "allowed_tools": [7] }), "tools[3].allowed_tools"),
            (json!({ "server_label": "a", "require_approval": "maybe" }), "tools[3].require_approval"),
            (
                json!({ "server_label": "a", "require_approval": { "often": {} } }),
                "tools[3].require_approval",
            ),
        ] {
            let error = McpServerField::new(&fields, 3).unwrap_err();
            assert_eq!(error.body.param.as_deref(), Some(param), "{fields}");
        }
    }
}

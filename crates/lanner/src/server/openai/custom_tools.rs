//! Custom tools, which take a text: the model calls them as functions of one text.

use std::collections::BTreeSet;

use chat::{grammar::lark_to_regex, tools::ToolSet};
use serde_json::{Value, json};

use super::error::ApiError;

/// The parameter of the function.
const INPUT: &str = "input";

/// The custom tools of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CustomTools {
    names: BTreeSet<String>,
    /// Where the request has them.
    params: BTreeSet<String>,
    /// Regular expressions that the texts of some of them match.
    patterns: Vec<(String, String)>,
}

impl CustomTools {
    /// Adds a tool, which the request has at `param`. Returns the function that the model is
    /// offered.
    ///
    /// # Errors
    /// 400: it has no name, or a format that cannot be followed.
    pub(super) fn add(&mut self, tool: &Value, param: &str) -> Result<Value, ApiError> {
        let Some(name) = tool["name"].as_str() else { return Err(not_a_string(format!("{param}.name"))) };
        let format = InputFormat::of(tool, param)?;
        self.names.insert(name.to_owned());
        self.params.insert(param.to_owned());
        let function = as_function(tool, name, &format);
        self.patterns.extend(format.pattern.map(|pattern| (name.to_owned(), pattern)));
        Ok(function)
    }

    /// Has the texts follow their grammars.
    pub(super) fn constrain(&self, tools: &mut ToolSet) {
        self.patterns.iter().for_each(|(name, pattern)| tools.set_pattern(name, INPUT, pattern));
    }

    pub(super) fn is_at(&self, param: &str) -> bool {
        self.params.contains(param)
    }

    pub(super) fn into_names(self) -> BTreeSet<String> {
        self.names
    }
}

/// A call of a custom tool, as that of its function.
pub(super) fn function_call(name: &str, input: &str) -> Value {
    json!({ "name": name, "arguments": json!({ INPUT: input }).to_string() })
}

/// An error of the function at an index, which says `tools[0].function`, with the name that `own`
/// has for it.
pub(super) fn rename_functions(mut error: ApiError, own: impl Fn(usize) -> Option<String>) -> ApiError {
    let Some(param) = error.body.param.take() else { return error };
    let index = param.strip_prefix("tools[").and_then(|rest| rest.split_once("].function"));
    let own = index.and_then(|(index, _)| {
        let own = own(index.parse().ok()?)?;
        Some((format!("tools[{index}].function"), own))
    });
    let rename = |text: String| match &own {
        Some((function, own)) => text.replace(function, own),
        None => text,
    };
    error.body.message = rename(error.body.message);
    error.body.param = Some(rename(param));
    error
}

pub(super) fn not_a_string(param: String) -> ApiError {
    let message = format!("{param} must be a string");
    ApiError::invalid(param, message)
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

/// The function of one text that the model is offered.
fn as_function(tool: &Value, name: &str, format: &InputFormat) -> Value {
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

//! Tools whose arguments are written one by one: their parameters, and the JSON made of them.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::{
    Tool,
    definition::{InvalidTools, invalid},
    literal,
    reader::{Reader, Result},
};

/// Top-level keywords that are honoured or do not constrain arguments.
const KNOWN: [&str; 13] = [
    "type",
    "properties",
    "required",
    "additionalProperties",
    "description",
    "title",
    "$schema",
    "$id",
    "$defs",
    "definitions",
    "default",
    "examples",
    "$comment",
];
const TYPES: [&str; 6] = ["array", "boolean", "null", "number", "object", "string"];
const MAX_REFS: usize = 16;

/// One parameter of a tool.
#[derive(Debug, Clone)]
pub(super) struct Parameter {
    pub name: String,
    /// With the definitions that it may refer to.
    pub schema: Value,
    pub required: bool,
    /// The JSON types of its values; integers are numbers.
    pub types: BTreeSet<&'static str>,
}

/// The parameters of a tool: those in `properties`, then required ones that are not declared there.
///
/// # Errors
/// The schema constrains the arguments as a whole.
pub(super) fn of(tool: &Tool) -> std::result::Result<Vec<Parameter>, InvalidTools> {
    let none = Map::new();
    let schema = tool.parameters.as_object().unwrap_or(&none);
    if let Some(keyword) = schema.keys().find(|key| !KNOWN.contains(&key.as_str())) {
        let message = format!(
            "the parameters of `{}` use `{keyword}`; this model writes arguments one by one, so only \
             `properties` and `required` can be honoured at the top",
            tool.name
        );
        return Err(invalid("tools", message));
    }
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .map_or_else(Vec::new, |names| names.iter().filter_map(Value::as_str).collect());
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
    let undeclared = required.iter().filter(|name| !properties.contains_key(**name));
    let names = properties.keys().map(String::as_str).chain(undeclared.copied());
    Ok(names.map(|name| parameter(tool, name, required.contains(&name))).collect())
}

/// A parameter by name; any value if the schema does not declare it.
pub(super) fn parameter(tool: &Tool, name: &str, required: bool) -> Parameter {
    let mut schema = tool.parameters["properties"].get(name).cloned().unwrap_or_else(|| json!({}));
    if let Some(schema) = schema.as_object_mut() {
        for key in ["$defs", "definitions"] {
            if let Some(definitions) = tool.parameters.get(key) {
                schema.insert(key.to_owned(), definitions.clone());
            }
        }
    }
    let types = types(&schema, &tool.parameters, MAX_REFS);
    Parameter { name: name.to_owned(), schema, required, types }
}

/// The JSON types that a schema accepts, as far as its keywords restrict them; else all.
fn types(schema: &Value, root: &Value, refs: usize) -> BTreeSet<&'static str> {
    let named = |name: &str| match name {
        "integer" => Some("number"),
        name => TYPES.into_iter().find(|known| *known == name),
    };
    let mut accepted: BTreeSet<&'static str> = match &schema["type"] {
        Value::String(name) => named(name).into_iter().collect(),
        Value::Array(names) => names.iter().filter_map(Value::as_str).filter_map(named).collect(),
        _ => TYPES.into(),
    };
    let values = schema["enum"].as_array().map(Vec::as_slice);
    if let Some(values) = values.or(schema.get("const").map(std::slice::from_ref)) {
        let of_values: BTreeSet<&str> = values.iter().map(type_of).collect();
        accepted.retain(|name| of_values.contains(name));
    }
    if let (Some(pointer), 1..) = (schema["$ref"].as_str().and_then(|target| target.strip_prefix('#')), refs)
    {
        let target = root.pointer(pointer).map(|target| types(target, root, refs - 1));
        accepted.retain(|name| target.as_ref().is_none_or(|target| target.contains(name)));
    }
    for keyword in ["anyOf", "oneOf"] {
        if let (Some(options), 1..) = (schema[keyword].as_array(), refs) {
            let any: BTreeSet<_> = options.iter().flat_map(|option| types(option, root, refs - 1)).collect();
            accepted.retain(|name| any.contains(name));
        }
    }
    accepted
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

impl Parameter {
    pub(super) fn is_text(&self) -> bool {
        self.types.len() == 1 && self.types.contains("string")
    }

    /// Whether its values are written without quotes.
    pub(super) fn is_written_as_text(&self) -> bool {
        let free = ["enum", "const", "anyOf", "oneOf", "allOf", "$ref"]
            .iter()
            .all(|key| self.schema.get(key).is_none());
        self.is_text() || (free && self.types.iter().all(|name| ["null", "string"].contains(name)))
    }

    /// The JSON of a value written as text.
    fn json(&self, text: &str) -> String {
        let parsed: Option<Value> = match text.trim() {
            "True" => Some(true.into()),
            "False" => Some(false.into()),
            "None" => Some(Value::Null),
            text => serde_json::from_str(text).ok().or_else(|| literal::whole(text)),
        };
        let fits = |value: &Value| self.types.contains(type_of(value)) || !self.types.contains("string");
        match parsed.filter(fits) {
            Some(_) if serde_json::from_str::<Value>(text.trim()).is_ok() => text.trim().to_owned(),
            Some(value) => value.to_string(),
            None => Value::from(text).to_string(),
        }
    }
}

/// Writes the arguments of the current call, member by member.
#[derive(Debug)]
pub(super) struct Members<'a> {
    reader: &'a Reader,
    any: bool,
}

impl<'a> Members<'a> {
    pub(super) fn new(reader: &'a Reader) -> Self {
        reader.arguments("{");
        Self { reader, any: false }
    }

    /// Reads text up to one of `ends` as the value of `key`; strings are passed on as they arrive.
    pub(super) async fn text_value(&mut self, key: &str, tool: &Tool, ends: &[&str]) -> Result<()> {
        let parameter = parameter(tool, key, false);
        self.key(key);
        if !parameter.is_text() {
            let text = self.reader.until(ends).await?;
            self.reader.arguments(&parameter.json(&text));
            return Ok(());
        }
        self.reader.arguments("\"");
        loop {
            let (text, ended) = self.reader.piece_before(ends).await?;
            let quoted = Value::from(text).to_string();
            self.reader.arguments(&quoted[1..quoted.len() - 1]);
            if ended {
                self.reader.arguments("\"");
                return Ok(());
            }
        }
    }

    pub(super) fn value(&mut self, key: &str, value: &Value) {
        self.key(key);
        self.reader.arguments(&value.to_string());
    }

    pub(super) fn end(&self) {
        self.reader.arguments("}");
    }

    fn key(&mut self, key: &str) {
        let separator = if std::mem::replace(&mut self.any, true) { ", " } else { "" };
        self.reader.arguments(&format!("{separator}{}: ", Value::from(key)));
    }
}

//! JSON Schemas as given to llguidance: keywords that it would not honour are refused by name.

use serde_json::{Map, Value, json};

use super::schema_rewrite::rewritten;
use crate::{Error, Result};

/// Whitespace between two tokens of JSON: enough to indent, bounded so that a model cannot write
/// whitespace forever.
const WHITESPACE: &str = r"[\x20\x0A\x0D\x09]{1,64}";

/// Keywords that restrict a value in ways that no grammar here follows.
const UNSUPPORTED: [&str; 15] = [
    "$dynamicRef",
    "$recursiveRef",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "if",
    "maxContains",
    "minContains",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];

/// Keywords whose value is a schema, or several.
pub(super) const SUBSCHEMAS: [&str; 6] =
    ["additionalItems", "additionalProperties", "allOf", "anyOf", "items", "oneOf"];
/// Keywords whose value is an object of schemas; `prefixItems`, an array of them.
pub(super) const NAMED_SUBSCHEMAS: [&str; 5] =
    ["$defs", "definitions", "patternProperties", "prefixItems", "properties"];

/// The schema with our llguidance options.
///
/// # Errors
/// It has a keyword that cannot be honoured.
pub(super) fn prepared(schema: &Value) -> Result<Value> {
    let schema = &rewritten(schema);
    let mut object = match schema {
        Value::Object(object) => object.clone(),
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return Err(Error::Grammar("the schema `false` allows nothing".into())),
        _ => return Err(Error::Grammar("a JSON Schema is an object".into())),
    };
    check(schema, "#")?;
    object.insert("x-guidance".into(), json!({ "whitespace_pattern": WHITESPACE }));
    Ok(Value::Object(object))
}

/// Refuses keywords below `path`.
fn check(schema: &Value, path: &str) -> Result<()> {
    let Value::Object(schema) = schema else { return Ok(()) };
    for (keyword, argument) in schema {
        let refuse = |why: &str| Err(Error::Grammar(format!("the keyword `{keyword}` at {path} {why}")));
        match (&**keyword, argument) {
            ("uniqueItems", Value::Bool(true)) => return refuse("is not supported"),
            ("$ref", Value::String(target)) if !target.starts_with('#') => {
                return refuse("refers to another document");
            }
            ("$id" | "id", Value::String(_)) if path != "#" => {
                return refuse("would change what references mean");
            }
            (name, _) if UNSUPPORTED.contains(&name) => return refuse("is not supported"),
            _ => {}
        }
        let below = format!("{path}/{keyword}");
        match argument {
            Value::Array(schemas) if SUBSCHEMAS.contains(&&**keyword) || keyword == "prefixItems" => {
                for (index, schema) in schemas.iter().enumerate() {
                    check(schema, &format!("{below}/{index}"))?;
                }
            }
            Value::Object(_) if SUBSCHEMAS.contains(&&**keyword) => check(argument, &below)?,
            Value::Object(schemas) if NAMED_SUBSCHEMAS.contains(&&**keyword) => {
                for (name, schema) in schemas {
                    check(schema, &format!("{below}/{name}"))?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

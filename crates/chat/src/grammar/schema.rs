//! JSON Schemas as llguidance gets them.

use serde_json::{Map, Value, json};

use crate::Result;

/// Whitespace between two tokens of JSON: enough to indent, too little to write nothing else.
const WHITESPACE: &str = r"[\x20\x0A\x0D\x09]{1,64}";

/// A schema with this program's options.
///
/// # Errors
/// It has a keyword that cannot be honoured.
pub fn prepared(schema: &Value) -> Result<Value> {
    let mut object = match schema {
        Value::Object(object) => object.clone(),
        Value::Bool(true) => Map::new(),
        other => return Ok(other.clone()),
    };
    object.insert("x-guidance".into(), json!({ "whitespace_pattern": WHITESPACE }));
    Ok(Value::Object(object))
}

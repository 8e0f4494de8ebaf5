//! Whether two JSON Schemas provably accept no common value.

use std::collections::BTreeSet;

use serde_json::Value;

const TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];
/// Schemas are followed this deep.
const MAX_DEPTH: usize = 8;

/// `false` if it is not known. References are resolved in `root`.
pub(super) fn are_disjoint(a: &Value, b: &Value, root: &Value) -> bool {
    disjoint(a, b, root, MAX_DEPTH)
}

/// The types that a schema's `type` allows; a number may be an integer.
pub(super) fn types(schema: &Value) -> BTreeSet<&'static str> {
    let mut named: BTreeSet<&'static str> = match &schema["type"] {
        Value::String(name) => TYPES.into_iter().filter(|known| known == name).collect(),
        Value::Array(names) => {
            TYPES.into_iter().filter(|known| names.iter().any(|name| name == known)).collect()
        }
        _ => TYPES.into(),
    };
    if named.contains("number") {
        named.insert("integer");
    }
    named
}

fn disjoint(a: &Value, b: &Value, root: &Value, depth: usize) -> bool {
    if a == &Value::Bool(false) || b == &Value::Bool(false) {
        return true;
    }
    if depth == 0 || !a.is_object() || !b.is_object() {
        return false;
    }
    let deeper = |a: &Value, b: &Value| disjoint(a, b, root, depth - 1);
    for (one, other) in [(a, b), (b, a)] {
        if let Some(target) = one["$ref"].as_str() {
            let target = target.strip_prefix('#').and_then(|pointer| root.pointer(pointer));
            return target.is_some_and(|target| deeper(target, other));
        }
        let list = |keyword: &str| one[keyword].as_array().into_iter().flatten();
        let all_excluded =
            |keyword: &str| one[keyword].is_array() && list(keyword).all(|option| deeper(option, other));
        if list("allOf").any(|part| deeper(part, other)) || all_excluded("anyOf") || all_excluded("oneOf") {
            return true;
        }
        if values(one).is_some_and(|values| values.iter().all(|value| excludes(other, value))) {
            return true;
        }
    }
    let common: BTreeSet<&str> = types(a).intersection(&types(b)).copied().collect();
    common.is_empty() || common == ["object"].into() && objects_are_disjoint(a, b, root, depth - 1)
}

/// A property that one of them requires has no value for both.
fn objects_are_disjoint(a: &Value, b: &Value, root: &Value, depth: usize) -> bool {
    let required = [a, b].into_iter().flat_map(|schema| schema["required"].as_array().into_iter().flatten());
    let property = |schema: &Value, name: &str| {
        let is_open = schema["patternProperties"].is_null();
        match schema["properties"].get(name) {
            Some(property) => property.clone(),
            None if is_open && !schema["additionalProperties"].is_null() => {
                schema["additionalProperties"].clone()
            }
            None => Value::Bool(true),
        }
    };
    let mut names = required.filter_map(Value::as_str);
    names.any(|name| disjoint(&property(a, name), &property(b, name), root, depth))
}

fn values(schema: &Value) -> Option<&[Value]> {
    let choices = schema["enum"].as_array().map(Vec::as_slice);
    choices.or_else(|| schema.get("const").map(std::slice::from_ref))
}

/// Whether a schema's types or values leave out a value.
fn excludes(schema: &Value, value: &Value) -> bool {
    let own_types: &[&str] = match value {
        Value::Null => &["null"],
        Value::Bool(_) => &["boolean"],
        Value::Number(_) => &["number", "integer"],
        Value::String(_) => &["string"],
        Value::Array(_) => &["array"],
        Value::Object(_) => &["object"],
    };
    let types = types(schema);
    let has_type = own_types.iter().any(|name| types.contains(name));
    !has_type || values(schema).is_some_and(|values| !values.iter().any(|other| may_equal(other, value)))
}

/// Numbers may be equal in another form, also within arrays and objects.
fn may_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(_), Value::Array(_)) | (Value::Object(_), Value::Object(_)) => true,
        _ => a == b,
    }
}

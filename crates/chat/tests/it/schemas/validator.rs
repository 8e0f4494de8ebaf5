//! Validates JSON against the keywords that grammars honour; the suite's own cases check it.

use regex::Regex;
use serde_json::{Map, Value};

/// Whether `value` is valid against `schema`, a part of `root`; `None` if a pattern is beyond the
/// regex crate.
pub(super) fn is_valid(schema: &Value, value: &Value, root: &Value) -> Option<bool> {
    // A custom vocabulary may give keywords another meaning.
    let draft = root.get("$schema").and_then(Value::as_str).unwrap_or("json-schema.org");
    if !draft.contains("json-schema.org") {
        return None;
    }
    let schema = match schema {
        Value::Object(schema) => schema,
        other => return Some(other != &Value::Bool(false)),
    };
    for (keyword, argument) in schema {
        if !keyword_holds(keyword, argument, schema, value, root)? {
            return Some(false);
        }
    }
    Some(true)
}

fn keyword_holds(
    keyword: &str,
    argument: &Value,
    schema: &Map<String, Value>,
    value: &Value,
    root: &Value,
) -> Option<bool> {
    let each = |schemas: &Value| -> Option<Vec<bool>> {
        schemas.as_array()?.iter().map(|schema| is_valid(schema, value, root)).collect()
    };
    Some(match keyword {
        "$ref" => is_valid(resolve(argument.as_str()?, root)?, value, root)?,
        "const" => equal(argument, value),
        "enum" => argument.as_array()?.iter().any(|option| equal(option, value)),
        "type" => match argument {
            Value::Array(types) => types.iter().any(|name| has_type(value, name)),
            name => has_type(value, name),
        },
        "allOf" => each(argument)?.iter().all(|valid| *valid),
        "anyOf" => each(argument)?.iter().any(|valid| *valid),
        "oneOf" => each(argument)?.iter().filter(|valid| **valid).count() == 1,
        "not" => !is_valid(argument, value, root)?,
        _ => match value {
            Value::Number(number) => number_holds(keyword, argument, schema, number.as_f64()?),
            Value::String(text) => string_holds(keyword, argument, text)?,
            Value::Array(items) => array_holds(keyword, argument, schema, items, root)?,
            Value::Object(object) => object_holds(keyword, argument, schema, object, root)?,
            _ => true,
        },
    })
}

fn resolve<'a>(reference: &str, root: &'a Value) -> Option<&'a Value> {
    root.pointer(reference.strip_prefix('#')?)
}

/// Numbers are equal whatever their form.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| equal(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| equal(a, b)))
        }
        _ => a == b,
    }
}

fn has_type(value: &Value, name: &Value) -> bool {
    match name.as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("string") => value.is_string(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some("number") => value.is_number(),
        Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        _ => false,
    }
}

fn number_holds(keyword: &str, argument: &Value, schema: &Map<String, Value>, number: f64) -> bool {
    // Draft 4's exclusive limits are booleans.
    let excludes = |keyword: &str| schema.get(keyword) == Some(&Value::Bool(true));
    let Some(limit) = argument.as_f64() else { return true };
    match keyword {
        "minimum" if excludes("exclusiveMinimum") => number > limit,
        "maximum" if excludes("exclusiveMaximum") => number < limit,
        "minimum" => number >= limit,
        "maximum" => number <= limit,
        "exclusiveMinimum" => number > limit,
        "exclusiveMaximum" => number < limit,
        "multipleOf" => {
            let quotient = number / limit;
            (quotient - quotient.round()).abs() <= 1e-9 * quotient.abs().max(1.0)
        }
        _ => true,
    }
}

fn string_holds(keyword: &str, argument: &Value, text: &str) -> Option<bool> {
    let length = || text.chars().count() as u64;
    Some(match keyword {
        "minLength" => length() >= argument.as_f64()? as u64,
        "maxLength" => length() <= argument.as_f64()? as u64,
        "pattern" => Regex::new(argument.as_str()?).ok()?.is_match(text),
        _ => true,
    })
}

fn array_holds(
    keyword: &str,
    argument: &Value,
    schema: &Map<String, Value>,
    items: &[Value],
    root: &Value,
) -> Option<bool> {
    let all = |schemas: &[Value]| -> Option<bool> {
        let valid: Option<Vec<bool>> =
            schemas.iter().zip(items).map(|(schema, item)| is_valid(schema, item, root)).collect();
        Some(valid?.iter().all(|valid| *valid))
    };
    let rest = |schema: &Value, skipped: usize| -> Option<bool> {
        let valid: Option<Vec<bool>> =
            items.iter().skip(skipped).map(|item| is_valid(schema, item, root)).collect();
        Some(valid?.iter().all(|valid| *valid))
    };
    let length = |key: &str| schema.get(key).and_then(Value::as_array).map_or(0, Vec::len);
    Some(match (keyword, argument) {
        ("minItems", limit) => items.len() as f64 >= limit.as_f64()?,
        ("maxItems", limit) => items.len() as f64 <= limit.as_f64()?,
        // Before draft 2020-12, `items` could be what `prefixItems` is now.
        ("prefixItems", Value::Array(schemas)) | ("items", Value::Array(schemas)) => all(schemas)?,
        ("items", schema) => rest(schema, length("prefixItems"))?,
        // Where nothing else evaluates items.
        ("unevaluatedItems", extra) if !schema.contains_key("items") && is_plain(schema) => {
            rest(extra, length("prefixItems"))?
        }
        ("additionalItems", extra) if schema.get("items").is_some_and(Value::is_array) => {
            rest(extra, length("items"))?
        }
        _ => true,
    })
}

fn object_holds(
    keyword: &str,
    argument: &Value,
    schema: &Map<String, Value>,
    object: &Map<String, Value>,
    root: &Value,
) -> Option<bool> {
    let named = |key: &str| schema.get(key).and_then(Value::as_object);
    for (name, value) in object {
        let holds = match keyword {
            "properties" => argument.get(name).map_or(Some(true), |schema| is_valid(schema, value, root))?,
            "patternProperties" => {
                let mut all = true;
                for (pattern, schema) in argument.as_object()? {
                    all &= !Regex::new(pattern).ok()?.is_match(name) || is_valid(schema, value, root)?;
                }
                all
            }
            "propertyNames" => is_valid(argument, &Value::from(name.clone()), root)?,
            "unevaluatedProperties" if schema.contains_key("additionalProperties") || !is_plain(schema) => {
                true
            }
            "additionalProperties" | "unevaluatedProperties" => {
                let mut known = named("properties").is_some_and(|names| names.contains_key(name));
                for pattern in named("patternProperties").iter().flat_map(|patterns| patterns.keys()) {
                    known |= Regex::new(pattern).ok()?.is_match(name);
                }
                known || is_valid(argument, value, root)?
            }
            _ => true,
        };
        if !holds {
            return Some(false);
        }
    }
    Some(match keyword {
        "required" => argument.as_array().is_none_or(|names| {
            names.iter().all(|name| name.as_str().is_some_and(|name| object.contains_key(name)))
        }),
        "dependencies" | "dependentRequired" | "dependentSchemas" => {
            let mut all = true;
            for (_, dependent) in argument.as_object()?.iter().filter(|(name, _)| object.contains_key(*name))
            {
                let present = |name: &Value| name.as_str().is_some_and(|name| object.contains_key(name));
                all &= match dependent {
                    Value::Array(names) => names.iter().all(present),
                    schema => is_valid(schema, &Value::Object(object.clone()), root)?,
                };
            }
            all
        }
        "minProperties" => object.len() as f64 >= argument.as_f64()?,
        "maxProperties" => object.len() as f64 <= argument.as_f64()?,
        _ => true,
    })
}

/// Whether no keyword applies other schemas to the same value.
fn is_plain(schema: &Map<String, Value>) -> bool {
    let applicators =
        ["$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "contains"];
    applicators.iter().all(|keyword| !schema.contains_key(*keyword))
}

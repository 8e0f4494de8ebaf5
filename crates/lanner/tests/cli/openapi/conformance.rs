//! Checks values against the schemas of the document, and that the schemas name every property.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// The document of a server.
pub(crate) struct Document(pub Value);

impl Document {
    /// `METHOD /path` of every operation.
    pub(crate) fn operations(&self) -> Vec<String> {
        let paths = self.0["paths"].as_object().unwrap().iter();
        let of_path = |(path, methods): (&String, &Value)| -> Vec<String> {
            let methods = methods.as_object().unwrap().keys();
            methods.map(|method| format!("{} {path}", method.to_uppercase())).collect()
        };
        paths.flat_map(of_path).collect()
    }

    /// Those that answer in JSON with 200.
    pub(crate) fn json_operations(&self) -> Vec<String> {
        let is_json = |operation: &String| !self.content(operation, 200)["application/json"].is_null();
        self.operations().into_iter().filter(is_json).collect()
    }

    fn content(&self, operation: &str, status: u16) -> &Value {
        let (method, path) = operation.split_once(' ').unwrap();
        let responses = &self.0["paths"][path][method.to_lowercase()]["responses"];
        &responses[status.to_string()]["content"]
    }

    /// The schema of a part of a streamed answer.
    pub(crate) fn item_schema(&self, operation: &str) -> Option<&Value> {
        let content = self.content(operation, 200).as_object()?;
        content.values().find_map(|media| media.get("x-itemSchema"))
    }

    pub(crate) fn check_answer(&self, operation: &str, status: u16, value: &Value) {
        let schema = &self.content(operation, status)["application/json"]["schema"];
        assert!(!schema.is_null(), "{operation} is not documented to answer {status}: {value}");
        self.check(operation, schema, value);
    }

    pub(crate) fn check_item(&self, operation: &str, value: &Value) {
        self.check(operation, self.item_schema(operation).unwrap(), value);
    }

    fn check(&self, operation: &str, schema: &Value, value: &Value) {
        if let Err(fault) = self.matches(schema, value, operation) {
            panic!("{fault} of {value}");
        }
    }

    fn target(&self, reference: &str) -> &Value {
        self.0.pointer(reference.trim_start_matches('#')).unwrap()
    }

    fn matches(&self, schema: &Value, value: &Value, at: &str) -> Result<(), String> {
        let Some(schema) = schema.as_object() else { return Ok(()) };
        if let Some(reference) = schema.get("$ref") {
            self.matches(self.target(reference.as_str().unwrap()), value, at)?;
        }
        check_type(schema, value, at)?;
        for any in ["anyOf", "oneOf"].iter().filter_map(|key| schema.get(*key)?.as_array()) {
            let fault = |variant: &Value| self.matches(&beside(schema, variant), value, at).err();
            let faults: Vec<String> = any.iter().filter_map(fault).collect();
            if faults.len() == any.len() {
                return Err(faults.join(", or "));
            }
        }
        match value {
            Value::Object(fields) => self.matches_object(schema, fields, at),
            Value::Array(items) => {
                let of_items = |schema: &Value| {
                    items
                        .iter()
                        .enumerate()
                        .try_for_each(|(i, item)| self.matches(schema, item, &format!("{at}[{i}]")))
                };
                schema.get("items").map_or(Ok(()), of_items)
            }
            _ => Ok(()),
        }
    }

    fn matches_object(
        &self,
        schema: &Map<String, Value>,
        fields: &Map<String, Value>,
        at: &str,
    ) -> Result<(), String> {
        for name in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
            if !fields.contains_key(name.as_str().unwrap()) {
                return Err(format!("{at} lacks {name}"));
            }
        }
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return Ok(()) };
        for (name, schema) in properties {
            if let Some(value) = fields.get(name) {
                self.matches(schema, value, &format!("{at}.{name}"))?;
            }
        }
        let mut known = BTreeSet::new();
        self.names(&Value::Object(schema.clone()), &mut known);
        match fields.keys().find(|name| !known.contains(*name)) {
            Some(name) if !schema.contains_key("additionalProperties") => {
                Err(format!("{at}.{name} is not documented"))
            }
            _ => Ok(()),
        }
    }

    /// Names of properties, of alternatives too.
    fn names(&self, schema: &Value, names: &mut BTreeSet<String>) {
        let properties = schema.get("properties").and_then(Value::as_object);
        names.extend(properties.into_iter().flat_map(|properties| properties.keys().cloned()));
        for part in
            ["anyOf", "oneOf", "allOf"].iter().filter_map(|key| schema.get(*key)?.as_array()).flatten()
        {
            self.names(part, names);
        }
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            self.names(self.target(reference), names);
        }
    }
}

/// An alternative that also allows the properties of the schema that has it.
fn beside(schema: &Map<String, Value>, variant: &Value) -> Value {
    let mut variant = variant.clone();
    if let (Some(Value::Object(own)), Some(Value::Object(more))) =
        (schema.get("properties"), variant.get_mut("properties"))
    {
        more.extend(own.clone());
    }
    variant
}

fn check_type(schema: &Map<String, Value>, value: &Value, at: &str) -> Result<(), String> {
    let is = |kind: &str| match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("the type {other}"),
    };
    let fits = match schema.get("type") {
        Some(Value::String(kind)) => is(kind),
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| is(kind.as_str().unwrap())),
        _ => true,
    };
    let is_listed = schema.get("enum").and_then(Value::as_array).is_none_or(|all| all.contains(value));
    let is_constant = schema.get("const").is_none_or(|constant| constant == value);
    match fits && is_listed && is_constant {
        true => Ok(()),
        false => Err(format!("{at} is {value}, not {}", Value::Object(schema.clone()))),
    }
}

//! JSON Schemas in terms of the keywords that grammars follow: keywords are replaced where others
//! accept exactly the same values (formats: some of them), and left to be refused elsewhere.

use serde_json::{Map, Value, json};

use super::{
    schema::{NAMED_SUBSCHEMAS, SUBSCHEMAS},
    schema_disjoint::{are_disjoint, types},
};

type Object = Map<String, Value>;

/// Keywords that are replaced, so that no reference may lead through them.
const MOVED: [&str; 7] = [
    "/oneOf/",
    "/not",
    "/dependencies/",
    "/dependentSchemas/",
    "/propertyNames",
    "/unevaluatedProperties",
    "/unevaluatedItems",
];
/// Keywords by which properties or items count as evaluated elsewhere.
const APPLICATORS: [&str; 10] = [
    "$ref",
    "$dynamicRef",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "dependentSchemas",
    "dependencies",
    "contains",
];
/// Each dependency doubles the cases.
const MAX_DEPENDENCIES: usize = 3;
/// Formats that the compiler follows.
const FOLLOWED: [&str; 10] =
    ["date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
/// Formats of the standard that no expression here describes.
const NOT_FOLLOWED: [&str; 2] = ["regex", "uri-template"];
const JSON_POINTER: &str = "^(?:/(?:[^/~]|~[01])*)*$";
const RELATIVE_JSON_POINTER: &str = "^(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^/~]|~[01])*)*)$";
/// The part of RFC 3986's references that has a plain host, and no colon in the first segment.
const URI_REFERENCE: &str = concat!(
    r"^(?:[A-Za-z][A-Za-z0-9+.\-]*:)?",
    r"(?://[A-Za-z0-9.\-]*(?::[0-9]*)?(?:/(?:[A-Za-z0-9\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2})*)*|",
    r"/?(?:(?:[A-Za-z0-9\-._~!$&'()*+,;=@]|%[0-9A-Fa-f]{2})+",
    r"(?:/(?:[A-Za-z0-9\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2})*)*)?)",
    r"(?:\?(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?]|%[0-9A-Fa-f]{2})*)?",
    r"(?:#(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?]|%[0-9A-Fa-f]{2})*)?$"
);

/// The same schema with fewer keywords.
pub(super) fn rewritten(schema: &Value) -> Value {
    match has_reference(schema, &|target| MOVED.iter().any(|moved| target.contains(moved))) {
        true => schema.clone(),
        false => Rewriter { root: schema }.schema(schema, true),
    }
}

struct Rewriter<'a> {
    root: &'a Value,
}

impl Rewriter<'_> {
    fn schema(&self, schema: &Value, is_root: bool) -> Value {
        let Value::Object(schema) = schema else { return schema.clone() };
        let mut object = schema.clone();
        for (keyword, argument) in &mut object {
            let below = |schema: &mut Value| *schema = self.schema(schema, false);
            let holds_schemas = SUBSCHEMAS.contains(&&**keyword) || keyword == "not";
            match argument {
                Value::Array(schemas) if holds_schemas || keyword == "prefixItems" => {
                    schemas.iter_mut().for_each(below);
                }
                Value::Object(_) if holds_schemas => below(argument),
                Value::Object(named) if NAMED_SUBSCHEMAS.contains(&&**keyword) => {
                    named.values_mut().for_each(below);
                }
                _ => {}
            }
        }
        if !is_root {
            drop_id(&mut object);
        }
        format(&mut object);
        if !self.is_older_draft() {
            unevaluated(&mut object);
        }
        property_names(&mut object);
        unique_items(&mut object);
        self.dependencies(&mut object);
        negation(&mut object);
        self.one_of(&mut object);
        Value::Object(object)
    }

    /// Whether it names a draft before 2019, whose keywords are fewer.
    fn is_older_draft(&self) -> bool {
        self.root["$schema"].as_str().is_some_and(|draft| draft.contains("/draft-0"))
    }

    /// Alternatives of which no two accept the same value.
    fn one_of(&self, object: &mut Object) {
        let Some(Value::Array(options)) = object.get("oneOf") else { return };
        let typed = |option: &Value| match option {
            Value::Object(fields) if !fields.contains_key("type") && object.contains_key("type") => {
                let mut fields = fields.clone();
                fields.insert("type".into(), object["type"].clone());
                Value::Object(fields)
            }
            other => other.clone(),
        };
        let all: Vec<Value> = options.iter().map(typed).collect();
        let disjoint = all
            .iter()
            .enumerate()
            .all(|(at, option)| all[at + 1..].iter().all(|other| are_disjoint(option, other, self.root)));
        let options = if disjoint { Some(options.clone()) } else { required_alone(options) };
        if let Some(options) = options {
            object.remove("oneOf");
            conjoin(object, json!({ "anyOf": options }));
        }
    }

    /// Either the property is missing, or what depends on it holds.
    fn dependencies(&self, object: &mut Object) {
        const KEYWORDS: [&str; 3] = ["dependencies", "dependentRequired", "dependentSchemas"];
        let all = KEYWORDS.map(|keyword| object.get(keyword).and_then(Value::as_object).cloned());
        let all: Vec<(String, Value)> = all.into_iter().flatten().flatten().collect();
        if all.len() > MAX_DEPENDENCIES {
            return;
        }
        KEYWORDS.iter().for_each(|keyword| _ = object.remove(*keyword));
        for (name, dependent) in all {
            let then = match dependent {
                Value::Array(mut names) => {
                    names.insert(0, name.clone().into());
                    json!({ "required": names })
                }
                schema => json!({ "required": [name], "allOf": [self.schema(&schema, false)] }),
            };
            conjoin(object, json!({ "anyOf": [without(&name), then] }));
        }
    }
}

/// Alternatives that each require other properties and nothing else: the others must be missing.
fn required_alone(options: &[Value]) -> Option<Vec<Value>> {
    let names = |option: &Value| -> Option<Vec<String>> {
        let fields = option.as_object().filter(|fields| fields.len() == 1)?;
        let names = fields.get("required")?.as_array()?;
        names.iter().map(|name| name.as_str().map(str::to_owned)).collect()
    };
    let all: Vec<Vec<String>> = options.iter().map(names).collect::<Option<_>>()?;
    let mut alone = vec![];
    for (at, own) in all.iter().enumerate() {
        let others: Vec<&Vec<String>> =
            all.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, names)| names).collect();
        // "Not both of two properties" is no schema without `not`.
        let others: Vec<&String> = others
            .into_iter()
            .map(|names| <&[String; 1]>::try_from(&names[..]).ok().map(|[name]| name))
            .collect::<Option<_>>()?;
        if others.iter().any(|name| own.contains(*name)) {
            continue;
        }
        let missing: Object = others.into_iter().map(|name| (name.clone(), false.into())).collect();
        alone.push(json!({ "type": "object", "required": own, "properties": missing }));
    }
    (!alone.is_empty()).then_some(alone)
}

fn without(name: &str) -> Value {
    json!({ "properties": { name: false } })
}

/// Adds a schema that must hold too.
fn conjoin(object: &mut Object, schema: Value) {
    match object.get_mut("allOf") {
        Some(Value::Array(all)) => all.push(schema),
        _ => _ = object.insert("allOf".into(), json!([schema])),
    }
}

/// An identifier changes nothing if no reference is resolved against it.
fn drop_id(object: &mut Object) {
    let whole = Value::Object(object.clone());
    if !has_reference(&whole, &|_| true) {
        object.retain(|keyword, argument| !(["id", "$id"].contains(&&**keyword) && argument.is_string()));
    }
}

/// Formats that the standard does not define are annotations.
fn format(object: &mut Object) {
    let Some(Value::String(name)) = object.get("format") else { return };
    let known = match &**name {
        name if FOLLOWED.contains(&name) || NOT_FOLLOWED.contains(&name) => return,
        "idn-email" => json!({ "format": "email" }),
        "idn-hostname" => json!({ "format": "hostname" }),
        "iri" => json!({ "format": "uri" }),
        "iri-reference" | "uri-reference" => json!({ "pattern": URI_REFERENCE }),
        "json-pointer" => json!({ "pattern": JSON_POINTER }),
        "relative-json-pointer" => json!({ "pattern": RELATIVE_JSON_POINTER }),
        _ => Value::Null,
    };
    object.remove("format");
    if !known.is_null() {
        conjoin(object, known);
    }
}

/// Without other keywords that look at properties or items, these are the ones that remain.
fn unevaluated(object: &mut Object) {
    if APPLICATORS.iter().any(|keyword| object.contains_key(*keyword)) {
        return;
    }
    for (keyword, rest) in [("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")]
    {
        let is_list = object.get(rest).is_some_and(Value::is_array);
        if let Some(schema) = object.get(keyword).filter(|_| !is_list).cloned() {
            object.remove(keyword);
            object.entry(rest).or_insert(schema);
        }
    }
}

fn property_names(object: &mut Object) {
    let Some(names) = object.get("propertyNames") else { return };
    let is_free = names == &json!({ "type": "string" }) || names == &json!({}) || names == &Value::Bool(true);
    let pattern = names["pattern"].as_str().filter(|_| {
        let only = |keyword: &String| keyword == "pattern" || keyword == "type" && names["type"] == "string";
        names.as_object().is_some_and(|names| names.keys().all(only))
    });
    let pattern = pattern.map(str::to_owned);
    let has_others = ["properties", "patternProperties", "unevaluatedProperties"].iter();
    if is_free {
        object.remove("propertyNames");
    } else if let Some(pattern) = pattern.filter(|_| has_others.clone().all(|key| !object.contains_key(*key)))
    {
        object.remove("propertyNames");
        let value = object.get("additionalProperties").cloned().unwrap_or(true.into());
        object.insert("patternProperties".into(), json!({ pattern: value }));
        object.insert("additionalProperties".into(), false.into());
    }
}

/// One item is always unique.
fn unique_items(object: &mut Object) {
    if object.get("maxItems").and_then(Value::as_u64).is_some_and(|most| most <= 1) {
        object.remove("uniqueItems");
    }
}

fn negation(object: &mut Object) {
    let Some(Value::Object(negated)) = object.get("not") else { return };
    let mut fields = negated.iter();
    let (Some((keyword, argument)), None) = (fields.next(), fields.next()) else { return };
    let positive = match (&**keyword, argument) {
        ("not", schema) => schema.clone(),
        ("required", Value::Array(names)) if names.len() == 1 => {
            let mut missing = without(names[0].as_str().unwrap_or_default());
            missing["type"] = "object".into();
            missing
        }
        ("type", _) => {
            let negated = types(&json!({ "type": argument }));
            // Numbers that are no integers have no type.
            if negated.contains("integer") != negated.contains("number") {
                return;
            }
            let others: Vec<&str> = types(&json!({})).into_iter().filter(|t| !negated.contains(t)).collect();
            json!({ "type": others })
        }
        _ => return,
    };
    object.remove("not");
    conjoin(object, positive);
}

/// Whether some reference in a schema leads to a place of this kind.
fn has_reference(schema: &Value, is_wanted: &dyn Fn(&str) -> bool) -> bool {
    match schema {
        Value::Object(fields) => fields.iter().any(|(keyword, argument)| {
            let is_reference = ["$ref", "$dynamicRef", "$recursiveRef"].contains(&&**keyword);
            is_reference && argument.as_str().is_some_and(is_wanted) || has_reference(argument, is_wanted)
        }),
        Value::Array(items) => items.iter().any(|item| has_reference(item, is_wanted)),
        _ => false,
    }
}
